// Products on AVX-512 with 8-bit dot products, for the files that are compiled for it.
#include <immintrin.h>

#include "bytes.inl"

namespace {

PENSTOCK_INLINE __m512 load_halves(const uint16_t* from) {
  return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)from));
}

template <int kBits, bool kHasMinimum>
constexpr int kBlockBytes = kBits == 4 ? 320 : kHasMinimum ? 576 : 544;

PENSTOCK_INLINE void prefetch(const uint8_t* from, int bytes) {
  for (int i = 0; i < bytes; i += 64) _mm_prefetch((const char*)from + i, _MM_HINT_T0);
}

// The eight lines of a block as unsigned bytes; 8-bit values are raised by 128.
template <int kBits>
PENSTOCK_INLINE void unpack_lines(const uint8_t* block, __m512i lines[8]) {
  if (kBits == 8) {
    for (int i = 0; i < 8; ++i)
      lines[i] = _mm512_xor_si512(_mm512_loadu_si512(block + i * 64), _mm512_set1_epi8((char)0x80));
  } else {
    const __m512i low = _mm512_set1_epi8(15);
    for (int i = 0; i < 4; ++i) {
      const __m512i both = _mm512_loadu_si512(block + i * 64);
      lines[i] = _mm512_and_si512(both, low);
      lines[i + 4] = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
    }
  }
}

constexpr int kRowsAbreast = 4;  // whose sums take turns: one alone would wait for each of its steps

// Adds to the sums of some rows, from `lane` on, what a block of weights gives.
template <int kBits, bool kHasMinimum, int kRows>
PENSTOCK_INLINE void add_block(const Rows& x, size_t at, const __m512i lines[8], __m512 scale, __m512 least, __m512* sums) {
  const int8_t* q = (const int8_t*)x.values + at * 2 * kGroup;
  __m512i high[kRows], low[kRows];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    high[r] = _mm512_setzero_si512();
    low[r] = kBits == 8 ? _mm512_set1_epi32(x.totals[at + r] * -128) : _mm512_setzero_si512();
  }
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i)
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      int32_t highs, lows;
      std::memcpy(&highs, q + r * 2 * kGroup + i * 4, 4);
      std::memcpy(&lows, q + r * 2 * kGroup + kGroup + i * 4, 4);
      high[r] = _mm512_dpbusd_epi32(high[r], lines[i], _mm512_set1_epi32(highs));
      low[r] = _mm512_dpbusd_epi32(low[r], lines[i], _mm512_set1_epi32(lows));
    }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    const __m512 dots = _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(high[r], kLowBits), low[r]));
    sums[r] = _mm512_fmadd_ps(_mm512_mul_ps(dots, _mm512_set1_ps(x.scales[at + r])), scale, sums[r]);
    if (kHasMinimum) sums[r] = _mm512_fmadd_ps(least, _mm512_set1_ps(x.sums[at + r]), sums[r]);
  }
}

template <int kBits, bool kHasMinimum, int kRows>
PENSTOCK_INLINE void multiply_rows(const Rows& x, const uint8_t* block, int row_tile, int lane, float* out) {
  constexpr int kBytes = kBlockBytes<kBits, kHasMinimum>;
  constexpr int kAhead = kBytes * (kBits == 4 ? 8 : 5);
  constexpr int kFirst = kRows > kRowsAbreast ? (kRows + 1) / 2 : kRows;
  __m512 sums[kRows];
  for (int r = 0; r < kRows; ++r) sums[r] = _mm512_setzero_ps();
  size_t at = (size_t)row_tile * x.num_groups * kTile + lane;
  for (int g = 0; g < x.num_groups; ++g, block += kBytes, at += kTile) {
    __m512i lines[8];
    unpack_lines<kBits>(block, lines);
    prefetch(block + kAhead, kBytes);
    const uint16_t* scales = (const uint16_t*)(block + (kBits == 4 ? 256 : 512));
    const __m512 scale = load_halves(scales);
    const __m512 least = kHasMinimum ? load_halves(scales + kTile) : scale;
    add_block<kBits, kHasMinimum, kFirst>(x, at, lines, scale, least, sums);
    if constexpr (kRows > kFirst)
      add_block<kBits, kHasMinimum, kRows - kFirst>(x, at + kFirst, lines, scale, least, sums + kFirst);
  }
  for (int r = 0; r < kRows; ++r) _mm512_storeu_ps(out + r * kBlockStride, sums[r]);
}

constexpr int kMostRowsAbreast = 2 * kRowsAbreast;

template <int kBits, bool kHasMinimum, int kRows = kMostRowsAbreast - 1>
PENSTOCK_INLINE void multiply_last(const Rows& x, const uint8_t* block, int row_tile, int lane, int left, float* out) {
  if constexpr (kRows > 0) {
    if (left == kRows) multiply_rows<kBits, kHasMinimum, kRows>(x, block, row_tile, lane, out);
    else multiply_last<kBits, kHasMinimum, kRows - 1>(x, block, row_tile, lane, left, out);
  }
}

// Up to 16 rows of one output tile.
template <int kBits, bool kHasMinimum>
void multiply_tile(const Rows& x, const uint8_t* block, int row_tile, int num_rows, float* out) {
  int lane = 0;
  for (; lane + kMostRowsAbreast <= num_rows; lane += kMostRowsAbreast)
    multiply_rows<kBits, kHasMinimum, kMostRowsAbreast>(x, block, row_tile, lane, out + lane * kBlockStride);
  multiply_last<kBits, kHasMinimum>(x, block, row_tile, lane, num_rows - lane, out + lane * kBlockStride);
}

// Sums of some rows of bytes over one tile of outputs. Weights are raised by 128, which the rows' totals take off again.
template <int kRows>
PENSTOCK_INLINE void dot_rows(const int8_t* q, const uint8_t* w, const int32_t* totals, int num_chunks, int32_t* out) {
  constexpr int kChains = kRows < kRowsAbreast ? kRowsAbreast / kRows : 1;
  __m512i sums[kRows][kChains];
  for (int r = 0; r < kRows; ++r)
    for (int c = 0; c < kChains; ++c) sums[r][c] = c ? _mm512_setzero_si512() : _mm512_set1_epi32(totals[r] * -128);
  for (int chunk = 0; chunk < num_chunks; ++chunk, q += kTile * 64, w += kTile * 64)
#pragma GCC unroll 16
    for (int i = 0; i < kTile; ++i) {
      _mm_prefetch((const char*)w + 4096 + i * 64, _MM_HINT_T0);
      const __m512i line = _mm512_xor_si512(_mm512_loadu_si512(w + i * 64), _mm512_set1_epi8((char)0x80));
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        int32_t four;
        std::memcpy(&four, q + r * 64 + i * 4, sizeof four);
        sums[r][i % kChains] = _mm512_dpbusd_epi32(sums[r][i % kChains], line, _mm512_set1_epi32(four));
      }
    }
  for (int r = 0; r < kRows; ++r) {
    for (int c = 1; c < kChains; ++c) sums[r][0] = _mm512_add_epi32(sums[r][0], sums[r][c]);
    _mm512_store_si512(out + r * kTile, sums[r][0]);
  }
}

template <int kRows = kMostRowsAbreast>
PENSTOCK_INLINE void dot_up_to(const int8_t* q, const uint8_t* w, const int32_t* totals, int num_chunks, int left,
                               int32_t* out) {
  if constexpr (kRows > 0) {
    if (left >= kRows) dot_rows<kRows>(q, w, totals, num_chunks, out);
    else dot_up_to<kRows - 1>(q, w, totals, num_chunks, left, out);
  }
}

void multiply_w8a8(const Rows& x, const Matrix& m, int first_tile, int num_tiles, Sink sink) {
  const int num_chunks = x.num_chunks();
  multiply_bytes(x, m, first_tile, num_tiles, sink,
                 [&](const int8_t* q, const uint8_t* w, const int32_t* totals, int num_rows, int32_t* out) {
                   for (int r = 0; r < num_rows; r += kMostRowsAbreast)
                     dot_up_to(q + r * 64, w, totals + r, num_chunks, num_rows - r, out + r * kTile);
                 });
}

void multiply_vnni(const Rows& x, const Matrix& m, int first_tile, int num_tiles, uint8_t*, Sink sink) {
  if (x.number == Number::kByte) return multiply_w8a8(x, m, first_tile, num_tiles, sink);
  alignas(64) float values[kTile * kBlockStride];
  const size_t tile_bytes = (size_t)x.num_groups * block_bytes(m);
  const auto tile_of = m.bits == 4 ? multiply_tile<4, true>
                       : m.has_minimum ? multiply_tile<8, true> : multiply_tile<8, false>;
  for (int row_tile = 0; row_tile < x.num_tiles(); ++row_tile) {
    const int left = x.count - row_tile * kTile, num_rows = left < kTile ? left : kTile;
    for (int tile = 0; tile < num_tiles; ++tile)
      tile_of(x, m.data + (first_tile + tile) * tile_bytes, row_tile, num_rows, values + tile * kTile);
    sink.take(sink.context, Block{row_tile, num_rows, first_tile, num_tiles, values});
  }
}

}  // namespace
