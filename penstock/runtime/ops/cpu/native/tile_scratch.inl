// What attention with matrix tiles works in.

namespace {

struct Scratch {
  float* scores;     // [16][kKeysAtOnce]
  float* sums;       // [16][head_dim]
  int32_t* dots;     // [16][2 digits][kKeysAtOnce]
  uint8_t* weights;  // [16][kKeysAtOnce] of bf16, or [16][2 digits][kKeysAtOnce]
  uint8_t* queries;  // [16][head_dim] of bf16, or [16][2 digits][head_dim]
  uint16_t* values;  // [2][16 pairs of keys][64 numbers, 2]
  float* query_scale;  // [16], as are those that follow
  float* spoiled;
  float* most;
  float* total;

  explicit Scratch(uint8_t* memory) {
    scores = (float*)memory;
    sums = scores + kTile * kKeysAtOnce;
    dots = (int32_t*)(sums + kTile * kMaxHeadDim);
    weights = (uint8_t*)(dots + kTile * 2 * kKeysAtOnce);
    queries = weights + kTile * kKeysAtOnce * 2;
    values = (uint16_t*)(queries + kTile * kMaxHeadDim * 2);
    query_scale = (float*)(values + 2 * kTile * 128);
    spoiled = query_scale + kTile;
    most = spoiled + kTile;
    total = most + kTile;
  }

  // Rows from `row` on.
  Scratch from(int row, int head_dim) const {
    Scratch s = *this;
    s.scores += row * kKeysAtOnce;
    s.sums += row * head_dim;
    s.dots += row * 2 * kKeysAtOnce;
    s.weights += row * 2 * kKeysAtOnce;
    s.queries += row * 2 * head_dim;
    s.query_scale += row;
    s.spoiled += row;
    s.most += row;
    s.total += row;
    return s;
  }
};

// Tiles wait for memory, which finds scattered units too late by itself: where few rows of one kv head read them, keys are
// fetched some units ahead, and the values that will be read next are brought near.
PENSTOCK_INLINE void fetch(const Attend& t, const void* base, const float* scales, int position) {
  const size_t at = unit_offset(t, position);
  const int row_bytes = t.head_dim * (scales ? 1 : 2);
  prefetch((const uint8_t*)base + at * row_bytes, kTile * row_bytes);
  if (scales) prefetch((const uint8_t*)(scales + at), 64);
}

// Before the first unit, `ahead` of them; then one with each.
PENSTOCK_INLINE void fetch_ahead(const Attend& t, int first, int i, int num_keys, int ahead) {
  if (t.num_rows == kTile || t.heads_at_once > 1 || i >= num_keys) return;
  const int next = i + ahead * kTile;
  for (int u = i ? next : 0; u <= next && u < num_keys; u += kTile) fetch(t, t.keys, t.key_scales, first + u);
  fetch(t, t.values, t.value_scales, first + i);
}

}  // namespace
