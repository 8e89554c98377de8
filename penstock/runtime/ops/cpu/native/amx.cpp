// Kernels for x86-64 with matrix tiles (AMX) for 8-bit integers and bf16, and AVX-512 beside them.
//
// Few rows are multiplied with AVX-512, more with 8-bit tiles: both give the same bits, a row's product does not depend on
// the rows beside it. From `bf16_from` rows on the caller may hand over bf16 rows, which are faster still and rounded
// differently.
#if defined(__x86_64__)
#if defined(PENSTOCK_EMULATED_TILES)
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,prefer-vector-width=512")
#include "emulated_tiles.h"
#else
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16,amx-tile,amx-int8,amx-bf16,prefer-vector-width=512")
#define PENSTOCK_AVX512_BF16
#endif
#define PENSTOCK_AVX512
#include "softmax.inl"
#include "vnni.inl"
#include "tiles.inl"
#include "tile_scratch.inl"
#include "bf16_cache.inl"
#include "byte_cache.inl"
#include "bf16_tiles.inl"
#include "byte_tiles.inl"
#include "wide_attention.inl"
#include "tile_attention.inl"

namespace {

constexpr int kTilesFrom = 6;  // rows

// ---- integer tiles: sums 0-3 [rows][16], rows 4-5, weights 6-7
//
// 4-bit weights are small enough to be held twice, times eight for the high bytes and as they are for the low ones, so that
// one tile product does both: rows [rows][32 high, 32 low], weights [16][16][4]. 8-bit weights take two products.

template <int kBits>
void shape_integer(int num_rows) {
  TileShapes shapes;
  for (int i = 0; i < 4; ++i) shapes.set(i, num_rows, 64);
  for (int i = 4; i < 6; ++i) shapes.set(i, num_rows, kBits == 4 ? 2 * kGroup : kGroup);
  for (int i = 6; i < 8; ++i) shapes.set(i, kBits == 4 ? kGroup / 2 : kGroup / 4, 64);
  shapes.apply();
}

// Weights of one output tile: lines ready for the tiles, and scales and minimums as floats [group][2][16].
struct Unpacked {
  const uint8_t* lines;
  const float* scales;
};

template <int kBits, bool kHasMinimum>
PENSTOCK_INLINE Unpacked unpack(const uint8_t* block, int num_groups, uint8_t* scratch) {
  constexpr int kBytes = kBlockBytes<kBits, kHasMinimum>;
  float* scales = (float*)scratch;
  uint8_t* lines = scratch + (size_t)num_groups * 128;
  const uint8_t* from = block;
  for (int g = 0; g < num_groups; ++g, from += kBytes) {
    const uint16_t* halves = (const uint16_t*)(from + (kBits == 4 ? 256 : 512));
    prefetch(from + kBytes * 8, kBytes);
    _mm512_store_ps(scales + g * 32, load_halves(halves));
    if (kHasMinimum) _mm512_store_ps(scales + g * 32 + 16, load_halves(halves + kTile));
    if (kBits == 4) {
      __m512i unpacked[8];
      unpack_lines<4>(from, unpacked);
      for (int i = 0; i < 8; ++i) {
        _mm512_store_si512(lines + g * 1024 + i * 64, _mm512_slli_epi16(unpacked[i], kLowBits));
        _mm512_store_si512(lines + g * 1024 + 512 + i * 64, unpacked[i]);
      }
    }
  }
  return Unpacked{kBits == 4 ? lines : block, scales};
}

// Adds the products of groups `first` .. `end` to the sums in `out`, which the first groups start.
template <int kBits, bool kHasMinimum, int kRows>
PENSTOCK_INLINE void multiply_integer(const Rows& x, const Unpacked& w, int row_tile, int first, int end, float* out) {
  constexpr int kStride = kBits == 4 ? 1024 : kBlockBytes<kBits, kHasMinimum>;
  alignas(64) int32_t dots[4][256];
  const int num_groups = end - first;
  const size_t at = (size_t)row_tile * x.num_groups + first;
  const int8_t* q = (const int8_t*)x.values + at * kTile * 2 * kGroup;
  const float* row_scales = x.scales + at * kTile;
  const float* row_sums = x.sums + at * kTile;
  __m512 sums[kRows];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) sums[r] = first ? _mm512_load_ps(out + r * kBlockStride) : _mm512_setzero_ps();
  // A product is under way while the one before it is scaled and added.
#define PENSTOCK_START(sum, next_sum, row, weight, group)                          \
  _tile_loadd(row, q + (size_t)(group) * 1024, 64);                                \
  _tile_loadd(weight, w.lines + (size_t)(group) * kStride, 64);                    \
  _tile_zero(sum);                                                                 \
  _tile_dpbssd(sum, row, weight);                                                  \
  _tile_stored(sum, dots[sum], 64);                                                \
  if (kBits == 8) {                                                                \
    _tile_loadd(row, q + (size_t)(group) * 1024 + kGroup, 64);                     \
    _tile_zero(next_sum);                                                          \
    _tile_dpbssd(next_sum, row, weight);                                           \
    _tile_stored(next_sum, dots[next_sum], 64);                                    \
  }
  const auto finish_group = [&](int slot, int g) __attribute__((always_inline)) {
    const __m512 scale = _mm512_load_ps(w.scales + g * 32), least = _mm512_load_ps(w.scales + g * 32 + 16);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      __m512i whole = _mm512_load_si512(dots[slot] + r * 16);
      if (kBits == 8)
        whole = _mm512_add_epi32(_mm512_slli_epi32(whole, kLowBits), _mm512_load_si512(dots[slot + 2] + r * 16));
      const __m512 dot = _mm512_mul_ps(_mm512_cvtepi32_ps(whole), _mm512_set1_ps(row_scales[g * kTile + r]));
      sums[r] = _mm512_fmadd_ps(dot, scale, sums[r]);
      if (kHasMinimum) sums[r] = _mm512_fmadd_ps(least, _mm512_set1_ps(row_sums[g * kTile + r]), sums[r]);
    }
  };
  PENSTOCK_START(0, 2, 4, 6, 0)
  if (num_groups > 1) { PENSTOCK_START(1, 3, 5, 7, 1) }
  for (int g = 0; g < num_groups; g += 2) {
    finish_group(0, g);
    if (g + 2 < num_groups) { PENSTOCK_START(0, 2, 4, 6, g + 2) }
    if (g + 1 == num_groups) break;
    finish_group(1, g + 1);
    if (g + 3 < num_groups) { PENSTOCK_START(1, 3, 5, 7, g + 3) }
  }
#undef PENSTOCK_START
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) _mm512_store_ps(out + r * kBlockStride, sums[r]);
}

constexpr int kGroupsAtOnce = 16;   // of one output tile: their lines stay in the nearest cache
constexpr int kRowTilesAtOnce = 4;  // that use those lines before they are unpacked again

// Row tiles `begin` .. `end`, all of kRows rows.
template <int kBits, bool kHasMinimum, int kRows>
void multiply_tiles(const Rows& x, const Matrix& m, int begin, int end, int first_tile, int num_tiles, uint8_t* scratch,
                    float* values) {
  const size_t tile_bytes = (size_t)x.num_groups * block_bytes(m);
  shape_integer<kBits>(kRows);
  for (int tile = 0; tile < num_tiles; ++tile)
    for (int first = 0; first < x.num_groups; first += kGroupsAtOnce) {
      const int last = first + kGroupsAtOnce < x.num_groups ? first + kGroupsAtOnce : x.num_groups;
      const uint8_t* block = m.data + (first_tile + tile) * tile_bytes + (size_t)first * block_bytes(m);
      const Unpacked weights = unpack<kBits, kHasMinimum>(block, last - first, scratch);
      for (int row_tile = begin; row_tile < end; ++row_tile)
        multiply_integer<kBits, kHasMinimum, kRows>(
            x, weights, row_tile, first, last, values + (row_tile - begin) * kTile * kBlockStride + tile * kTile);
    }
}

template <int kBits, bool kHasMinimum>
void multiply_all(const Rows& x, const Matrix& m, int first_tile, int num_tiles, uint8_t* scratch, Sink sink) {
  alignas(64) float values[kRowTilesAtOnce * kTile * kBlockStride];
  for (int begin = 0; begin < x.num_tiles(); begin += kRowTilesAtOnce) {
    const int left = x.num_tiles() - begin, count = left < kRowTilesAtOnce ? left : kRowTilesAtOnce;
    if (count == 1 && x.count - begin * kTile <= kTile / 2)
      multiply_tiles<kBits, kHasMinimum, kTile / 2>(x, m, begin, begin + 1, first_tile, num_tiles, scratch, values);
    else
      multiply_tiles<kBits, kHasMinimum, kTile>(x, m, begin, begin + count, first_tile, num_tiles, scratch, values);
    for (int i = 0; i < count; ++i) {
      const int rows = x.count - (begin + i) * kTile;
      sink.take(sink.context, Block{begin + i, rows < kTile ? rows : kTile, first_tile, num_tiles,
                                    values + i * kTile * kBlockStride});
    }
  }
}

void multiply(const Rows& x, const Matrix& m, int first_tile, int num_tiles, uint8_t* scratch, Sink sink) {
  if (x.number == Number::kBf16) {
    const auto run = m.bits == 4 ? multiply_bf16<4, true>
                     : m.has_minimum ? multiply_bf16<8, true> : multiply_bf16<8, false>;
    run(x, m, first_tile, num_tiles, scratch, sink);
  } else if (x.number == Number::kByte && x.count >= kTilesFrom) {
    multiply_byte_tiles(x, m, first_tile, num_tiles, sink);
  } else if (x.count < kTilesFrom) {
    multiply_vnni(x, m, first_tile, num_tiles, scratch, sink);
  } else {
    const auto run = m.bits == 4 ? multiply_all<4, true>
                     : m.has_minimum ? multiply_all<8, true> : multiply_all<8, false>;
    run(x, m, first_tile, num_tiles, scratch, sink);
  }
}

void finish() { _tile_release(); }

}  // namespace

namespace penstock {
#if defined(PENSTOCK_EMULATED_TILES)
const Kernels kEmulatedAmx = {"amx-emulated", 9, embed, norm, add, encode, encode_group, gate, softcap, peak, allow, multiply, place, attend,
                              finish, decode, shrink, expand};
#else
const Kernels kAmx = {"amx", 9,      embed,    norm,  add,    encode, encode_group,
                      gate,  softcap, peak, allow, multiply, place, attend, finish, decode, shrink, expand};
#endif
}
#endif
