// Matrix tiles in plain code, for machines that lack them: so that tests run the code that is written for tiles anywhere. Never
// chosen by itself. Names are those of the compiler's intrinsics, which this replaces.
#pragma once
#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace {

struct EmulatedTile {
  int num_rows = 0, num_bytes = 0;  // a row
  alignas(64) uint8_t bytes[16][64];
};

thread_local EmulatedTile emulated_tiles[8];

void emulated_loadconfig(const void* shapes) {
  for (int i = 0; i < 8; ++i) {
    uint16_t num_bytes;
    std::memcpy(&num_bytes, (const uint8_t*)shapes + 16 + 2 * i, sizeof num_bytes);
    emulated_tiles[i].num_rows = ((const uint8_t*)shapes)[48 + i];
    emulated_tiles[i].num_bytes = num_bytes;
    std::memset(emulated_tiles[i].bytes, 0, sizeof emulated_tiles[i].bytes);
  }
}

void emulated_zero(int tile) { std::memset(emulated_tiles[tile].bytes, 0, sizeof emulated_tiles[tile].bytes); }

void emulated_load(int tile, const void* from, int64_t stride) {
  EmulatedTile& t = emulated_tiles[tile];
  emulated_zero(tile);
  for (int r = 0; r < t.num_rows; ++r) std::memcpy(t.bytes[r], (const uint8_t*)from + r * stride, t.num_bytes);
}

void emulated_store(int tile, void* to, int64_t stride) {
  const EmulatedTile& t = emulated_tiles[tile];
  for (int r = 0; r < t.num_rows; ++r) std::memcpy((uint8_t*)to + r * stride, t.bytes[r], t.num_bytes);
}

// sums [rows][columns] += rows [rows][quads of bytes] times columns [quads][columns][4]; the left bytes signed or not.
template <typename Left>
void emulated_dot_bytes(int sums, int left, int right) {
  EmulatedTile &c = emulated_tiles[sums], &a = emulated_tiles[left], &b = emulated_tiles[right];
  for (int r = 0; r < c.num_rows; ++r) {
    __m512i sum = _mm512_load_si512(c.bytes[r]);
    for (int k = 0; k < a.num_bytes / 4; ++k) {
      const __m512i quads = _mm512_load_si512(b.bytes[k]);
      const __m512i columns[4] = {_mm512_srai_epi32(_mm512_slli_epi32(quads, 24), 24),
                                  _mm512_srai_epi32(_mm512_slli_epi32(quads, 16), 24),
                                  _mm512_srai_epi32(_mm512_slli_epi32(quads, 8), 24), _mm512_srai_epi32(quads, 24)};
      for (int i = 0; i < 4; ++i)
        sum = _mm512_add_epi32(sum, _mm512_mullo_epi32(columns[i], _mm512_set1_epi32((Left)a.bytes[r][4 * k + i])));
    }
    _mm512_store_si512(c.bytes[r], sum);
  }
}

void emulated_dot_bf16(int sums, int left, int right) {
  EmulatedTile &c = emulated_tiles[sums], &a = emulated_tiles[left], &b = emulated_tiles[right];
  for (int r = 0; r < c.num_rows; ++r) {
    __m512 sum = _mm512_load_ps(c.bytes[r]);
    for (int k = 0; k < a.num_bytes / 4; ++k) {
      const __m512i pairs = _mm512_load_si512(b.bytes[k]);
      int32_t both;
      std::memcpy(&both, a.bytes[r] + 4 * k, sizeof both);
      const __m512i ours = _mm512_set1_epi32(both), upper = _mm512_set1_epi32((int)0xffff0000);
      sum = _mm512_fmadd_ps((__m512)_mm512_slli_epi32(ours, 16), (__m512)_mm512_slli_epi32(pairs, 16), sum);
      sum = _mm512_fmadd_ps((__m512)_mm512_and_si512(ours, upper), (__m512)_mm512_and_si512(pairs, upper), sum);
    }
    _mm512_store_ps(c.bytes[r], sum);
  }
}

// Thirty-two floats as bf16, rounded to nearest even: `low` first.
__m512i emulated_pair_bf16(__m512 high, __m512 low) {
  alignas(64) uint32_t from[32];
  alignas(64) uint16_t to[32];
  _mm512_store_ps((float*)from, low);
  _mm512_store_ps((float*)from + 16, high);
  for (int i = 0; i < 32; ++i) {
    const bool is_number = (from[i] & 0x7fffffff) <= 0x7f800000;
    to[i] = (uint16_t)((is_number ? from[i] + 0x7fff + ((from[i] >> 16) & 1) : from[i] | 0x400000) >> 16);
  }
  return _mm512_load_si512(to);
}

}  // namespace

#undef _tile_loadd
#undef _tile_stream_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbssd
#undef _tile_dpbusd
#undef _tile_dpbf16ps
#define _tile_loadconfig emulated_loadconfig
#define _tile_release() ((void)0)
#define _tile_zero emulated_zero
#define _tile_loadd emulated_load
#define _tile_stream_loadd emulated_load
#define _tile_stored emulated_store
#define _tile_dpbssd emulated_dot_bytes<int8_t>
#define _tile_dpbusd emulated_dot_bytes<uint8_t>
#define _tile_dpbf16ps emulated_dot_bf16
#define _mm512_cvtne2ps_pbh emulated_pair_bf16
