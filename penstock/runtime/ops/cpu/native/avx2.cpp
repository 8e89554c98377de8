// Kernels for x86-64 with AVX2, FMA and half-precision conversion.
#if defined(__x86_64__)
#pragma GCC target("avx2,fma,f16c")
#include <immintrin.h>

#include "attention.inl"
#include "bytes.inl"

namespace {

PENSTOCK_INLINE __m256i load_bytes(const uint8_t* from) { return _mm256_loadu_si256((const __m256i*)from); }

PENSTOCK_INLINE __m256 load_halves(const uint16_t* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)from));
}

// Adds the products of 8 outputs x 4 inputs. `weights` of 4 bits are never negative; those of 8 bits lend their sign to x.
template <int kBits>
PENSTOCK_INLINE __m256i dot(__m256i sums, __m256i weights, __m256i x) {
  const __m256i pairs = kBits == 4 ? _mm256_maddubs_epi16(weights, x)
                                   : _mm256_maddubs_epi16(_mm256_abs_epi8(weights), _mm256_sign_epi8(x, weights));
  return _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

template <int kBits>
PENSTOCK_INLINE __m256i weights_at(const uint8_t* block, int line, int half) {
  if (kBits == 8) return load_bytes(block + line * 64 + half * 32);
  const __m256i both = load_bytes(block + line % 4 * 64 + half * 32);
  return _mm256_and_si256(line < 4 ? both : _mm256_srli_epi16(both, 4), _mm256_set1_epi8(15));
}

template <int kBits, bool kHasMinimum>
void multiply_row(const Rows& x, const Matrix& m, const uint8_t* block, int row_tile, int lane, float* out) {
  const int bytes = block_bytes(m);
  __m256 sums[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
  for (int g = 0; g < x.num_groups; ++g, block += bytes) {
    const size_t at = ((size_t)row_tile * x.num_groups + g) * kTile + lane;
    const int8_t* q = (const int8_t*)x.values + at * 2 * kGroup;
    const uint16_t* scales = scales_of(m, block);
    for (int half = 0; half < 2; ++half) {
      __m256i highs = _mm256_setzero_si256(), lows = highs;
      for (int line = 0; line < 8; ++line) {
        int32_t high, low;
        std::memcpy(&high, q + line * 4, sizeof high);
        std::memcpy(&low, q + kGroup + line * 4, sizeof low);
        const __m256i weights = weights_at<kBits>(block, line, half);
        highs = dot<kBits>(highs, weights, _mm256_set1_epi32(high));
        lows = dot<kBits>(lows, weights, _mm256_set1_epi32(low));
      }
      const __m256i dots = _mm256_add_epi32(_mm256_slli_epi32(highs, kLowBits), lows);
      const __m256 scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(dots), _mm256_set1_ps(x.scales[at]));
      sums[half] = _mm256_fmadd_ps(scaled, load_halves(scales + half * 8), sums[half]);
      if (kHasMinimum)
        sums[half] = _mm256_fmadd_ps(load_halves(scales + kTile + half * 8), _mm256_set1_ps(x.sums[at]), sums[half]);
    }
  }
  _mm256_storeu_ps(out, sums[0]);
  _mm256_storeu_ps(out + 8, sums[1]);
}

// Eight outputs of a row at a time.
void multiply_w8a8(const Rows& x, const Matrix& m, int first_tile, int num_tiles, Sink sink) {
  const int num_chunks = x.num_chunks();
  const auto dots = [&](const int8_t* q, const uint8_t* w, const int32_t*, int num_rows, int32_t* out) {
    for (int r = 0; r < num_rows; ++r)
      for (int half = 0; half < 2; ++half) {
        __m256i sums = _mm256_setzero_si256();
        for (int i = 0; i < num_chunks * kTile; ++i) {
          int32_t four;
          std::memcpy(&four, q + (i / kTile * kTile + r) * 64 + i % kTile * 4, sizeof four);
          sums = dot<8>(sums, load_bytes(w + i * 64 + half * 32), _mm256_set1_epi32(four));
        }
        _mm256_storeu_si256((__m256i*)(out + r * kTile + half * 8), sums);
      }
  };
  multiply_bytes(x, m, first_tile, num_tiles, sink, dots);
}

void multiply(const Rows& x, const Matrix& m, int first_tile, int num_tiles, uint8_t*, Sink sink) {
  if (x.number == Number::kByte) return multiply_w8a8(x, m, first_tile, num_tiles, sink);
  alignas(64) float values[kTile * kBlockStride];
  const size_t tile_bytes = (size_t)x.num_groups * block_bytes(m);
  const auto row = m.bits == 4 ? multiply_row<4, true> : m.has_minimum ? multiply_row<8, true> : multiply_row<8, false>;
  for (int row_tile = 0; row_tile < x.num_tiles(); ++row_tile) {
    const int left = x.count - row_tile * kTile, num_rows = left < kTile ? left : kTile;
    for (int tile = 0; tile < num_tiles; ++tile)
      for (int lane = 0; lane < num_rows; ++lane)
        row(x, m, m.data + (first_tile + tile) * tile_bytes, row_tile, lane,
            values + lane * kBlockStride + tile * kTile);
    sink.take(sink.context, Block{row_tile, num_rows, first_tile, num_tiles, values});
  }
}

void finish() {}

}  // namespace

namespace penstock {
const Kernels kAvx2 = {"avx2", 0,       embed,    norm,  add,    encode, encode_group,
                       gate,   softcap, peak, allow, multiply, place, attend, finish, decode, shrink, expand};
}
#endif
