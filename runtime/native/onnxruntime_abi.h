// The little of ONNX Runtime's C interface that is used here. Its functions stand in one table whose
// order never changes (a new release only appends), so each is named by its place in it.
// tests/runtime/test_native_kernels.py runs all of them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ort {

struct Status;
struct Value;
struct KernelContext;
struct KernelInfo;
struct TensorInfo;
struct SessionOptions;
struct Domain;

constexpr uint32_t kApiVersion = 17;  // onnxruntime 1.17, which brought ParallelFor

enum Slot : size_t {
  kCreateStatus = 0,
  kCreateCustomOpDomain = 26,
  kCustomOpDomainAdd = 27,
  kAddCustomOpDomain = 28,
  kGetTensorMutableData = 51,
  kGetDimensionsCount = 61,
  kGetDimensions = 62,
  kGetTensorTypeAndShape = 65,
  kKernelInfoGetAttributeFloat = 85,
  kKernelInfoGetAttributeInt64 = 86,
  kKernelContextGetInput = 90,
  kKernelContextGetOutput = 91,
  kReleaseStatus = 93,
  kReleaseTensorTypeAndShapeInfo = 99,
  kKernelContextParallelFor = 274,
};

struct Api {
  void* table[kKernelContextParallelFor + 1];

  // Calls the function at that place. Its types are the caller's to get right.
  template <typename Result = Status*, typename... Args>
  Result call(Slot slot, Args... args) const {
    return reinterpret_cast<Result (*)(Args...)>(table[slot])(args...);
  }
};

struct ApiBase {
  const Api* (*get_api)(uint32_t version);
  const char* (*version_string)();
};

enum ElementType : int { kFloat = 1, kUint8 = 2, kInt8 = 3, kInt32 = 6, kInt64 = 7 };
enum Presence : int { kRequired = 0, kOptional = 1 };

// What ONNX Runtime asks an operator, as its version 16 lays it out.
struct CustomOp {
  uint32_t version;
  void* (*create_kernel)(const CustomOp*, const Api*, const KernelInfo*);
  const char* (*name)(const CustomOp*);
  const char* (*execution_provider)(const CustomOp*);
  ElementType (*input_type)(const CustomOp*, size_t);
  size_t (*input_count)(const CustomOp*);
  ElementType (*output_type)(const CustomOp*, size_t);
  size_t (*output_count)(const CustomOp*);
  void (*compute)(void*, KernelContext*);
  void (*destroy_kernel)(void*);
  Presence (*input_presence)(const CustomOp*, size_t);
  Presence (*output_presence)(const CustomOp*, size_t);
  int (*input_memory)(const CustomOp*, size_t);
  int (*variadic_input_min)(const CustomOp*);
  int (*variadic_input_homogeneous)(const CustomOp*);
  int (*variadic_output_min)(const CustomOp*);
  int (*variadic_output_homogeneous)(const CustomOp*);
  Status* (*create_kernel_v2)(const CustomOp*, const Api*, const KernelInfo*, void**);
  Status* (*compute_v2)(void*, KernelContext*);
};

}  // namespace ort
