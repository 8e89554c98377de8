// Attention over the paged cache with plain vector arithmetic. Rows of queries that share a kv head go through its keys and values
// together: what is loaded meets all of them. A row's numbers do not depend on the rows beside it.
#include "softmax.inl"

namespace {

#if defined(PENSTOCK_AVX512)
constexpr int kRowsTogether = 8;
#else
constexpr int kRowsTogether = 2;
#endif

struct RowsScratch {
  float* q;         // [kRowsTogether][head_dim]
  float* scores;    // [kRowsTogether][kKeysAtOnce]; weights take their place
  float* sums;      // [kRowsTogether][head_dim]
  uint16_t* clean;  // [16, head_dim]

  explicit RowsScratch(uint8_t* memory) {
    q = (float*)memory;
    scores = q + kRowsTogether * kMaxHeadDim;
    sums = scores + kRowsTogether * kKeysAtOnce;
    clean = (uint16_t*)(sums + kRowsTogether * kMaxHeadDim);
  }
};

// Scores of a unit's 16 keys.
template <int kRows>
PENSTOCK_INLINE void score_unit(const Attend& t, const float* q, int position, float* scores) {
  const int dim = t.head_dim;
  const size_t at = unit_offset(t, position);
  Floats even[kRows], odd[kRows];
  Ints words;
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) even[r] = odd[r] = Floats{};
  if (t.key_scales) {
    const int8_t* unit = (const int8_t*)t.keys + at * dim;
    for (int d = 0; d < dim; d += 4) {
      std::memcpy(&words, unit + d * kTile, sizeof words);
      const Floats bytes[4] = {byte_of(words, 0), byte_of(words, 1), byte_of(words, 2), byte_of(words, 3)};
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const float* ours = q + r * dim + d;
        even[r] += bytes[0] * ours[0] + bytes[2] * ours[2];
        odd[r] += bytes[1] * ours[1] + bytes[3] * ours[3];
      }
    }
    const Floats scales = load(t.key_scales + at);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) store(scores + r * kKeysAtOnce, (even[r] + odd[r]) * scales);
    return;
  }
  const uint16_t* unit = (const uint16_t*)t.keys + at * dim;
  for (int d = 0; d < dim; d += 2) {
    std::memcpy(&words, unit + d * kTile, sizeof words);
    const Floats first = (Floats)(words << 16), second = (Floats)(words & (int32_t)0xffff0000);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      even[r] += first * q[r * dim + d];
      odd[r] += second * q[r * dim + d + 1];
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) store(scores + r * kKeysAtOnce, even[r] + odd[r]);
}

// Adds a unit's values, by weight; `count` of its keys were written.
template <int kRows>
PENSTOCK_INLINE void add_unit(const Attend& t, const float* weights, int position, int count, const RowsScratch& s) {
  const int dim = t.head_dim;
  const size_t at = unit_offset(t, position) * dim;
  const uint16_t* unit = t.value_scales ? nullptr : clean_values((const uint16_t*)t.values + at, count, dim, s.clean);
  Ints words;
  for (int d = 0; d < dim; d += 16) {
    Floats sums[kRows];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) sums[r] = load(s.sums + r * dim + d);
    for (int key = 0; t.value_scales && key < kTile; key += 4) {
      std::memcpy(&words, (const int8_t*)t.values + at + key * dim + d * 4, sizeof words);
      const Floats bytes[4] = {byte_of(words, 0), byte_of(words, 1), byte_of(words, 2), byte_of(words, 3)};
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const float* ours = weights + r * kKeysAtOnce + key;
        sums[r] = sums[r] + bytes[0] * ours[0] + bytes[1] * ours[1] + bytes[2] * ours[2] + bytes[3] * ours[3];
      }
    }
    for (int key = 0; unit && key < kTile; key += 2) {
      std::memcpy(&words, unit + key * dim + d * 2, sizeof words);
      const Floats first = (Floats)(words << 16), second = (Floats)(words & (int32_t)0xffff0000);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const float* ours = weights + r * kKeysAtOnce + key;
        sums[r] = sums[r] + first * ours[0] + second * ours[1];
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) store(s.sums + r * dim + d, sums[r]);
  }
}

// Rows from `row` on.
template <int kRows>
void attend_rows(const Attend& t, int row, uint8_t* memory) {
  const int dim = t.head_dim;
  const RowsScratch s(memory);
  float most[kRows], total[kRows];
  for (int r = 0; r < kRows; ++r) {
    const float* q = head_of((float*)t.chunk.q, t, t.stride, row + r);
    for (int d = 0; d < dim; d += 16) {
      store(s.q + r * dim + d, t.key_scales ? load(q + d) : as_bf16(load(q + d)));
      store(s.sums + r * dim + d, Floats{});
    }
    most[r] = -__builtin_inff();
    total[r] = 0.0f;
  }
  const int begin = seen_by(t, row).begin, end = seen_by(t, row + kRows - 1).end;
  for (int first = begin / kKeysAtOnce * kKeysAtOnce; first < end; first += kKeysAtOnce) {
    const int left = end - first;
    const int num_keys = left < kKeysAtOnce ? (left + 15) / 16 * 16 : kKeysAtOnce;
    for (int i = 0; i < num_keys; i += kTile) score_unit<kRows>(t, s.q, first + i, s.scores + i);
    for (int r = 0; r < kRows; ++r) {
      float* scores = s.scores + r * kKeysAtOnce;
      const float factor =
          weigh(t, scores, first, num_keys, seen_by(t, row + r), most[r], total[r], [&](int i, Floats weight) {
            store(scores + i, t.value_scales ? scaled_weight(t, first + i, weight) : as_bf16(weight));
          });
      for (int d = 0; factor != 1.0f && d < dim; d += 16)
        store(s.sums + r * dim + d, load(s.sums + r * dim + d) * factor);
    }
    for (int i = 0; i < num_keys; i += kTile) add_unit<kRows>(t, s.scores + i, first + i, left - i, s);
  }
  for (int r = 0; r < kRows; ++r) {
    float* out = head_of(t.chunk.out, t, t.out_stride, row + r);
    for (int d = 0; d < dim; ++d) out[d] = s.sums[r * dim + d] / total[r];
  }
}

template <int kRows>
void attend_last(const Attend& t, int row, uint8_t* memory) {
  if constexpr (kRows > 0) {
    if (t.num_rows - row == kRows) attend_rows<kRows>(t, row, memory);
    else attend_last<kRows - 1>(t, row, memory);
  }
}

void attend_chunk(const Attend& t, uint8_t* memory) {
  int row = 0;
  for (; row + kRowsTogether <= t.num_rows; row += kRowsTogether) attend_rows<kRowsTogether>(t, row, memory);
  attend_last<kRowsTogether - 1>(t, row, memory);
}

void attend(const Attend& t, uint8_t* scratch) {
  for (int i = 0; i < t.num_chunks; ++i)
    for (int head = 0; head < t.heads_at_once; ++head) attend_chunk(t.part(i).head(head), scratch);
}

}  // namespace
