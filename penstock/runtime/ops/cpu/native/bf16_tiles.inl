// Products of bf16 rows with packed weights, on matrix tiles: sums 0-3, rows 4-5 [16][32], weights 6-7 [16][16][2].
//
// Tiles are multiplied beside the vector units only as long as their instructions keep coming: widening and gating are dealt
// out in small pieces between the tiles.

namespace {

void shape_bf16() {
  TileShapes shapes;
  for (int i = 0; i < 8; ++i) shapes.set(i, kTile, 64);
  shapes.apply();
}

// A block as bf16 [16 input pairs][16 outputs][2].
//
// The two numbers of a pair become neighbours before anything else: each output's four bytes are doubled, and even and odd
// lanes turn another one of them to the top of a float's fraction. Beneath the right exponent that is 16 + q (of 4 bits) or
// 256 + 128 + q (of 8), with no conversion; the offset is taken off with the minimum.
template <int kBits, bool kHasMinimum>
PENSTOCK_INLINE void widen(const uint8_t* block, int first_line, int end_line, uint16_t* to) {
  constexpr int kAt = kBits == 4 ? 19 : 15;
  const uint16_t* halves = (const uint16_t*)(block + (kBits == 4 ? 256 : 512));
  const __m512 scale = load_halves(halves), least = kHasMinimum ? load_halves(halves + kTile) : _mm512_setzero_ps();
  const __m512 offset = _mm512_fnmadd_ps(scale, _mm512_set1_ps(kBits == 4 ? 16.0f : 384.0f), least);
  const __m512i twice[2] = {_mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0),
                            _mm512_set_epi32(15, 15, 14, 14, 13, 13, 12, 12, 11, 11, 10, 10, 9, 9, 8, 8)};
  const __m512 scales[2] = {_mm512_permutexvar_ps(twice[0], scale), _mm512_permutexvar_ps(twice[1], scale)};
  const __m512 offsets[2] = {_mm512_permutexvar_ps(twice[0], offset), _mm512_permutexvar_ps(twice[1], offset)};
  const __m512i fraction = _mm512_set1_epi32(kBits == 4 ? 0x00780000 : 0x007f8000);
  const __m512i exponent = _mm512_set1_epi32(kBits == 4 ? 0x41800000 : 0x43800000);
  const __m512i odd = _mm512_set1_epi64((int64_t)8 << 32);
#pragma GCC unroll 8
  for (int line = first_line; line < end_line; ++line) {
    __m512i bytes = _mm512_loadu_si512(block + line * 64);
    if (kBits == 8) bytes = _mm512_xor_si512(bytes, _mm512_set1_epi8((char)0x80));
    const __m512i doubled[2] = {_mm512_permutexvar_epi32(twice[0], bytes), _mm512_permutexvar_epi32(twice[1], bytes)};
#pragma GCC unroll 4
    for (int turn = 0; turn < (kBits == 4 ? 4 : 2); ++turn) {
      const int upper = turn / 2, pair = turn % 2;
      const __m512i distance = _mm512_add_epi32(odd, _mm512_set1_epi32((16 * pair + 4 * upper - kAt) & 31));
      __m512 w[2];
      for (int i = 0; i < 2; ++i) {
        const __m512i turned = _mm512_rorv_epi32(doubled[i], distance);
        const __m512i number = _mm512_ternarylogic_epi32(turned, fraction, exponent, 0xea);  // (a & b) | c
        w[i] = _mm512_fmadd_ps(_mm512_castsi512_ps(number), scales[i], offsets[i]);
      }
      _mm512_store_si512(to + ((line + 4 * upper) * 2 + pair) * 32, (__m512i)_mm512_cvtne2ps_pbh(w[1], w[0]));
    }
  }
}

template <int kBits>
constexpr int kLines = kBits == 4 ? 4 : 8;

template <int kBits, bool kHasMinimum>
PENSTOCK_INLINE void widen(const uint8_t* block, uint16_t* to) {
  widen<kBits, kHasMinimum>(block, 0, kLines<kBits>, to);
}

// One group of one or two tiles of rows by two of outputs; a missing one of outputs repeats the other. Weights that only pass
// by should not push the rows out of the nearest cache.
template <bool kPassing>
PENSTOCK_INLINE void add_square(const uint16_t* first, const uint16_t* second, const uint16_t* left,
                                const uint16_t* right) {
  _tile_loadd(4, first, 64);
  if (kPassing)
    _tile_stream_loadd(6, left, 64);
  else
    _tile_loadd(6, left, 64);
  _tile_dpbf16ps(0, 4, 6);
  if (kPassing)
    _tile_stream_loadd(7, right, 64);
  else
    _tile_loadd(7, right, 64);
  _tile_dpbf16ps(1, 4, 7);
  if (!second) return;
  _tile_loadd(5, second, 64);
  _tile_dpbf16ps(2, 5, 6);
  _tile_dpbf16ps(3, 5, 7);
}

// Two tiles of rows by two of outputs on their way: where they come from, if they are added to something, and go to. Of
// missing tiles nothing is kept.
struct Square {
  float* first;   // of the first tile of rows; the right tile of outputs stands 16 floats further
  float* second;  // of the second tile of rows, or null
  int64_t stride;
  bool has_right;
  bool adds;

  __attribute__((always_inline)) void start() const {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    if (!adds) return;
    _tile_loadd(0, first, stride * 4);
    if (has_right) _tile_loadd(1, first + kTile, stride * 4);
    if (second) _tile_loadd(2, second, stride * 4);
    if (second && has_right) _tile_loadd(3, second + kTile, stride * 4);
  }

  __attribute__((always_inline)) void store() const {
    _tile_stored(0, first, stride * 4);
    if (has_right) _tile_stored(1, first + kTile, stride * 4);
    if (second) _tile_stored(2, second, stride * 4);
    if (second && has_right) _tile_stored(3, second + kTile, stride * 4);
  }
};

// The outputs of one or two tiles of rows, from `first_tile` on: laid down where the sink says, or handed on by slices. Gating
// is done row by row, while the tiles of the next slice are multiplied.
struct Outputs {
  const Rows& x;
  const Sink& sink;
  float (*values)[kTile * kBlockStride];  // [two slices x two tiles of rows]
  int first_tile = 0;
  int num_tiles = 0;
  int slice = 0;
  const float* gates = nullptr;
  uint16_t* gated = nullptr;
  int gated_row = 0, num_gated_rows = 0;

  __attribute__((always_inline)) Square square(int row_tile, int num_row_tiles, int tile) const {
    const bool has_right = tile + 1 < num_tiles;
    if (sink.rows) {
      float* at = sink.rows + (int64_t)row_tile * kTile * sink.stride + (int64_t)(first_tile + tile) * kTile;
      return Square{at, num_row_tiles > 1 ? at + kTile * sink.stride : nullptr, sink.stride, has_right, sink.adds};
    }
    const int column = tile % kMaxTiles * kTile;
    return Square{values[slice] + column, values[slice + 1] + column, kBlockStride, true, false};
  }

  // The pair of output tiles at `tile` is done: was it the last of a slice?
  void hand_on(int row_tile, int num_row_tiles, int tile) {
    if (sink.rows || (tile + 2 < num_tiles && (tile + 2) % kMaxTiles)) return;
    const int from = tile / kMaxTiles * kMaxTiles, width = num_tiles - from < kMaxTiles ? num_tiles - from : kMaxTiles;
    if (sink.gated) {
      finish_gating();
      const size_t group = (size_t)row_tile * sink.gated->num_groups + (first_tile + from) / kMaxTiles;
      gates = values[slice];
      gated = (uint16_t*)sink.gated->values + group * kTile * kGroup;
      gated_row = 0;
      num_gated_rows = num_row_tiles * kTile;  // those past the last mean nothing
      slice ^= 2;
      return;
    }
    for (int i = 0; i < num_row_tiles; ++i) {
      const int rows = x.count - (row_tile + i) * kTile;
      sink.take(sink.context, Block{row_tile + i, rows < kTile ? rows : kTile, first_tile + from, width, values[i]});
    }
  }

  __attribute__((always_inline)) void gate_row() {
    if (gated_row >= num_gated_rows) return;
    const float* from = gates + gated_row * kBlockStride;
    const size_t tile = (size_t)(gated_row / kTile) * sink.gated->num_groups;
    uint16_t* to = gated + (tile * kTile + gated_row % kTile) * kGroup;
    for (int i = 0; i < kGroup; i += 16)
      store_bf16(to + i, bent(load(from + i), sink.activation) * load(from + kGroup + i));
    ++gated_row;
  }

  void finish_gating() {
    while (gated_row < num_gated_rows) gate_row();
  }
};

// Up to two tiles of rows: weights are widened while the group before is multiplied, and never needed again.
template <int kBits, bool kHasMinimum>
void multiply_few(const Rows& x, const Matrix& m, int first_tile, int num_tiles, uint8_t* scratch, Sink sink) {
  alignas(64) float values[4][kTile * kBlockStride];
  const int num_groups = x.num_groups, bytes = block_bytes(m);
  const uint16_t* first = (const uint16_t*)x.values;
  const uint16_t* second = x.num_tiles() > 1 ? first + (size_t)num_groups * 512 : nullptr;
  Outputs outputs{x, sink, values, first_tile, num_tiles};
  uint16_t* weights = (uint16_t*)scratch;  // [2][left, right][512]
  for (int tile = 0; tile < num_tiles; tile += 2) {
    const uint8_t* left = m.data + (size_t)(first_tile + tile) * num_groups * bytes;
    const uint8_t* right = tile + 1 < num_tiles ? left + (size_t)num_groups * bytes : left;
    const Square square = outputs.square(0, x.num_tiles(), tile);
    square.start();
    widen<kBits, kHasMinimum>(left, weights);
    widen<kBits, kHasMinimum>(right, weights + 512);
    for (int g = 0; g < num_groups; ++g) {
      const uint16_t* now = weights + (g & 1) * 1024;
      if (g + 1 < num_groups) {
        uint16_t* next = weights + (~g & 1) * 1024;
        prefetch(left + (g + 8) * bytes, bytes);
        prefetch(right + (g + 8) * bytes, bytes);
        widen<kBits, kHasMinimum>(left + (g + 1) * bytes, next);
        widen<kBits, kHasMinimum>(right + (g + 1) * bytes, next + 512);
      }
      if (sink.ahead) sink.ahead->advance();
      add_square<false>(first + g * 512, second ? second + g * 512 : nullptr, now, now + 512);
    }
    square.store();
    outputs.hand_on(0, x.num_tiles(), tile);
  }
  outputs.finish_gating();
}

// A run of a matrix's blocks that is widened little by little.
template <int kBits, bool kHasMinimum>
struct Widening {
  const uint8_t* from;
  uint16_t* to;
  int num_left;
  int line = 0;

  static constexpr int kBytes = kBlockBytes<kBits, kHasMinimum>;

  void next() {
    line = 0;
    from += kBytes;
    to += 512;
    --num_left;
  }

  __attribute__((always_inline)) void advance() {
    if (num_left <= 0) return;
    prefetch(from + 8 * kBytes + line * 128, 128);
    widen<kBits, kHasMinimum>(from, line, line + 1, to);
    if (++line == kLines<kBits>) next();
  }

  void finish() {
    while (num_left > 0 && line) advance();
    while (num_left > 0) {
      prefetch(from + 8 * kBytes, kBytes);
      widen<kBits, kHasMinimum>(from, to);
      next();
    }
  }
};

// More rows: the weights of a piece are widened once, while the piece before is multiplied, and pass by while two tiles of
// rows stay near.
template <int kBits, bool kHasMinimum, bool kGates>
void multiply_many(const Rows& x, const Matrix& m, int first_tile, int num_tiles, uint8_t* scratch, Sink sink) {
  alignas(64) float values[4][kTile * kBlockStride];
  const int num_groups = x.num_groups, bytes = block_bytes(m), num_pairs = (x.num_tiles() + 1) / 2;
  const size_t step = (size_t)num_groups * 512;
  int most = kMostWidenedBytes / 2 / (int)(step * 2);
  most = most < kMaxTiles ? kMaxTiles : most < kWidestPiece ? most / kMaxTiles * kMaxTiles : kWidestPiece;
  uint16_t* here = (uint16_t*)scratch;
  uint16_t* there = here + most * step;
  const auto widening = [&](int begin, uint16_t* to) {
    const int tiles = num_tiles - begin < most ? num_tiles - begin : most;
    return Widening<kBits, kHasMinimum>{m.data + (size_t)(first_tile + begin) * num_groups * bytes, to, tiles * num_groups};
  };
  Outputs outputs{x, sink, values};
  auto ahead = widening(0, here);
  ahead.finish();
  for (int begin = 0; begin < num_tiles; begin += most) {
    const int tiles = num_tiles - begin < most ? num_tiles - begin : most;
    outputs.first_tile = first_tile + begin;
    outputs.num_tiles = tiles;
    ahead = widening(begin + most, there);
    const int interval = num_pairs > 2 * kLines<kBits> ? num_pairs / (2 * kLines<kBits>) : 1;
    int wait = interval;
    for (int row_tile = 0; row_tile < x.num_tiles(); row_tile += 2) {
      const int num_row_tiles = x.num_tiles() - row_tile < 2 ? 1 : 2;
      const uint16_t* first = (const uint16_t*)x.values + row_tile * step;
      const uint16_t* second = num_row_tiles > 1 ? first + step : nullptr;
      for (int tile = 0; tile < tiles; tile += 2) {
        const uint16_t* left = here + tile * step;
        const uint16_t* right = tile + 1 < tiles ? left + step : left;
        const Square square = outputs.square(row_tile, num_row_tiles, tile);
        square.start();
        for (int g = 0; g < num_groups; ++g) {
          add_square<true>(first + g * 512, second ? second + g * 512 : nullptr, left + g * 512, right + g * 512);
          if (--wait == 0) {
            ahead.advance();
            wait = interval;
          }
          if (kGates) outputs.gate_row();
        }
        square.store();
        outputs.hand_on(row_tile, num_row_tiles, tile);
      }
    }
    ahead.finish();
    uint16_t* done = here;
    here = there;
    there = done;
  }
  outputs.finish_gating();
}

template <int kBits, bool kHasMinimum>
void multiply_bf16(const Rows& x, const Matrix& m, int first_tile, int num_tiles, uint8_t* scratch, Sink sink) {
  shape_bf16();
  const auto run = x.num_tiles() <= 2 ? multiply_few<kBits, kHasMinimum>
                   : sink.gated       ? multiply_many<kBits, kHasMinimum, true>
                                      : multiply_many<kBits, kHasMinimum, false>;
  run(x, m, first_tile, num_tiles, scratch, sink);
}

}  // namespace
