// The running softmax of attention, for whichever instruction set includes this.
#include "kernels.h"
#include "vector.h"

namespace {

using namespace penstock;

// Positions a query may see.
struct Seen {
  int begin, end;
};

PENSTOCK_INLINE int position_of(const Attend& t, int row) { return t.start + (t.first_row + row) / t.heads_per_group; }

PENSTOCK_INLINE Seen seen_by(const Attend& t, int row) {
  const int position = position_of(t, row);
  const int begin = t.window > 0 && position >= t.window ? position - t.window + 1 : 0;
  return Seen{begin, position + 1};
}

constexpr Ints kLanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

// Scores as the softmax takes them, where that is more than a positive factor.
PENSTOCK_INLINE bool bends_scores(const Attend& t) { return t.softcap > 0.0f || !(t.scale > 0.0f); }

PENSTOCK_INLINE void bend_scores(const Attend& t, float* scores, int num_keys) {
  for (int i = 0; i < num_keys; i += 16) {
    Floats s = load(scores + i) * t.scale;
    if (t.softcap > 0.0f) s = t.softcap * tangent_hyperbolic(s / t.softcap);
    store(scores + i, s);
  }
}

PENSTOCK_INLINE size_t unit_offset(const Attend& t, int position) {
  const int units = t.block_size / kTile;
  const int64_t block = t.table[position / t.block_size];
  const int unit = position % t.block_size / kTile;
  return (((size_t)block * t.num_kv_heads + t.kv_head) * units + unit) * kTile;
}

// A key's scale counts in its score, a value's in its weight.
PENSTOCK_INLINE void scale_scores(const Attend& t, float* scores, int first, int num_keys) {
  for (int i = 0; i < num_keys; i += kTile)
    store(scores + i, load(scores + i) * load(t.key_scales + unit_offset(t, first + i)));
}

// Turns one row of scores, of keys first .. first + num_keys, into weights against the running maximum, which it raises, and
// returns the factor that brings earlier sums to the new maximum. Keys not seen weigh nothing. `num_keys` is a multiple of
// 16; weights come as bf16.
PENSTOCK_INLINE float weigh(const Attend& t, float* scores, uint16_t* weights, int first, int num_keys, Seen seen,
                            float& most, float& total) {
  const int low = seen.begin - first, high = seen.end - first;
  if (low >= num_keys || high <= 0) {
    std::memset(weights, 0, sizeof(uint16_t) * num_keys);
    return 1.0f;
  }
  if (bends_scores(t)) bend_scores(t, scores, num_keys);
  const float steepness = bends_scores(t) ? kLog2E : t.scale * kLog2E;
  Floats peak = fill(most);
  for (int i = 0; i < num_keys; i += 16) {
    Floats s = load(scores + i);
    if (i < low || i + 16 > high) s = select((kLanes + i >= low) & (kLanes + i < high), s, fill(-__builtin_inff()));
    peak = maximum(s, peak);
  }
  const float raised = largest(peak), shift = raised * steepness;
  const Floats lowered = power_of_two(fill(most * steepness - shift));
  const float factor = most == raised ? 1.0f : lowered[0];
  Floats sums = {};
  for (int i = 0; i < num_keys; i += 16) {
    Floats weight = power_of_two(load(scores + i) * steepness - shift);
    if (i < low || i + 16 > high) weight = select((kLanes + i >= low) & (kLanes + i < high), weight, Floats{});
    sums += weight;
    if (t.value_scales) {
      weight *= load(t.value_scales + unit_offset(t, first + i));
      if (i < low || i + 16 > high) weight = select((kLanes + i >= low) & (kLanes + i < high), weight, Floats{});
    }
    store_bf16(weights + i, weight);
  }
  most = raised;
  total = total * factor + sum(sums);
  return factor;
}

// Positions that any of the rows sees.
PENSTOCK_INLINE Seen span_of(const Attend& t) {
  const Seen first = seen_by(t, 0), last = seen_by(t, t.num_rows - 1);
  return Seen{first.begin, last.end};
}

// `count` whole numbers, a multiple of 32, as bf16. Whole lines are written at once: tiles are read by lines.
PENSTOCK_INLINE void widen_bytes(const int8_t* from, int count, uint16_t* to) {
#if defined(PENSTOCK_AVX512_BF16)
#pragma GCC unroll 4
  for (int i = 0; i < count; i += 32) {
    const __m512i low = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)(from + i)));
    const __m512i high = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)(from + i + 16)));
    const __m512bh both = _mm512_cvtne2ps_pbh(_mm512_cvtepi32_ps(high), _mm512_cvtepi32_ps(low));
    _mm512_store_si512(to + i, (__m512i)both);
  }
#else
  for (int i = 0; i < count; i += 16) {
    Bytes bytes;
    std::memcpy(&bytes, from + i, sizeof bytes);
    store_bf16(to + i, to_floats(__builtin_convertvector(bytes, Ints)));
  }
#endif
}

// The keys of a unit in bf16: where they lie, or in `scratch`.
PENSTOCK_INLINE const uint16_t* keys_of(const Attend& t, int position, uint16_t* scratch) {
  const size_t at = unit_offset(t, position) * t.head_dim;
  if (!t.key_scales) return (const uint16_t*)t.keys + at;
  widen_bytes((const int8_t*)t.keys + at, kTile * t.head_dim, scratch);
  return scratch;
}

// Likewise its values, of which `count` keys were written by this sequence. Whatever stands behind those is replaced by zero,
// since zero times not-a-number is not zero; whole numbers are never that.
PENSTOCK_INLINE const uint16_t* values_of(const Attend& t, int position, int count, uint16_t* scratch) {
  const int dim = t.head_dim;
  const size_t at = unit_offset(t, position) * dim;
  const uint16_t* unit = (const uint16_t*)t.values + at;
  if (t.value_scales) {
    widen_bytes((const int8_t*)t.values + at, kTile * dim, scratch);
    return scratch;
  }
  if (count >= kTile) return unit;
  for (int pair = 0; pair < kTile / 2; ++pair)
    for (int d = 0; d < dim; ++d) {
      const int place = (pair * dim + d) * 2;
      scratch[place] = pair * 2 < count ? unit[place] : 0;
      scratch[place + 1] = pair * 2 + 1 < count ? unit[place + 1] : 0;
    }
  return scratch;
}

PENSTOCK_INLINE float* head_of(float* base, const Attend& t, int64_t stride, int row) {
  const int flat = t.first_row + row;
  return base + (int64_t)(flat / t.heads_per_group) * stride + flat % t.heads_per_group * t.head_dim;
}

}  // namespace
