// Attention with matrix tiles over keys and values of bf16.
//
// Tiles: sums 0-3 [rows][16], queries 4 [rows][32], keys 5 [16][16][2], weights 6 [rows][32], values 7 [16][16][2]

namespace {

// `width` numbers of each line of a unit of values, a line for two keys. Keys from `count` on were never written by this
// sequence: whatever stands there is replaced by zero, since zero times not-a-number is not zero.
PENSTOCK_INLINE void gather_values(const uint16_t* from, int stride, int count, int width, uint16_t* to) {
  for (int pair = 0; pair < kTile / 2; ++pair, from += stride, to += width) {
    if (pair * 2 + 1 < count) {
      for (int i = 0; i < width; i += 32) _mm512_store_si512(to + i, _mm512_loadu_si512(from + i));
      continue;
    }
    const __m512i written = _mm512_set1_epi32(pair * 2 < count ? 0xffff : 0);
    for (int i = 0; i < width; i += 32)
      _mm512_store_si512(to + i, _mm512_and_si512(_mm512_loadu_si512(from + i), written));
  }
}

struct Bf16Cache {
  static constexpr bool kSpoils = false;

  static void shape(const Attend& t) {
    TileShapes shapes;
    for (int i = 0; i < 5; ++i) shapes.set(i, t.num_rows, 64);
    shapes.set(5, kTile, 64);
    shapes.set(6, t.num_rows, 64);
    shapes.set(7, kTile, 64);
    shapes.apply();
  }

  static void encode(const Attend& t, Scratch& s, int row, const float* q) {
    uint16_t* to = (uint16_t*)s.queries + row * t.head_dim;
    for (int d = 0; d < t.head_dim; d += 16) store_bf16(to + d, load(q + d));
  }

  template <int kUnits>
  __attribute__((always_inline)) static inline void score_units(const Attend& t, const Scratch& s, int first, int i) {
    const int dim = t.head_dim;
    const uint16_t* units[kUnits];
    for (int u = 0; u < kUnits; ++u) units[u] = (const uint16_t*)t.keys + unit_offset(t, first + i + u * kTile) * dim;
    _tile_zero(0);
    if (kUnits > 1) _tile_zero(1);
    if (kUnits > 2) _tile_zero(2);
    if (kUnits > 3) _tile_zero(3);
    for (int d = 0; d < dim; d += 32) {
      _tile_loadd(4, (const uint16_t*)s.queries + d, dim * 2);
#define PENSTOCK_SCORE(unit)                                             \
  if (kUnits > unit) {                                                   \
    _tile_loadd(5, units[unit < kUnits ? unit : 0] + d * kTile, 64);     \
    _tile_dpbf16ps(unit, 4, 5);                                          \
  }
      PENSTOCK_SCORE(0)
      PENSTOCK_SCORE(1)
      PENSTOCK_SCORE(2)
      PENSTOCK_SCORE(3)
#undef PENSTOCK_SCORE
    }
    _tile_stored(0, s.scores + i, kKeysAtOnce * 4);
    if (kUnits > 1) _tile_stored(1, s.scores + i + kTile, kKeysAtOnce * 4);
    if (kUnits > 2) _tile_stored(2, s.scores + i + 2 * kTile, kKeysAtOnce * 4);
    if (kUnits > 3) _tile_stored(3, s.scores + i + 3 * kTile, kKeysAtOnce * 4);
  }

  static constexpr int kUnitsAtOnce = 4;

  static void score(const Attend& t, Scratch& s, int first, int i, int num_keys) {
    for (int u = 0; u < kUnitsAtOnce; ++u) fetch_ahead(t, first, i + u * kTile, num_keys, 4);
    if (i + kUnitsAtOnce * kTile <= num_keys) return score_units<kUnitsAtOnce>(t, s, first, i);
    for (; i < num_keys; i += kTile) score_units<1>(t, s, first, i);
  }

  static void scale(const Attend&, Scratch&, int, int) {}

  struct Window {
    Window(const Attend&, int, int) {}
  };

  __attribute__((always_inline)) static inline void keep(const Attend&, Scratch& s, const Window&, int row, int, int i,
                                                         Floats weight, Floats&) {
    store_bf16((uint16_t*)s.weights + row * kKeysAtOnce + i, weight);
  }

  // Up to 64 numbers of the head, from `d` on. Two units, wherever they lie, are brought together while the two before them are
  // multiplied.
  template <int kColumns>
  __attribute__((always_inline)) static inline void add_columns(const Attend& t, const Scratch& s, int first,
                                                                int num_keys, int end, int d) {
    constexpr int kWidth = kColumns * 32;
    const int dim = t.head_dim;
    const auto gather = [&](int i) __attribute__((always_inline)) {
      uint16_t* to = s.values + i / 32 % 2 * kTile * kWidth;
      for (int half = 0; half < 2; ++half, i += kTile, to += 8 * kWidth) {
        if (i < num_keys)
          gather_values((const uint16_t*)t.values + unit_offset(t, first + i) * dim + d * 2, dim * 2, end - first - i,
                        kWidth, to);
        else
          std::memset(to, 0, 16 * kWidth);
      }
    };
    _tile_loadd(0, s.sums + d, dim * 4);
    if (kColumns > 1) _tile_loadd(1, s.sums + d + 16, dim * 4);
    if (kColumns > 2) _tile_loadd(2, s.sums + d + 32, dim * 4);
    if (kColumns > 3) _tile_loadd(3, s.sums + d + 48, dim * 4);
    gather(0);
    for (int i = 0; i < num_keys; i += 2 * kTile) {
      const uint16_t* unit = s.values + i / 32 % 2 * kTile * kWidth;
      if (i + 2 * kTile < num_keys) gather(i + 2 * kTile);
      _tile_loadd(6, (const uint16_t*)s.weights + i, kKeysAtOnce * 2);
#define PENSTOCK_ADD(column)                            \
  if (kColumns > column) {                              \
    _tile_loadd(7, unit + column * 32, kWidth * 2);     \
    _tile_dpbf16ps(column, 6, 7);                       \
  }
      PENSTOCK_ADD(0)
      PENSTOCK_ADD(1)
      PENSTOCK_ADD(2)
      PENSTOCK_ADD(3)
#undef PENSTOCK_ADD
    }
    _tile_stored(0, s.sums + d, dim * 4);
    if (kColumns > 1) _tile_stored(1, s.sums + d + 16, dim * 4);
    if (kColumns > 2) _tile_stored(2, s.sums + d + 32, dim * 4);
    if (kColumns > 3) _tile_stored(3, s.sums + d + 48, dim * 4);
  }

  static void add(const Attend& t, Scratch& s, const Window&, int first, int num_keys, int end) {
    for (int row = 0; num_keys % (2 * kTile) && row < t.num_rows; ++row)
      std::memset((uint16_t*)s.weights + row * kKeysAtOnce + num_keys, 0, kTile * 2);
    int d = 0;
    for (; d + 64 <= t.head_dim; d += 64) add_columns<4>(t, s, first, num_keys, end, d);
    if (d < t.head_dim) add_columns<2>(t, s, first, num_keys, end, d);
  }
};

}  // namespace
