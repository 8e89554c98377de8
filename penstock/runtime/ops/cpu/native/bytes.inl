// Rows of bytes times matrices with a scale a row (W8A8). Sums are whole numbers and are scaled once: every instruction set gives the
// bits of the definition.
#include "elementwise.inl"

namespace {

PENSTOCK_INLINE size_t chunk_bytes(const Rows& x) { return (size_t)x.num_chunks() * kTile * 64; }

// The outputs of one tile of rows and one of outputs: scaled, laid down or added.
PENSTOCK_INLINE void put_dots(const int32_t* dots, int num_rows, const float* scales, const float* row_scales, float* to,
                              int64_t stride, bool adds) {
  const Floats scale = load(scales);
  for (int r = 0; r < num_rows; ++r) {
    Ints whole;
    std::memcpy(&whole, dots + r * kTile, sizeof whole);
    Floats values = to_floats(whole) * scale * row_scales[r];
    if (adds) {
      asm("" : "+m"(values));  // product and sum are rounded apart, as where others add them
      values += load(to + r * stride);
    }
    store(to + r * stride, values);
  }
}

// `dots(rows, weights, totals, num_rows, out)` makes the sums [rows][16] of one tile of each.
template <typename Dots>
PENSTOCK_INLINE void multiply_bytes(const Rows& x, const Matrix& m, int first_tile, int num_tiles, Sink sink, Dots dots) {
  alignas(64) float values[kTile * kBlockStride];
  alignas(64) int32_t sums[kTile * kTile];
  for (int end = first_tile + num_tiles; first_tile < end; first_tile += kMaxTiles) {
    const int tiles = end - first_tile < kMaxTiles ? end - first_tile : kMaxTiles;
    for (int row_tile = 0; row_tile < x.num_tiles(); ++row_tile) {
      const int row = row_tile * kTile, num_rows = x.count - row < kTile ? x.count - row : kTile;
      for (int tile = 0; tile < tiles; ++tile) {
        dots((const int8_t*)x.values + row_tile * chunk_bytes(x), m.data + (first_tile + tile) * chunk_bytes(x),
             x.totals + row, num_rows, sums);
        put_dots(sums, num_rows, m.row_scales + (first_tile + tile) * kTile, x.scales + row, values + tile * kTile,
                 kBlockStride, false);
      }
      sink.take(sink.context, Block{row_tile, num_rows, first_tile, tiles, values});
    }
  }
}

}  // namespace
