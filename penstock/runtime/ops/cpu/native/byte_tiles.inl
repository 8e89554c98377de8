// Rows of bytes on matrix tiles: sums 0-3 [16][16], rows 4-5 [16][64], weights 6-7 [16][16][4], which are read as they lie.

namespace {

// One or two tiles of rows by one or two of outputs; a missing one repeats the other.
PENSTOCK_INLINE void add_squares(const int8_t* first, const int8_t* second, const uint8_t* left, const uint8_t* right,
                                 int num_chunks, int32_t (*dots)[kTile * kTile]) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (size_t at = 0; at < (size_t)num_chunks * 1024; at += 1024) {
    _tile_loadd(4, first + at, 64);
    _tile_stream_loadd(6, left + at, 64);
    _tile_dpbssd(0, 4, 6);
    _tile_stream_loadd(7, right + at, 64);
    _tile_dpbssd(1, 4, 7);
    if (!second) continue;
    _tile_loadd(5, second + at, 64);
    _tile_dpbssd(2, 5, 6);
    _tile_dpbssd(3, 5, 7);
  }
  _tile_stored(0, dots[0], 64);
  _tile_stored(1, dots[1], 64);
  if (!second) return;
  _tile_stored(2, dots[2], 64);
  _tile_stored(3, dots[3], 64);
}

void multiply_byte_tiles(const Rows& x, const Matrix& m, int first_tile, int num_tiles, Sink sink) {
  alignas(64) float values[2][kTile * kBlockStride];
  alignas(64) int32_t dots[4][kTile * kTile];
  const size_t step = chunk_bytes(x);
  shape_bf16();
  for (int end = first_tile + num_tiles; first_tile < end; first_tile += kMaxTiles) {
    const int tiles = end - first_tile < kMaxTiles ? end - first_tile : kMaxTiles;
    for (int row_tile = 0; row_tile < x.num_tiles(); row_tile += 2) {
      const int num_row_tiles = x.num_tiles() - row_tile < 2 ? 1 : 2;
      const int8_t* first = (const int8_t*)x.values + row_tile * step;
      for (int tile = 0; tile < tiles; tile += 2) {
        const uint8_t* left = m.data + (first_tile + tile) * step;
        const bool has_right = tile + 1 < tiles;
        add_squares(first, num_row_tiles > 1 ? first + step : nullptr, left, has_right ? left + step : left,
                    x.num_chunks(), dots);
        for (int i = 0; i < 2 * num_row_tiles; ++i) {
          const int row = (row_tile + i / 2) * kTile, column = tile + i % 2;
          if (column == tiles) continue;
          float* to = sink.rows ? sink.rows + row * sink.stride + (first_tile + column) * kTile
                                : values[i / 2] + column * kTile;
          put_dots(dots[i], kTile, m.row_scales + (first_tile + column) * kTile, x.scales + row, to,
                   sink.rows ? sink.stride : kBlockStride, sink.rows && sink.adds);
        }
      }
      for (int i = 0; i < num_row_tiles && !sink.rows; ++i) {
        const int left = x.count - (row_tile + i) * kTile;
        sink.take(sink.context, Block{row_tile + i, left < kTile ? left : kTile, first_tile, tiles, values[i]});
      }
    }
  }
}

}  // namespace
