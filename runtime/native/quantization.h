// The uint8 tensor that an operator may give beside its float result, for the product behind it.
#pragma once

#include "operator.h"
#include "vectors.h"

namespace leanseq {

struct Quantization {
  uint8_t* bytes = nullptr;  // null where none is wanted
  float scale = 1.0f, zero_point = 0.0f;
};

// Of an operator whose last inputs, from scale_index on, are scale and zero point.
inline Quantization quantization_of(const Context& context, size_t scale_index, size_t output,
                                    const Tensor& shape) {
  Quantization to;
  if (!context.quantizes) return to;
  const Tensor scale = context.input(scale_index), zero = context.input(scale_index + 1);
  expect(scale && zero && scale.count() == 1 && zero.count() == 1, "one scale and one zero point");
  to.scale = *scale.as<float>();
  to.zero_point = *zero.as<uint8_t>();
  to.bytes = context.output(output, shape).as<uint8_t>();
  return to;
}

// Writes the first `count` numbers of x at i.
template <typename Count>
KERNEL_PART void put(float* to, int64_t i, const Floats& x, Count count) {
  if (to) std::memcpy(to + i, &x, count * sizeof(float));
}

template <typename Count>
KERNEL_PART void put(const Quantization& to, int64_t i, const Floats& x, Count count) {
  if (!to.bytes) return;
  const Bytes bytes = quantize(x, to.scale, to.zero_point);
  std::memcpy(to.bytes + i, &bytes, count);
}

}  // namespace leanseq
