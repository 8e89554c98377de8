// The running softmax of attention, for whichever instruction set includes this.
#include "kernels.h"
#include "vector.h"

namespace {

using namespace penstock;

// Positions a query may see.
struct Seen {
  int begin, end;
};

PENSTOCK_INLINE int position_of(const Attend& t, int row) {
  return t.chunk.start + (t.first_row + row) / t.heads_per_group;
}

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
  const int64_t block = t.chunk.table[position / t.block_size];
  const int unit = position % t.block_size / kTile;
  return (size_t)(block * t.block_stride + (t.kv_head * units + unit) * kTile);
}

// a * b + c, rounded once. Written out where single numbers meet: whether a compiler joins a product and a sum depends on the
// code around them, and a row's bits must not depend on how many rows go with it.
PENSTOCK_INLINE float joined(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

// Turns one row of scores, of keys first .. first + num_keys, into weights against the running maximum, which it raises, and
// returns the factor that brings earlier sums to the new maximum. Keys not seen weigh nothing. `num_keys` is a multiple of
// 16; `keep(i, weights)` is handed the weights of keys i .. i + 16.
template <typename Keep>
PENSTOCK_INLINE float weigh(const Attend& t, float* scores, int first, int num_keys, Seen seen, float& most, float& total,
                            Keep keep) {
  const int low = seen.begin - first, high = seen.end - first;
  if (low >= num_keys || high <= 0) {
    for (int i = 0; i < num_keys; i += 16) keep(i, Floats{});
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
  const Floats lowered = power_of_two(fill(joined(most, steepness, -shift)));
  const float factor = most == raised ? 1.0f : lowered[0];
  Floats sums = {};
  for (int i = 0; i < num_keys; i += 16) {
    Floats weight = power_of_two(load(scores + i) * steepness - shift);
    if (i < low || i + 16 > high) weight = select((kLanes + i >= low) & (kLanes + i < high), weight, Floats{});
    sums += weight;
    keep(i, weight);
  }
  most = raised;
  total = joined(total, factor, sum(sums));
  return factor;
}

// Positions that any of the rows sees.
PENSTOCK_INLINE Seen span_of(const Attend& t) {
  const Seen first = seen_by(t, 0), last = seen_by(t, t.num_rows - 1);
  return Seen{first.begin, last.end};
}

// A weight with its value's scale. Keys that weigh nothing may have any scale, or none that is a number.
PENSTOCK_INLINE Floats scaled_weight(const Attend& t, int position, Floats weight) {
  return select(weight > 0.0f, weight * load(t.value_scales + unit_offset(t, position)), Floats{});
}

// Byte j of each word as a number.
PENSTOCK_INLINE Floats byte_of(Ints words, int j) { return to_floats((words << (24 - 8 * j)) >> 24); }

// A unit of bf16 values whose keys from `count` on were never written by this sequence: whatever stands there is replaced by
// zero, since zero times not-a-number is not zero.
PENSTOCK_INLINE const uint16_t* clean_values(const uint16_t* unit, int count, int head_dim, uint16_t* scratch) {
  if (count >= kTile) return unit;
  for (int pair = 0; pair < kTile / 2; ++pair) {
    const int32_t written = pair * 2 + 1 < count ? -1 : pair * 2 < count ? 0xffff : 0;
    for (int d = 0; d < head_dim; d += 16) {
      const int at = (pair * head_dim + d) * 2;
      Ints words;
      std::memcpy(&words, unit + at, sizeof words);
      words &= written;
      std::memcpy(scratch + at, &words, sizeof words);
    }
  }
  return scratch;
}

PENSTOCK_INLINE float* head_of(float* base, const Attend& t, int64_t stride, int row) {
  const int flat = t.first_row + row;
  return base + (int64_t)(flat / t.heads_per_group) * stride + flat % t.heads_per_group * t.head_dim;
}

}  // namespace
