// The library that ONNX Runtime loads: it finds the operators by RegisterCustomOps.

#include <algorithm>
#include <exception>
#include <memory>

#include "operator.h"

namespace leanseq {

using namespace ort;

void Context::check(Status* status) const {
  if (!status) return;
  api_.call<void>(kReleaseStatus, status);
  throw std::runtime_error("ONNX Runtime refused a call of a kernel");
}

Tensor Context::input(size_t index) const {
  Tensor tensor;
  const Value* value = nullptr;
  check(api_.call(kKernelContextGetInput, static_cast<const KernelContext*>(raw_), index, &value));
  if (!value) return tensor;
  TensorInfo* info = nullptr;
  check(api_.call(kGetTensorTypeAndShape, value, &info));
  Status* status = api_.call(kGetDimensionsCount, static_cast<const TensorInfo*>(info), &tensor.rank);
  if (!status && tensor.rank <= tensor.dims.size()) {
    status = api_.call(kGetDimensions, static_cast<const TensorInfo*>(info), tensor.dims.data(),
                       tensor.rank);
  }
  api_.call<void>(kReleaseTensorTypeAndShapeInfo, info);
  check(status);
  expect(tensor.rank <= tensor.dims.size(), "tensors of at most eight dimensions");
  check(api_.call(kGetTensorMutableData, const_cast<Value*>(value), &tensor.data));
  return tensor;
}

Tensor Context::output(size_t index, const Tensor& shape) const {
  return output(index, shape.dims.data(), shape.rank);
}

Tensor Context::output(size_t index, std::initializer_list<int64_t> dims) const {
  return output(index, dims.begin(), dims.size());
}

Tensor Context::output(size_t index, const int64_t* dims, size_t rank) const {
  Tensor tensor;
  Value* value = nullptr;
  check(api_.call(kKernelContextGetOutput, raw_, index, dims, rank, &value));
  if (!value) return tensor;
  tensor.rank = rank;
  std::copy(dims, dims + rank, tensor.dims.begin());
  check(api_.call(kGetTensorMutableData, value, &tensor.data));
  return tensor;
}

void Context::parallel(int64_t count, int64_t operations,
                       const std::function<void(int64_t, int64_t)>& work) const {
  // A part shorter than some 20 microseconds costs more to hand over than it saves.
  constexpr int64_t kWorthwhile = 200'000, kMostParts = 16;
  const int64_t parts = std::min({count, operations / kWorthwhile, kMostParts});
  if (parts < 2) {
    if (count > 0) work(0, count);
    return;
  }
  struct Job {
    const std::function<void(int64_t, int64_t)>& work;
    int64_t count, parts;
    std::exception_ptr errors[kMostParts];
  } job{work, count, parts, {}};
  auto run = [](void* data, size_t part) {
    auto& job = *static_cast<Job*>(data);
    const int64_t index = static_cast<int64_t>(part);
    try {
      job.work(job.count * index / job.parts, job.count * (index + 1) / job.parts);
    } catch (...) {
      job.errors[index] = std::current_exception();
    }
  };
  void (*call)(void*, size_t) = run;
  check(api_.call(kKernelContextParallelFor, static_cast<const KernelContext*>(raw_), call,
                  static_cast<size_t>(parts), static_cast<size_t>(0), static_cast<void*>(&job)));
  for (const std::exception_ptr& error : job.errors) {
    if (error) std::rethrow_exception(error);
  }
}

namespace {

const Operator& self(const CustomOp* op) { return *static_cast<const Operator*>(op); }

struct Instance : Kernel {
  const char* title;
  void (*run)(const Context&);
};

Status* failed(const Api& api, const char* title, const char* what) {
  constexpr int kInvalidArgument = 2;
  const std::string text = std::string("leanseq's ") + title + " expected " + what;
  return api.call(kCreateStatus, kInvalidArgument, text.c_str());
}

}  // namespace

Operator::Operator(const char* name, std::vector<ElementType> inputs, size_t required,
                   std::vector<ElementType> outputs, void (*run)(const Context&))
    : CustomOp{},
      title(name),
      inputs(std::move(inputs)),
      outputs(std::move(outputs)),
      required(required),
      run(run) {
  version = 16;
  this->name = [](const CustomOp* op) { return self(op).title; };
  execution_provider = [](const CustomOp*) { return "CPUExecutionProvider"; };
  input_type = [](const CustomOp* op, size_t index) { return self(op).inputs[index]; };
  input_count = [](const CustomOp* op) { return self(op).inputs.size(); };
  output_type = [](const CustomOp* op, size_t index) { return self(op).outputs[index]; };
  output_count = [](const CustomOp* op) { return self(op).outputs.size(); };
  input_presence = [](const CustomOp* op, size_t index) {
    return index < self(op).required ? kRequired : kOptional;
  };
  output_presence = [](const CustomOp*, size_t) { return kOptional; };
  input_memory = [](const CustomOp*, size_t) { return 0; };
  variadic_input_min = variadic_output_min = [](const CustomOp*) { return 1; };
  variadic_input_homogeneous = variadic_output_homogeneous = [](const CustomOp*) { return 1; };
  create_kernel_v2 = [](const CustomOp* op, const Api* api, const KernelInfo* info,
                        void** kernel) -> Status* {
    auto instance = std::make_unique<Instance>();  // all zero
    instance->api = api;
    instance->title = self(op).title;
    instance->run = self(op).run;
    instance->quantizes = self(op).outputs.back() == kUint8;
    // Where an operator has no such attribute, its value stays 0.
    for (Status* missing :
         {api->call(kKernelInfoGetAttributeFloat, info, "epsilon", &instance->epsilon),
          api->call(kKernelInfoGetAttributeInt64, info, "num_heads", &instance->num_heads)}) {
      if (missing) api->call<void>(kReleaseStatus, missing);
    }
    *kernel = instance.release();
    return nullptr;
  };
  destroy_kernel = [](void* kernel) { delete static_cast<Instance*>(kernel); };
  compute_v2 = [](void* kernel, KernelContext* context) -> Status* {
    const Instance& instance = *static_cast<const Instance*>(kernel);
    try {
      instance.run(Context(instance, context));
    } catch (const std::exception& error) {
      return failed(*instance.api, instance.title, error.what());
    }
    return nullptr;
  };
}

}  // namespace leanseq

extern "C" __attribute__((visibility("default"))) ort::Status* RegisterCustomOps(
    ort::SessionOptions* options, const ort::ApiBase* base) {
  using namespace leanseq;
  const ort::Api* api = base->get_api(ort::kApiVersion);
  if (!api) return nullptr;  // the graphs' own functions do the work then
  static ort::Domain* domain = nullptr;  // sessions may outlive their options: it is never freed
  static ort::Status* refused = [api] {
    ort::Status* status = api->call(ort::kCreateCustomOpDomain, "leanseq", &domain);
    for (const Operator* op :
         {&kSelfAttention, &kSelfAttentionQuantize, &kPackedSelfAttention,
          &kPackedSelfAttentionQuantize, &kCrossAttention, &kCrossAttentionQuantize,
          &kEncoderAttention, &kEncoderAttentionQuantize, &kPackedEncoderAttention,
          &kPackedEncoderAttentionQuantize, &kSplitHeads, &kAddNorm, &kAddNormQuantize, &kEmbedding,
          &kEmbeddingQuantize, &kReluQuantize, &kBestCandidates, best_continuations_here()}) {
      const ort::CustomOp* custom = op;
      if (op && !status) status = api->call(ort::kCustomOpDomainAdd, domain, custom);
    }
    return status;
  }();
  if (refused) return nullptr;
  return api->call(ort::kAddCustomOpDomain, options, domain);
}
