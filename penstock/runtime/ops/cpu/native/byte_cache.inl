// Attention with matrix tiles over keys and values of 8 bits.
//
// Queries and weights, which meet them, are held in two digits each, so that nothing is lost but what the cache has rounded: a
// query as scale * (8 * high + low), a weight as scale * (256 * high + low).
//
// Tiles: sums 0-3 [rows][16], queries 4 [rows][span], keys 5 [span / 4][16][4], weights 6 [rows][16], values 7 [4][16][4],
// with a span of 64 numbers, or of 32 where heads are no multiple of that. Up to eight rows stand in the tiles with both
// of their digits, one below the other; of more, each digit has tiles of its own.

namespace {

template <bool kStacked>
struct ByteCache {
  static constexpr bool kSpoils = true;

  static int span(const Attend& t) { return t.head_dim % 64 ? 32 : 64; }

  static void shape(const Attend& t) {
    const int rows = kStacked ? 2 * t.num_rows : t.num_rows;
    TileShapes shapes;
    for (int i = 0; i < 4; ++i) shapes.set(i, rows, 64);
    shapes.set(4, rows, span(t));
    shapes.set(5, span(t) / 4, 64);
    shapes.set(6, rows, kTile);
    shapes.set(7, kTile / 4, 64);
    shapes.apply();
  }

  static void encode(const Attend& t, Scratch& s, int row, const float* q) {
    const int dim = t.head_dim;
    int8_t* to = (int8_t*)s.queries + row * 2 * dim;
    Floats most = {}, spoiled = {};
    for (int d = 0; d < dim; d += 16) {
      most = maximum(magnitude(load(q + d)), most);
      spoiled += load(q + d) * 0.0f;
    }
    const float peak = largest(most), inverse = peak > 0.0f ? (float)kMostInteger / peak : 0.0f;
    for (int d = 0; d < dim; d += 16) {
      const Floats v = load(q + d);
      const Ints whole = to_ints(nearest(select(v == v, v * inverse, Floats{})));
      const Ints high = (whole + (1 << (kLowBits - 1))) >> kLowBits;
      _mm_storeu_si128((__m128i*)(to + d), _mm512_cvtepi32_epi8((__m512i)high));
      _mm_storeu_si128((__m128i*)(to + dim + d), _mm512_cvtepi32_epi8((__m512i)(whole - (high << kLowBits))));
    }
    s.query_scale[row] = peak / (float)kMostInteger;
    s.spoiled[row] = sum(spoiled);
  }

  // Four units; those past the last repeat it.
  __attribute__((always_inline)) static inline void score_stacked(const Attend& t, Scratch& s, int first, int i, int num_keys) {
    const int dim = t.head_dim, step = span(t), last = num_keys - kTile;
    const int at[4] = {i, i + kTile < last ? i + kTile : last, i + 2 * kTile < last ? i + 2 * kTile : last,
                       i + 3 * kTile < last ? i + 3 * kTile : last};
    const int8_t* units[4];
    for (int u = 0; u < 4; ++u) units[u] = (const int8_t*)t.keys + unit_offset(t, first + at[u]) * dim;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int d = 0; d < dim; d += step) {
      _tile_loadd(4, s.queries + d, dim);
#define PENSTOCK_SCORE(unit)                      \
  _tile_loadd(5, units[unit] + d * kTile, 64);    \
  _tile_dpbssd(unit, 4, 5);
      PENSTOCK_SCORE(0)
      PENSTOCK_SCORE(1)
      PENSTOCK_SCORE(2)
      PENSTOCK_SCORE(3)
#undef PENSTOCK_SCORE
    }
    _tile_stored(0, s.dots + at[0], kKeysAtOnce * 4);
    _tile_stored(1, s.dots + at[1], kKeysAtOnce * 4);
    _tile_stored(2, s.dots + at[2], kKeysAtOnce * 4);
    _tile_stored(3, s.dots + at[3], kKeysAtOnce * 4);
  }

  // Two units: high and low digits of the queries with each.
  __attribute__((always_inline)) static inline void score_apart(const Attend& t, Scratch& s, int first, int i, int num_keys) {
    const int dim = t.head_dim, step = span(t), next = i + kTile < num_keys ? i + kTile : i;
    const int8_t* here = (const int8_t*)t.keys + unit_offset(t, first + i) * dim;
    const int8_t* there = (const int8_t*)t.keys + unit_offset(t, first + next) * dim;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int d = 0; d < dim; d += step) {
      const uint8_t* high = s.queries + d;
      const uint8_t* low = high + dim;
      _tile_loadd(5, here + d * kTile, 64);
      _tile_loadd(4, high, 2 * dim);
      _tile_dpbssd(0, 4, 5);
      _tile_loadd(4, low, 2 * dim);
      _tile_dpbssd(1, 4, 5);
      _tile_loadd(5, there + d * kTile, 64);
      _tile_dpbssd(3, 4, 5);
      _tile_loadd(4, high, 2 * dim);
      _tile_dpbssd(2, 4, 5);
    }
    _tile_stored(0, s.dots + i, kKeysAtOnce * 8);
    _tile_stored(1, s.dots + kKeysAtOnce + i, kKeysAtOnce * 8);
    _tile_stored(2, s.dots + next, kKeysAtOnce * 8);
    _tile_stored(3, s.dots + kKeysAtOnce + next, kKeysAtOnce * 8);
  }

  static constexpr int kUnitsAtOnce = kStacked ? 4 : 2;

  static void score(const Attend& t, Scratch& s, int first, int i, int num_keys) {
    for (int u = 0; u < kUnitsAtOnce; ++u) fetch_ahead(t, first, i + u * kTile, num_keys, 8);
    if (kStacked)
      score_stacked(t, s, first, i, num_keys);
    else
      score_apart(t, s, first, i, num_keys);
  }

  static void scale(const Attend& t, Scratch& s, int first, int num_keys) {
    for (int i = 0; i < num_keys; i += kTile) {
      const Floats scales = load(t.key_scales + unit_offset(t, first + i));
      for (int row = 0; row < t.num_rows; ++row) {
        const int32_t* dots = s.dots + row * 2 * kKeysAtOnce + i;
        Ints high, low;
        std::memcpy(&high, dots, sizeof high);
        std::memcpy(&low, dots + kKeysAtOnce, sizeof low);
        store(s.scores + row * kKeysAtOnce + i, to_floats((high << kLowBits) + low) * (scales * s.query_scale[row]));
      }
    }
  }

  // Weights count up to the largest scale among the values they meet.
  struct Window {
    float most = 0.0f;
    float inverse;

    Window(const Attend& t, int first, int end) {
      Floats peak = {};
      for (int i = first; i < end; i += kTile) {
        const Floats scales = load(t.value_scales + unit_offset(t, i));
        peak = maximum(select(kLanes + i < end, scales, Floats{}), peak);
      }
      most = largest(peak);
      inverse = most > 0.0f ? 65280.0f / most : 0.0f;
    }
  };

  __attribute__((always_inline)) static inline void keep(const Attend& t, Scratch& s, const Window& w, int row, int first,
                                                         int i, Floats weight, Floats& spoiled) {
    const Floats scaled = scaled_weight(t, first + i, weight);
    spoiled += scaled * 0.0f;
    const __m512i whole = _mm512_cvtps_epi32((__m512)(scaled * w.inverse));
    uint8_t* to = s.weights + row * 2 * kKeysAtOnce + i;
    _mm_storeu_si128((__m128i*)to, _mm512_cvtepi32_epi8(_mm512_srli_epi32(whole, 8)));
    _mm_storeu_si128((__m128i*)(to + kKeysAtOnce), _mm512_cvtepi32_epi8(whole));
  }

  // To the numbers of the head from `d` on, 16 times `kColumns` of them.
  template <int kColumns>
  __attribute__((always_inline)) static inline void add_columns(const Attend& t, Scratch& s, const Window& w, int first,
                                                                int num_keys, int d) {
    alignas(64) int32_t dots[4][kTile * kTile];
    const int dim = t.head_dim;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int i = 0; i < num_keys; i += kTile) {
      const int8_t* unit = (const int8_t*)t.values + unit_offset(t, first + i) * dim + d * 4;
      const uint8_t* weights = s.weights + i;
      if (kStacked) {
        _tile_loadd(6, weights, kKeysAtOnce);
        _tile_loadd(7, unit, dim * 4);
        _tile_dpbusd(0, 6, 7);
        _tile_loadd(7, unit + 64, dim * 4);
        _tile_dpbusd(1, 6, 7);
        if (kColumns > 2) {
          _tile_loadd(7, unit + 128, dim * 4);
          _tile_dpbusd(2, 6, 7);
          _tile_loadd(7, unit + 192, dim * 4);
          _tile_dpbusd(3, 6, 7);
        }
      } else {
        _tile_loadd(6, weights, 2 * kKeysAtOnce);
        _tile_loadd(7, unit, dim * 4);
        _tile_dpbusd(0, 6, 7);
        _tile_loadd(6, weights + kKeysAtOnce, 2 * kKeysAtOnce);
        _tile_dpbusd(1, 6, 7);
        _tile_loadd(7, unit + 64, dim * 4);
        _tile_dpbusd(3, 6, 7);
        _tile_loadd(6, weights, 2 * kKeysAtOnce);
        _tile_dpbusd(2, 6, 7);
      }
    }
    _tile_stored(0, dots[0], 64);
    _tile_stored(1, dots[1], 64);
    _tile_stored(2, dots[2], 64);
    _tile_stored(3, dots[3], 64);
    const float scale = w.most / 65280.0f;
    for (int row = 0; row < t.num_rows; ++row)
      for (int column = 0; column < kColumns; ++column) {
        const int32_t* highs = kStacked ? dots[column] + row * 2 * kTile : dots[column * 2] + row * kTile;
        Ints high, low;
        std::memcpy(&high, highs, sizeof high);
        std::memcpy(&low, highs + (kStacked ? kTile : kTile * kTile), sizeof low);
        float* sums = s.sums + row * dim + d + column * kTile;
        store(sums, load(sums) + (to_floats(high) * 256.0f + to_floats(low)) * scale);
      }
  }

  static void add(const Attend& t, Scratch& s, const Window& w, int first, int num_keys, int) {
    int d = 0;
    for (; kStacked && d + 64 <= t.head_dim; d += 64) add_columns<4>(t, s, w, first, num_keys, d);
    for (; d < t.head_dim; d += 32) add_columns<2>(t, s, w, first, num_keys, d);
  }
};

}  // namespace
