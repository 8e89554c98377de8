// Kernels for any machine. The product here is the definition of the others: they give the same bits.
#include <cmath>

#include "attention.inl"
#include "bytes.inl"

namespace {

void multiply_row(const Rows& x, const Matrix& m, const uint8_t* block, int row_tile, int lane, float* out) {
  const int bytes = block_bytes(m);
  const bool has_minimum = m.bits == 4 || m.has_minimum;
  float sums[kTile] = {};
  for (int g = 0; g < x.num_groups; ++g, block += bytes) {
    const size_t at = ((size_t)row_tile * x.num_groups + g) * kTile + lane;
    const int8_t* q = (const int8_t*)x.values + at * 2 * kGroup;
    int32_t dots[kTile] = {};
    for (int line = 0; line < 8; ++line)
      for (int i = 0; i < 64; ++i) {
        const int w = m.bits == 8 ? (int8_t)block[line * 64 + i] : (block[line % 4 * 64 + i] >> (line / 4 * 4)) & 15;
        dots[i / 4] += w * (q[line * 4 + i % 4] * (1 << kLowBits) + q[kGroup + line * 4 + i % 4]);
      }
    const uint16_t* scales = scales_of(m, block);
    for (int n = 0; n < kTile; ++n) {
      sums[n] = std::fma((float)dots[n] * x.scales[at], from_half(scales[n]), sums[n]);
      if (has_minimum) sums[n] = std::fma(from_half(scales[kTile + n]), x.sums[at], sums[n]);
    }
  }
  std::memcpy(out, sums, sizeof sums);
}

void multiply(const Rows& x, const Matrix& m, int first_tile, int num_tiles, uint8_t*, Sink sink) {
  const int num_quads = x.num_chunks() * kTile;
  const auto dots = [&](const int8_t* q, const uint8_t* w, const int32_t*, int num_rows, int32_t* out) {
    std::memset(out, 0, sizeof(int32_t) * kTile * kTile);
    for (int r = 0; r < num_rows; ++r)
      for (int i = 0; i < num_quads * 64; ++i)
        out[r * kTile + i % 64 / 4] += (int8_t)w[i] * q[(i / 1024 * kTile + r) * 64 + i % 1024 / 64 * 4 + i % 4];
  };
  if (x.number == Number::kByte) return multiply_bytes(x, m, first_tile, num_tiles, sink, dots);
  alignas(64) float values[kTile * kBlockStride];
  const size_t tile_bytes = (size_t)x.num_groups * block_bytes(m);
  for (int row_tile = 0; row_tile < x.num_tiles(); ++row_tile) {
    const int left = x.count - row_tile * kTile, num_rows = left < kTile ? left : kTile;
    for (int tile = 0; tile < num_tiles; ++tile)
      for (int lane = 0; lane < num_rows; ++lane)
        multiply_row(x, m, m.data + (first_tile + tile) * tile_bytes, row_tile, lane,
                     values + lane * kBlockStride + tile * kTile);
    sink.take(sink.context, Block{row_tile, num_rows, first_tile, num_tiles, values});
  }
}

void finish() {}

}  // namespace

namespace penstock {
const Kernels kPortable = {"portable", 0,    embed,   norm,     add,   encode, encode_group,
                           gate,       softcap, peak, allow, multiply, place, attend, finish, decode, shrink, expand};
}
