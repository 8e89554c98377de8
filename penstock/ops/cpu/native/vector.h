// Sixteen floats at once, in whatever registers the file that includes this is compiled for.
//
// Included inside each kernel file after its target is set: everything is static and always inlined, so that no two
// instruction sets share a function.
#pragma once
#include <cstdint>
#include <cstring>

#include "kernels.h"

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

PENSTOCK_INLINE Floats maximum(Floats a, Floats b) { return select(a > b, a, b); }
PENSTOCK_INLINE Floats minimum(Floats a, Floats b) { return select(a < b, a, b); }
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

// e^v within two units in the last place; 0 far below, infinity far above, not-a-number stays.
PENSTOCK_INLINE Floats exponential(Floats v) {
  const Floats clipped = minimum(maximum(v, fill(-104.0f)), fill(89.0f));
  const Floats count = nearest(clipped * 1.44269504088896341f);
  const Floats rest = (clipped - count * 0.693359375f) + count * 2.12194440e-4f;
  Floats result = fill(1.9875691500e-4f);
  result = result * rest + 1.3981999507e-3f;
  result = result * rest + 8.3334519073e-3f;
  result = result * rest + 4.1665795894e-2f;
  result = result * rest + 1.6666665459e-1f;
  result = result * rest + 5.0000001201e-1f;
  result = result * rest * rest + rest + 1.0f;
  // Two factors, since 2^count alone may lie outside the range of normal numbers.
  const Ints whole = to_ints(count), half = whole >> 1;
  result = result * (Floats)((half + 127) << 23) * (Floats)((whole - half + 127) << 23);
  return select(v == v, result, v);
}

PENSTOCK_INLINE Floats tangent_hyperbolic(Floats v) {
  const Floats grown = exponential(magnitude(v) * -2.0f);
  const Floats result = (1.0f - grown) / (1.0f + grown);
  return select(v < 0.0f, -result, select(v == v, result, v));
}

// Sixteen numbers rounded to bf16, still spread over floats.
PENSTOCK_INLINE Floats round_bf16(Floats v) {
  const Ints bits = (Ints)v, rounded = (bits + 0x7fff + ((bits >> 16) & 1)) & (int32_t)0xffff0000;
  return select(v == v, (Floats)rounded, v);
}

PENSTOCK_INLINE void store_bf16(uint16_t* to, Floats rounded) {
  const Halves halves = __builtin_convertvector((Bits)rounded >> 16, Halves);
  std::memcpy(to, &halves, sizeof halves);
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
