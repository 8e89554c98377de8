// Attention over the paged cache with plain vector arithmetic.
#include "softmax.inl"

namespace {

// Scores of a unit's 16 keys.
PENSTOCK_INLINE Floats score_unit(const Attend& t, const float* q, int position) {
  const int dim = t.head_dim;
  const size_t at = unit_offset(t, position);
  Floats even = {}, odd = {};
  Ints words;
  if (t.key_scales) {
    const int8_t* unit = (const int8_t*)t.keys + at * dim;
    for (int d = 0; d < dim; d += 4) {
      std::memcpy(&words, unit + d * kTile, sizeof words);
      even += byte_of(words, 0) * q[d] + byte_of(words, 2) * q[d + 2];
      odd += byte_of(words, 1) * q[d + 1] + byte_of(words, 3) * q[d + 3];
    }
    return (even + odd) * load(t.key_scales + at);
  }
  const uint16_t* unit = (const uint16_t*)t.keys + at * dim;
  for (int d = 0; d < dim; d += 2) {
    std::memcpy(&words, unit + d * kTile, sizeof words);
    even += (Floats)(words << 16) * from_bf16(to_bf16(q[d]));
    odd += (Floats)(words & (int32_t)0xffff0000) * from_bf16(to_bf16(q[d + 1]));
  }
  return even + odd;
}

// Adds a unit's values, by weight; `count` of its keys were written.
PENSTOCK_INLINE void add_unit(const Attend& t, const float* weights, int position, int count, uint16_t* clean,
                              float* sums) {
  const int dim = t.head_dim;
  const size_t at = unit_offset(t, position) * dim;
  Ints words;
  if (t.value_scales) {
    for (int quad = 0; quad < kTile / 4; ++quad, weights += 4)
      for (int d = 0; d < dim; d += 16) {
        std::memcpy(&words, (const int8_t*)t.values + at + (quad * dim + d) * 4, sizeof words);
        store(sums + d, load(sums + d) + byte_of(words, 0) * weights[0] + byte_of(words, 1) * weights[1] +
                            byte_of(words, 2) * weights[2] + byte_of(words, 3) * weights[3]);
      }
    return;
  }
  const uint16_t* unit = clean_values((const uint16_t*)t.values + at, count, dim, clean);
  for (int pair = 0; pair < kTile / 2; ++pair, weights += 2)
    for (int d = 0; d < dim; d += 16) {
      std::memcpy(&words, unit + (pair * dim + d) * 2, sizeof words);
      store(sums + d, load(sums + d) + (Floats)(words << 16) * from_bf16(to_bf16(weights[0])) +
                          (Floats)(words & (int32_t)0xffff0000) * from_bf16(to_bf16(weights[1])));
    }
}

void attend_chunk(const Attend& t, uint8_t* scratch) {
  const int dim = t.head_dim;
  float* scores = (float*)scratch;                    // [kKeysAtOnce]
  float* weights = scores + kKeysAtOnce;              // [kKeysAtOnce]
  float* sums = weights + kKeysAtOnce;                // [head_dim]
  uint16_t* clean = (uint16_t*)(sums + kMaxHeadDim);  // [16, head_dim]
  for (int row = 0; row < t.num_rows; ++row) {
    const Seen seen = seen_by(t, row);
    const float* q = head_of((float*)t.chunk.q, t, t.stride, row);
    float most = -__builtin_inff(), total = 0.0f;
    for (int d = 0; d < dim; ++d) sums[d] = 0.0f;
    for (int first = seen.begin / kKeysAtOnce * kKeysAtOnce; first < seen.end; first += kKeysAtOnce) {
      const int left = seen.end - first;
      const int num_keys = left < kKeysAtOnce ? (left + 15) / 16 * 16 : kKeysAtOnce;
      for (int i = 0; i < num_keys; i += kTile) store(scores + i, score_unit(t, q, first + i));
      const float factor = weigh(t, scores, first, num_keys, seen, most, total, [&](int i, Floats weight) {
        store(weights + i, t.value_scales ? scaled_weight(t, first + i, weight) : weight);
      });
      if (factor != 1.0f)
        for (int d = 0; d < dim; ++d) sums[d] *= factor;
      for (int i = 0; i < num_keys; i += kTile) add_unit(t, weights + i, first + i, left - i, clean, sums);
    }
    float* out = head_of(t.chunk.out, t, t.out_stride, row);
    for (int d = 0; d < dim; ++d) out[d] = sums[d] / total;
  }
}

void attend(const Attend& t, uint8_t* scratch) {
  for (int i = 0; i < t.num_chunks; ++i)
    for (int head = 0; head < t.heads_at_once; ++head) attend_chunk(t.part(i).head(head), scratch);
}

}  // namespace
