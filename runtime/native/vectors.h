// Sixteen floats at a time, in the vector types of GCC and Clang: one AVX-512 register, two of AVX2,
// four of SSE or NEON. Sums are taken in a fixed order, so equal rows give equal bits.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

// A function so marked is compiled once for each level of x86-64; the right one is taken when the
// library is loaded. What it calls must be inlined into it (KERNEL_PART), or stays at the base level.
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__)
#define KERNEL __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define KERNEL
#endif
// The numbers at four places of a and b behind each other.
#ifdef __clang__
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, Places4{__VA_ARGS__})
#endif
#define KERNEL_PART inline __attribute__((always_inline))

namespace leanseq {

constexpr int kLanes = 16;

typedef float Floats __attribute__((vector_size(64), aligned(4), may_alias));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef uint8_t Bytes __attribute__((vector_size(16), aligned(1), may_alias));
typedef int8_t SignedBytes __attribute__((vector_size(16), aligned(1), may_alias));
typedef float Floats8 __attribute__((vector_size(32)));
typedef float Floats4 __attribute__((vector_size(16)));
typedef int32_t Places4 __attribute__((vector_size(16)));

KERNEL_PART Floats load(const float* from) { return *reinterpret_cast<const Floats*>(from); }
KERNEL_PART void store(float* to, const Floats& x) { *reinterpret_cast<Floats*>(to) = x; }
KERNEL_PART Floats all(float x) { return Floats{} + x; }
KERNEL_PART Floats largest(const Floats& a, const Floats& b) { return a > b ? a : b; }
KERNEL_PART Floats smallest(const Floats& a, const Floats& b) { return a < b ? a : b; }

KERNEL_PART Floats8 half(const Floats& x, int which) {
  Floats8 halves[2];
  std::memcpy(halves, &x, sizeof x);
  return halves[which];
}
KERNEL_PART Floats4 half(const Floats8& x, int which) {
  Floats4 halves[2];
  std::memcpy(halves, &x, sizeof x);
  return halves[which];
}

KERNEL_PART Floats4 quarter_sums(const Floats& x) {
  const Floats8 eight = half(x, 0) + half(x, 1);
  return half(eight, 0) + half(eight, 1);
}
KERNEL_PART float sum(const Floats& x) {
  const Floats4 four = quarter_sums(x);
  return (four[0] + four[2]) + (four[1] + four[3]);
}
// Of four at once: the same additions in the same order as sum's, in a third of the instructions.
KERNEL_PART Floats4 sums(const Floats& a, const Floats& b, const Floats& c, const Floats& d) {
  const Floats4 p = quarter_sums(a), q = quarter_sums(b), r = quarter_sums(c), s = quarter_sums(d);
  const Floats4 pq = SHUFFLE(p, q, 0, 4, 1, 5) + SHUFFLE(p, q, 2, 6, 3, 7);
  const Floats4 rs = SHUFFLE(r, s, 0, 4, 1, 5) + SHUFFLE(r, s, 2, 6, 3, 7);
  return SHUFFLE(pq, rs, 0, 1, 4, 5) + SHUFFLE(pq, rs, 2, 3, 6, 7);
}
KERNEL_PART float maximum(const Floats& x) {
  const Floats8 eight = half(x, 0) > half(x, 1) ? half(x, 0) : half(x, 1);
  const Floats4 four = half(eight, 0) > half(eight, 1) ? half(eight, 0) : half(eight, 1);
  const float a = four[0] > four[2] ? four[0] : four[2], b = four[1] > four[3] ? four[1] : four[3];
  return a > b ? a : b;
}

// 2 to the power of a rest within 1/2: a polynomial, fitted for the least relative error, 9e-8.
KERNEL_PART Floats exp2_of_rest(const Floats& rest) {
  Floats power = all(1.32647e-3f);
  power = power * rest + 9.67151e-3f;
  power = power * rest + 5.550734e-2f;
  power = power * rest + 2.4022242e-1f;
  power = power * rest + 6.9314698e-1f;
  return power * rest + 1.0f;
}

// 2 to the power of y, for y <= 0; 2^-126 below -126, NaN of NaN. y is cut into a whole number and a
// rest.
KERNEL_PART Floats exp2(const Floats& y) {
  const Floats shift = all(12582912.0f);  // 1.5 * 2^23: adding it rounds to a whole number
  const Floats least = y < -126.0f ? all(-126.0f) : y, rounded = least + shift;
  Ints bits;
  std::memcpy(&bits, &rounded, sizeof bits);
  bits = (bits + 127) << 23;  // the whole number as an exponent
  Floats whole;
  std::memcpy(&whole, &bits, sizeof whole);
  return exp2_of_rest(least - (rounded - shift)) * whole;
}

constexpr float kLog2E = 1.44269504f;

// e to the power of x, for x <= 0; 0 below -87.3, NaN of NaN. Right to 2e-7 near 0, to 1e-6 at -20.
KERNEL_PART Floats exp(const Floats& x) {
  const Floats y = x * kLog2E;
  return y < -126.0f ? Floats{} : exp2(y);
}

// QuantizeLinear to uint8: round half to even, then saturate.
KERNEL_PART Bytes quantize(const Floats& x, float scale, float zero_point) {
  const Floats shift = all(12582912.0f);
  const Floats inside = largest(smallest(x / scale, all(255.0f - zero_point)), all(-zero_point));
  const Floats whole = (inside + shift) - shift;
  return __builtin_convertvector(__builtin_convertvector(whole + zero_point, Ints), Bytes);
}

// part(i, count) for every kLanes of 0..size and for what is left. count is a constant of type Whole
// for all but the last, so that nothing is copied piece by piece.
struct Whole {
  constexpr operator int64_t() const { return kLanes; }
};

template <typename Part>
KERNEL_PART void by_lanes(int64_t size, Part part) {
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) part(i, Whole{});
  if (i < size) part(i, size - i);
}

// The first `count` numbers, and zeros.
KERNEL_PART Floats load(const float* from, Whole) { return load(from); }
KERNEL_PART Floats load(const float* from, int64_t count) {
  Floats x{};
  std::memcpy(&x, from, count * sizeof(float));
  return x;
}

}  // namespace leanseq
