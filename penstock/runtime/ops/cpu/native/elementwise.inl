// Everything but products and attention, for whichever instruction set includes this.
#include "kernels.h"
#include "vector.h"

namespace {

using namespace penstock;

const uint16_t* scales_of(const Matrix& m, const uint8_t* block) {
  return (const uint16_t*)(block + (m.bits == 4 ? 256 : 512));
}

void embed(const Matrix& m, int64_t row, float scale, float* out) {
  const int bytes = block_bytes(m), num_groups = m.num_columns / kGroup, lane = row % kTile;
  const uint8_t* block = m.data + (row / kTile) * num_groups * bytes;
  for (int g = 0; g < num_groups; ++g, block += bytes) {
    const uint16_t* scales = scales_of(m, block);
    const float s = from_half(scales[lane]);
    const float least = m.bits == 4 || m.has_minimum ? from_half(scales[kTile + lane]) : 0.0f;
    for (int k = 0; k < kGroup; ++k) {
      const int line = k / 4, place = lane * 4 + k % 4;
      const int q = m.bits == 8 ? (int8_t)block[line * 64 + place] : (block[line % 4 * 64 + place] >> (line / 4 * 4)) & 15;
      out[g * kGroup + k] = ((float)q * s + least) * scale;
    }
  }
}

float mean_square(const float* x, int size) {
  Floats squares = {};
  int i = 0;
  for (; i + 16 <= size; i += 16) squares += load(x + i) * load(x + i);
  float rest = 0.0f;
  for (; i < size; ++i) rest += x[i] * x[i];
  return (sum(squares) + rest) / (float)size;
}

void norm(const float* x, const float* weight, float eps, int size, float* out) {
  const float factor = 1.0f / __builtin_sqrtf(mean_square(x, size) + eps);
  for (int i = 0; i < size; ++i) out[i] = x[i] * factor * weight[i];
}

void add(const float* x, const float* weight, float eps, int size, float* stream) {
  if (!weight) {
    for (int i = 0; i < size; ++i) stream[i] += x[i];
    return;
  }
  const float factor = 1.0f / __builtin_sqrtf(mean_square(x, size) + eps);
  for (int i = 0; i < size; ++i) stream[i] += x[i] * factor * weight[i];
}

struct FloatPair {
  Floats first, second;
};

// Thirty-two numbers in bf16, those of the two vectors side by side.
PENSTOCK_INLINE FloatPair widen_pairs(const uint16_t* from) {
  Bits bits;
  std::memcpy(&bits, from, sizeof bits);
  return {(Floats)(bits << 16), (Floats)(bits & 0xffff0000u)};
}

#if defined(PENSTOCK_AVX512)
constexpr int kSums = 16;  // vectors that registers have room for, beside what is added to them
#else
constexpr int kSums = 4;
#endif

// Sixteen sums run side by side over the columns, whatever the machine and however many rows: results have one order.
template <int kRows, int kRanks>
PENSTOCK_INLINE void shrink_ranks(const uint16_t* a, const float* const* x, int columns, float* const* out, int k) {
  Floats sums[kRanks][kRows] = {};
  for (int i = 0; i < columns; i += kGroup)
    for (int n = 0; n < kRanks; ++n) {
      const FloatPair weights = widen_pairs(a + (int64_t)(k + n) * columns + i);
      for (int r = 0; r < kRows; ++r) {
        sums[n][r] += load(x[r] + i) * weights.first;
        sums[n][r] += load(x[r] + i + kTile) * weights.second;
      }
    }
  for (int n = 0; n < kRanks; ++n)
    for (int r = 0; r < kRows; ++r) out[r][k + n] = sum(sums[n][r]);
}

template <int kRows>
PENSTOCK_INLINE void shrink_rows(const uint16_t* a, int rank, const float* const* x, int columns, float* const* out) {
  constexpr int kRanks = kSums / kRows < 4 ? kSums / kRows : 4;
  int k = 0;
  for (; k + kRanks <= rank; k += kRanks) shrink_ranks<kRows, kRanks>(a, x, columns, out, k);
  for (; k < rank; ++k) shrink_ranks<kRows, 1>(a, x, columns, out, k);
}

template <int kRows, int kTiles>
PENSTOCK_INLINE void expand_tiles(const uint16_t* b, int rank, const float* const* h, int first, float* const* y) {
  Floats made[kTiles][kRows] = {};
  b += (int64_t)first * rank;
  for (int k = 0; k < rank; k += 2)
    for (int t = 0; t < kTiles; ++t) {
      const FloatPair weights = widen_pairs(b + kTile * (t * rank + k));
      for (int r = 0; r < kRows; ++r) {
        made[t][r] += h[r][k] * weights.first;
        made[t][r] += h[r][k + 1] * weights.second;
      }
    }
  for (int t = 0; t < kTiles; ++t)
    for (int r = 0; r < kRows; ++r) {
      float* to = y[r] + first + t * kTile;
      store(to, load(to) + made[t][r]);
    }
}

template <int kRows>
PENSTOCK_INLINE void expand_rows(const uint16_t* b, int rank, const float* const* h, int count, float* const* y) {
  constexpr int kTiles = kSums / kRows < 2 ? 1 : 2;
  int i = 0;
  for (; i + kTiles * kTile <= count; i += kTiles * kTile) expand_tiles<kRows, kTiles>(b, rank, h, i, y);
  for (; i < count; i += kTile) expand_tiles<kRows, 1>(b, rank, h, i, y);
}

void shrink(const uint16_t* a, int rank, const float* const* x, int num_rows, int columns, float* const* out) {
  if (num_rows == kTogether) return shrink_rows<kTogether>(a, rank, x, columns, out);
  if (num_rows >= 2) shrink_rows<2>(a, rank, x, columns, out);
  if (num_rows % 2) shrink_rows<1>(a, rank, x + num_rows - 1, columns, out + num_rows - 1);
}

void expand(const uint16_t* b, int rank, const float* const* h, int num_rows, int count, float* const* y) {
  if (num_rows == kTogether) return expand_rows<kTogether>(b, rank, h, count, y);
  if (num_rows >= 2) expand_rows<2>(b, rank, h, count, y);
  if (num_rows % 2) expand_rows<1>(b, rank, h + num_rows - 1, count, y + num_rows - 1);
}

PENSTOCK_INLINE void store_digits(Ints q, int8_t* to) {
  const Ints high = (q + (1 << (kLowBits - 1))) >> kLowBits, low = q - (high << kLowBits);
  const Bytes highs = __builtin_convertvector(high, Bytes), lows = __builtin_convertvector(low, Bytes);
  std::memcpy(to, &highs, sizeof highs);
  std::memcpy(to + kGroup, &lows, sizeof lows);
}

// Whole numbers of 8 bits under one scale, sixteen of them at `at(i)`; a number that is not finite spoils the scale.
template <typename At>
PENSTOCK_INLINE float round_bytes(const float* x, int count, Ints& total, At at) {
  Floats most = {}, spoiled = {};
  for (int i = 0; i < count; i += 16) {
    most = maximum(magnitude(load(x + i)), most);
    spoiled += load(x + i) * 0.0f;
  }
  const float peak = largest(most) > 1e-12f ? largest(most) : 1e-12f, inverse = 127.0f / peak;
  for (int i = 0; i < count; i += 16) {
    const Floats v = load(x + i);
    const Ints whole = to_ints(nearest(select(v == v, v * inverse, Floats{})));
    const Bytes bytes = __builtin_convertvector(whole, Bytes);
    std::memcpy(at(i), &bytes, sizeof bytes);
    total += whole;
  }
  return peak / 127.0f + sum(spoiled);
}

void encode_row(const float* x, Rows& rows, int row) {
  const int size = rows.num_groups * kGroup, lane = row % kTile, chunks = rows.num_chunks();
  int8_t* values = (int8_t*)rows.values + ((int64_t)(row / kTile) * chunks * kTile + lane) * 64;
  Ints total = {};
  rows.scales[row] = round_bytes(x, size, total, [&](int i) { return values + i / 64 * kTile * 64 + i % 64; });
  rows.totals[row] = sum(total);
  if (size % 64) std::memset(values + size / 64 * kTile * 64 + kGroup, 0, kGroup);
}

void encode_group(const float* x, Rows& rows, int row, int group) {
  if (rows.number == Number::kByte) {
    std::memcpy(rows.whole_row(row) + group * kGroup, x, sizeof(float) * kGroup);
    return;
  }
  const size_t at = ((size_t)(row / kTile) * rows.num_groups + group) * kTile + row % kTile;
  if (rows.number == Number::kBf16) {
    uint16_t* to = (uint16_t*)rows.values + at * kGroup;
    store_bf16(to, load(x));
    store_bf16(to + 16, load(x + 16));
    return;
  }
  const Floats first = load(x), second = load(x + 16);
  const float most = largest(maximum(magnitude(first), magnitude(second)));
  const float inverse = most > 0.0f ? (float)kMostInteger / most : 0.0f;
  // Not-a-number counts as zero. The selection also keeps product and rounding apart where they could become one fused
  // operation, which rounds differently.
  const Ints a = to_ints(nearest(select(first == first, first * inverse, Floats{})));
  const Ints b = to_ints(nearest(select(second == second, second * inverse, Floats{})));
  int8_t* to = (int8_t*)rows.values + at * 2 * kGroup;
  store_digits(a, to);
  store_digits(b, to + 16);
  // A row that is not finite must come out not finite: rounding would hide it.
  const float spoiled = sum(first * 0.0f + second * 0.0f);
  const int32_t total = sum(a + b);
  rows.scales[at] = most / (float)kMostInteger + spoiled;
  rows.sums[at] = rows.scales[at] * (float)total;
  rows.totals[at] = total;
}

void encode(const float* x, Rows& rows, int row) {
  if (rows.number == Number::kByte) return encode_row(x, rows, row);
  for (int g = 0; g < rows.num_groups; ++g) encode_group(x + g * kGroup, rows, row, g);
}

void decode(const Rows& rows, int row, float* out) {
  if (rows.whole) {
    std::memcpy(out, rows.whole_row(row), sizeof(float) * rows.num_groups * kGroup);
    return;
  }
  for (int group = 0; group < rows.num_groups; ++group, out += kGroup) {
    const size_t at = ((size_t)(row / kTile) * rows.num_groups + group) * kTile + row % kTile;
    for (int i = 0; i < kGroup; i += 16) {
      if (rows.number == Number::kBf16) {
        Halves halves;
        std::memcpy(&halves, (const uint16_t*)rows.values + at * kGroup + i, sizeof halves);
        store(out + i, (Floats)(__builtin_convertvector(halves, Bits) << 16));
      } else {
        Bytes high, low;
        std::memcpy(&high, (const int8_t*)rows.values + at * 2 * kGroup + i, sizeof high);
        std::memcpy(&low, (const int8_t*)rows.values + at * 2 * kGroup + kGroup + i, sizeof low);
        const Ints whole = (__builtin_convertvector(high, Ints) << kLowBits) + __builtin_convertvector(low, Ints);
        store(out + i, rows.scales[at] * to_floats(whole));
      }
    }
  }
}

PENSTOCK_INLINE Floats bent(Floats x, int activation) {
  if (activation == 0) return quotient(x, 1.0f + exponential(-x));
  const Floats inner = 0.7978845608028654f * (x + 0.044715f * x * x * x);
  return 0.5f * x * (1.0f + tangent_hyperbolic(inner));
}

void gate(const Block& block, int activation, Rows& rows, int group) {
  for (int r = 0; r < block.num_rows; ++r) {
    float* gates = block.values + r * kBlockStride;
    for (int i = 0; i < kGroup; i += 16)
      store(gates + i, bent(load(gates + i), activation) * load(gates + kGroup + i));
    encode_group(gates, rows, block.row_tile * kTile + r, group);
  }
}

void softcap(float* x, int count, float cap) {
  int i = 0;
  for (; i + 16 <= count; i += 16) store(x + i, cap * tangent_hyperbolic(load(x + i) / cap));
  for (; i < count; ++i) {
    const Floats bent = cap * tangent_hyperbolic(fill(x[i]) / cap);
    x[i] = bent[0];
  }
}

void peak(const float* x, int count, int place, Peak& peak) {
  int i = 0;
  Floats most = fill(peak.most), spoiled = {};
  for (; i + 16 <= count; i += 16) {
    const Floats v = load(x + i);
    most = maximum(v, most);
    spoiled += v * 0.0f;
  }
  peak.spoiled += sum(spoiled);
  const float raised = largest(most);
  const auto beats = [&](float value, int at) { return value > peak.most || (value == peak.most && at < peak.place); };
  for (int j = 0; beats(raised, place + j) && j < i; ++j)
    if (x[j] == raised) peak.most = raised, peak.place = place + j;
  for (; i < count; ++i) {
    peak.spoiled += x[i] * 0.0f;
    if (beats(x[i], place + i)) peak.most = x[i], peak.place = place + i;
  }
}

void allow(float* x, int count, int place, const uint16_t* bits) {
  const Ints lanes = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1 << 10, 1 << 11, 1 << 12, 1 << 13, 1 << 14, 1 << 15};
  int i = 0;
  for (; i + 16 <= count; i += 16) {
    const int32_t some = bits[(place + i) / 16];
    if (some != 0xffff) store(x + i, select((lanes & some) != 0, load(x + i), fill(kLeast)));
  }
  for (; i < count; ++i)
    if (!(bits[(place + i) / 16] >> (place + i) % 16 & 1)) x[i] = kLeast;
}

void rotate(float* head, const float* cosine, const float* sine, int rotary_dim) {
  const int half = rotary_dim / 2;
  for (int d = 0; d < half; ++d) {
    const float first = head[d], second = head[d + half];
    head[d] = first * cosine[d] - second * sine[d];
    head[d + half] = second * cosine[d] + first * sine[d];
  }
}

float round_head(const float* x, int dim, int8_t* to) {
  Ints total = {};
  return round_bytes(x, dim, total, [&](int d) { return to + d; });
}

// Keys of a unit stand in words of as many numbers as four bytes hold, values in words of as many keys.
template <typename T>
PENSTOCK_INLINE void lay_down(const T* k, const T* v, int dim, int key, T* keys, T* values) {
  constexpr int kWord = 4 / sizeof(T);
  for (int d = 0; d < dim; d += kWord) std::memcpy(keys + d * kTile + key * kWord, k + d, 4);
  values += (size_t)(key / kWord) * dim * kWord + key % kWord;
  for (int d = 0; d < dim; ++d) values[d * kWord] = v[d];
}

void place(const Place& p) {
  const int dim = p.head_dim, units = p.block_size / kTile;
  const int group = p.num_heads / p.num_kv_heads;
  const auto turn = [&](int head, const float* weight) {
    float* numbers = p.qkv + head * dim;
    if (weight) norm(numbers, weight, p.eps, dim, numbers);
    if (p.cosine) rotate(numbers, p.cosine, p.sine, p.rotary_dim);
  };
  for (int head = p.first_kv_head * group; head < p.end_kv_head * group; ++head) turn(head, p.q_norm);
  for (int head = p.first_kv_head; head < p.end_kv_head; ++head) turn(p.num_heads + head, p.k_norm);
  const int64_t block = p.slot / p.block_size;
  const int offset = (int)(p.slot % p.block_size), unit = offset / kTile, key = offset % kTile;
  for (int head = p.first_kv_head; head < p.end_kv_head; ++head) {
    const float* k = p.qkv + (p.num_heads + head) * dim;
    const float* v = k + p.num_kv_heads * dim;
    const size_t at = (size_t)(block * p.block_stride + (head * units + unit) * kTile);
    if (p.key_scales) {
      int8_t whole[2][kMaxHeadDim];
      p.key_scales[at + key] = round_head(k, dim, whole[0]);
      p.value_scales[at + key] = round_head(v, dim, whole[1]);
      lay_down(whole[0], whole[1], dim, key, (int8_t*)p.keys + at * dim, (int8_t*)p.values + at * dim);
    } else {
      uint16_t rounded[2][kMaxHeadDim];
      for (int d = 0; d < dim; d += 16) {
        store_bf16(rounded[0] + d, load(k + d));
        store_bf16(rounded[1] + d, load(v + d));
      }
      lay_down(rounded[0], rounded[1], dim, key, (uint16_t*)p.keys + at * dim, (uint16_t*)p.values + at * dim);
    }
  }
}

}  // namespace
