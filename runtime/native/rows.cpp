// What is done to each row of activations between two products: AddNorm, ReluQuantize, Embedding.

#include "operator.h"
#include "quantization.h"
#include "vectors.h"

namespace leanseq {
namespace {

struct Norm {
  const float *x, *y, *gain, *bias;
  float* sum;  // null where nothing reads it
  float* normed;
  Quantization quantized;
  int64_t size;
  float epsilon;
};

// Layer normalization (Ba et al., 2016, equation 4) of x + y. added: room for a row.
KERNEL void add_norm_rows(const Norm& norm, int64_t first, int64_t last, float* added) {
  for (int64_t row = first; row < last; ++row) {
    const int64_t at = row * norm.size;
    Floats total{}, squares{};
    by_lanes(norm.size, [&](int64_t i, auto count) __attribute__((always_inline)) {
      const Floats x = load(norm.x + at + i, count) + load(norm.y + at + i, count);
      put(added, i, x, count);
      put(norm.sum, at + i, x, count);
      total += x;
    });
    const float mean = sum(total) / norm.size;
    by_lanes(norm.size, [&](int64_t i, auto count) __attribute__((always_inline)) {
      Floats difference = load(added + i, count) - mean;
      for (int64_t j = count; j < kLanes; ++j) difference[j] = 0;
      squares += difference * difference;
    });
    const float factor = 1.0f / std::sqrt(sum(squares) / norm.size + norm.epsilon);
    by_lanes(norm.size, [&](int64_t i, auto count) __attribute__((always_inline)) {
      const Floats x = (load(added + i, count) - mean) * factor * load(norm.gain + i, count) +
                       load(norm.bias + i, count);
      put(norm.normed, at + i, x, count);
      put(norm.quantized, at + i, x, count);
    });
  }
}

// x, y [...,D], gain, bias [D], scale, zero point -> x + y, its normalization, that in uint8
void add_norm(const Context& context) {
  const Tensor x = context.input(0), y = context.input(1);
  const Tensor gain = context.input(2), bias = context.input(3);
  expect(x.rank > 0 && x.has_shape_of(y), "two tensors of the same shape");
  const int64_t size = x.dims[x.rank - 1];
  expect(gain.count() == size && bias.count() == size, "a gain and a bias for each place of a row");
  const Norm norm{x.as<float>(), y.as<float>(), gain.as<float>(), bias.as<float>(),
                  context.output(0, x).as<float>(), context.output(1, x).as<float>(),
                  quantization_of(context, 4, 2, x), size, context.epsilon};
  context.parallel(size ? x.count() / size : 0, 8 * x.count(), [&](int64_t first, int64_t last) {
    std::vector<float> added(size);
    add_norm_rows(norm, first, last, added.data());
  });
}

KERNEL void relu_quantize_range(const float* x, const Quantization& to, int64_t first,
                                int64_t last) {
  by_lanes(last - first, [&](int64_t i, auto count) __attribute__((always_inline)) {
    put(to, first + i, largest(load(x + first + i, count), Floats{}), count);
  });
}

// x, scale, zero point -> max(x, 0) in uint8
void relu_quantize(const Context& context) {
  const Tensor x = context.input(0);
  const Quantization to = quantization_of(context, 1, 0, x);
  context.parallel(x.count(), 4 * x.count(), [&](int64_t first, int64_t last) {
    if (to.bytes) relu_quantize_range(x.as<float>(), to, first, last);
  });
}

struct Lookup {
  const int8_t* table;     // [V,D]
  const float* scales;     // [V], of its rows
  const float* positions;  // [D], of the position that is next
  int64_t size;
};

KERNEL void look_up(const Lookup& from, const int32_t* ids, int64_t count, float* vectors,
                    const Quantization& to) {
  for (int64_t row = 0; row < count; ++row) {
    const int8_t* entry = from.table + ids[row] * from.size;
    const float scale = from.scales[ids[row]];
    by_lanes(from.size, [&](int64_t i, auto part) __attribute__((always_inline)) {
      SignedBytes bytes{};
      std::memcpy(&bytes, entry + i, part);
      const Floats x = __builtin_convertvector(__builtin_convertvector(bytes, Ints), Floats);
      const Floats vector = x * scale + load(from.positions + i, part);
      put(vectors, row * from.size + i, vector, part);
      put(to, row * from.size + i, vector, part);
    });
  }
}

// token_ids, table int8 [V,D], scales [V,1], positions [P,D], position [1], scale, zero point
// -> vectors [N,1,D], these in uint8
void embedding(const Context& context) {
  const Tensor ids = context.input(0), table = context.input(1), scales = context.input(2);
  const Tensor positions = context.input(3), position = context.input(4);
  expect(table.rank == 2 && positions.rank == 2 && positions.dims[1] == table.dims[1] &&
             scales.count() == table.dims[0] && position.count() == 1,
         "tables of token and position embeddings of one width");
  const int64_t at = *position.as<int32_t>(), count = ids.count(), size = table.dims[1];
  expect(at >= 0 && at < positions.dims[0], "a position that the table has");
  for (int64_t i = 0; i < count; ++i) {
    const int32_t id = ids.as<int32_t>()[i];
    expect(id >= 0 && id < table.dims[0], "token ids within the vocabulary");
  }
  Tensor shape;
  shape.rank = 3;
  shape.dims = {count, 1, size};
  const Lookup from{table.as<int8_t>(), scales.as<float>(), positions.as<float>() + at * size,
                    size};
  float* vectors = context.output(0, shape).as<float>();
  look_up(from, ids.as<int32_t>(), count, vectors, quantization_of(context, 5, 1, shape));
}

}  // namespace

using ort::kFloat, ort::kInt32, ort::kInt8, ort::kUint8;
const Operator kAddNorm("AddNorm", {kFloat, kFloat, kFloat, kFloat}, 4, {kFloat, kFloat}, add_norm);
const Operator kAddNormQuantize("AddNormQuantize",
                                {kFloat, kFloat, kFloat, kFloat, kFloat, kUint8}, 6,
                                {kFloat, kFloat, kUint8}, add_norm);
const Operator kEmbedding("Embedding", {kInt32, kInt8, kFloat, kFloat, kInt32}, 5, {kFloat},
                          embedding);
const Operator kEmbeddingQuantize("EmbeddingQuantize",
                                  {kInt32, kInt8, kFloat, kFloat, kInt32, kFloat, kUint8}, 7,
                                  {kFloat, kUint8}, embedding);
const Operator kReluQuantize("ReluQuantize", {kFloat, kFloat, kUint8}, 3, {kUint8}, relu_quantize);

}  // namespace leanseq
