// Sixteen floats at once, in whatever registers the file that includes this is compiled for.
//
// Included inside each kernel file after its target is set: everything is static and always inlined, so that no two
// instruction sets share a function.
#pragma once
#include <cstdint>
#include <cstring>

#include "kernels.h"

// A file says itself which instructions it may use: compilers do not tell what a target pragma brought.
#if defined(PENSTOCK_AVX512) || defined(PENSTOCK_AVX512_BF16)
#include <immintrin.h>
#endif

namespace {

typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef uint32_t Bits __attribute__((vector_size(64)));
typedef int8_t Bytes __attribute__((vector_size(16)));
typedef uint16_t Halves __attribute__((vector_size(32)));

PENSTOCK_INLINE Floats load(const float* from) {
  Floats value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

PENSTOCK_INLINE void store(float* to, Floats value) { std::memcpy(to, &value, sizeof value); }

PENSTOCK_INLINE Floats fill(float value) { return Floats{} + value; }

PENSTOCK_INLINE Floats select(Ints condition, Floats yes, Floats no) {
  return (Floats)(((Ints)yes & condition) | ((Ints)no & ~condition));
}

// Where one is not a number, the second.
#if defined(PENSTOCK_AVX512)
PENSTOCK_INLINE Floats maximum(Floats a, Floats b) { return (Floats)_mm512_max_ps((__m512)a, (__m512)b); }
#else
PENSTOCK_INLINE Floats maximum(Floats a, Floats b) { return select(a > b, a, b); }
#endif
PENSTOCK_INLINE Floats magnitude(Floats a) { return (Floats)((Ints)a & 0x7fffffff); }

// Lanes 8-15 brought to 0-7, then 4-7, then 2-3, then 1: sums and maxima have one order on every instruction set.
constexpr Ints kHalf = {8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7};
constexpr Ints kQuarter = {4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11};
constexpr Ints kEighth = {2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13};
constexpr Ints kNext = {1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14};

template <typename Vector>
PENSTOCK_INLINE auto sum(Vector v) {
  v += __builtin_shuffle(v, kHalf);
  v += __builtin_shuffle(v, kQuarter);
  v += __builtin_shuffle(v, kEighth);
  v += __builtin_shuffle(v, kNext);
  return v[0];
}

PENSTOCK_INLINE float largest(Floats v) {
  v = maximum(v, __builtin_shuffle(v, kHalf));
  v = maximum(v, __builtin_shuffle(v, kQuarter));
  v = maximum(v, __builtin_shuffle(v, kEighth));
  v = maximum(v, __builtin_shuffle(v, kNext));
  return v[0];
}

// Nearest whole number, ties to even, for |v| < 2^22.
PENSTOCK_INLINE Floats nearest(Floats v) {
  const float magic = 12582912.0f;
  return (v + magic) - magic;
}

PENSTOCK_INLINE Ints to_ints(Floats v) { return __builtin_convertvector(v, Ints); }
PENSTOCK_INLINE Floats to_floats(Ints v) { return __builtin_convertvector(v, Floats); }

// a / b for b in 1 .. 2^127, within two units in the last place.
PENSTOCK_INLINE Floats quotient(Floats a, Floats b) {
#if defined(PENSTOCK_AVX512)
  const Floats guess = (Floats)_mm512_rcp14_ps((__m512)b);
  return a * (guess * (2.0f - b * guess));
#else
  return a / b;
#endif
}

constexpr float kLog2E = 1.44269504088896341f;

// 2^v for v up to 127, within two units in the last place; at least 2^-126, and not-a-number stays.
PENSTOCK_INLINE Floats power_of_two(Floats v) {
#if defined(PENSTOCK_AVX512)
  const Floats clipped = (Floats)_mm512_max_ps((__m512)fill(-126.0f), (__m512)v);
#else
  const Floats clipped = select(v < -126.0f, fill(-126.0f), v);
#endif
  const Floats whole = nearest(clipped), rest = clipped - whole;
  Floats result = fill(1.54035304e-4f);
  result = result * rest + 1.33335581e-3f;
  result = result * rest + 9.61812911e-3f;
  result = result * rest + 5.55041087e-2f;
  result = result * rest + 2.40226507e-1f;
  result = result * rest + 6.93147181e-1f;
  result = result * rest + 1.0f;
#if defined(PENSTOCK_AVX512)
  return (Floats)_mm512_scalef_ps((__m512)result, (__m512)whole);
#else
  return (Floats)((Ints)result + (to_ints(whole) << 23));
#endif
}

PENSTOCK_INLINE Floats exponential(Floats v) {
  const Floats scaled = v * kLog2E;
#if defined(PENSTOCK_AVX512)
  return power_of_two((Floats)_mm512_min_ps((__m512)fill(127.0f), (__m512)scaled));
#else
  return power_of_two(select(scaled > 127.0f, fill(127.0f), scaled));
#endif
}

PENSTOCK_INLINE Floats tangent_hyperbolic(Floats v) {
  const Floats grown = exponential(magnitude(v) * -2.0f);
  const Floats result = (1.0f - grown) / (1.0f + grown);
  return select(v < 0.0f, -result, select(v == v, result, v));
}

// Sixteen numbers as bf16, rounded to nearest even.
PENSTOCK_INLINE void store_bf16(uint16_t* to, Floats v) {
#if defined(PENSTOCK_AVX512_BF16)
  const __m256bh halves = _mm512_cvtneps_pbh((__m512)v);
#else
  const Ints bits = (Ints)v, rounded = bits + 0x7fff + ((bits >> 16) & 1);
  const Halves halves = __builtin_convertvector((Bits)select(v == v, (Floats)rounded, v) >> 16, Halves);
#endif
  std::memcpy(to, &halves, sizeof halves);
}

// The same, as floats again.
PENSTOCK_INLINE Floats as_bf16(Floats v) {
  const Ints bits = (Ints)v, rounded = (bits + 0x7fff + ((bits >> 16) & 1)) & (int32_t)0xffff0000;
  return select(v == v, (Floats)rounded, v);
}

// bf16 is the upper half of a float; round to nearest even.
PENSTOCK_INLINE uint16_t to_bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)((bits >> 16) | 0x40);
  return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

PENSTOCK_INLINE float from_bf16(uint16_t value) {
  const uint32_t bits = (uint32_t)value << 16;
  float result;
  std::memcpy(&result, &bits, sizeof result);
  return result;
}

PENSTOCK_INLINE float from_half(uint16_t half) {
  const uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = (half >> 10) & 31, fraction = half & 1023;
  uint32_t bits;
  float result;
  if (exponent == 0) {
    result = (float)fraction * 5.9604644775390625e-8f;  // 2^-24
    std::memcpy(&bits, &result, sizeof bits);
    bits |= sign;
  } else {
    bits = sign | ((exponent == 31 ? 255 : exponent + 112) << 23) | (fraction << 13);
  }
  std::memcpy(&result, &bits, sizeof result);
  return result;
}

}  // namespace
