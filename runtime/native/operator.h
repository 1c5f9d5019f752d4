// An operator of domain `leanseq`: what it is called, what it reads and writes, and what it does.
#pragma once

#include <array>
#include <functional>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <vector>

#include "onnxruntime_abi.h"

namespace leanseq {

// A tensor in the caller's memory; data is null where an optional one is absent.
struct Tensor {
  void* data = nullptr;
  std::array<int64_t, 8> dims{};
  size_t rank = 0;

  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }
  explicit operator bool() const { return data != nullptr; }
  bool has_shape_of(const Tensor& other) const { return rank == other.rank && dims == other.dims; }
  int64_t count() const {
    int64_t product = 1;
    for (size_t i = 0; i < rank; ++i) product *= dims[i];
    return product;
  }
};

// What the graph says is wrong: becomes ONNX Runtime's error, and a BackendError in Python.
inline void expect(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(what);
}

struct Kernel {
  const ort::Api* api;
  bool quantizes;  // the last output is the result in uint8, the last two inputs say how
  float epsilon;   // attributes of operators that have them
  int64_t num_heads;
};

// One run of an operator.
class Context {
 public:
  Context(const Kernel& kernel, ort::KernelContext* raw)
      : quantizes(kernel.quantizes),
        epsilon(kernel.epsilon),
        num_heads(kernel.num_heads),
        api_(*kernel.api),
        raw_(raw) {}

  Tensor input(size_t index) const;
  // Of `shape`'s dims. Its data is null where nothing reads that output.
  Tensor output(size_t index, const Tensor& shape) const;
  Tensor output(size_t index, std::initializer_list<int64_t> dims) const;
  // work(first, last) for parts of 0..count, on the session's threads where all of it is about
  // `operations` (multiply-adds) long enough. Every item's result is its own, whoever computes it.
  void parallel(int64_t count, int64_t operations,
                const std::function<void(int64_t, int64_t)>& work) const;

  const bool quantizes;
  const float epsilon;
  const int64_t num_heads;

 private:
  Tensor output(size_t index, const int64_t* dims, size_t rank) const;
  void check(ort::Status* status) const;

  const ort::Api& api_;
  ort::KernelContext* const raw_;
};

// inputs, outputs: their types in order. The first `required` inputs must be there.
struct Operator : ort::CustomOp {
  Operator(const char* name, std::vector<ort::ElementType> inputs, size_t required,
           std::vector<ort::ElementType> outputs, void (*run)(const Context&));

  const char* const title;
  const std::vector<ort::ElementType> inputs, outputs;
  const size_t required;
  void (*const run)(const Context&);
};

extern const Operator kSelfAttention, kSelfAttentionQuantize, kPackedSelfAttention,
    kPackedSelfAttentionQuantize, kCrossAttention, kCrossAttentionQuantize, kEncoderAttention,
    kEncoderAttentionQuantize, kPackedEncoderAttention, kPackedEncoderAttentionQuantize,
    kSplitHeads, kAddNorm, kAddNormQuantize, kEmbedding, kEmbeddingQuantize, kReluQuantize,
    kBestCandidates;
// Null on a processor that lacks what it needs.
const Operator* best_continuations_here();

}  // namespace leanseq
