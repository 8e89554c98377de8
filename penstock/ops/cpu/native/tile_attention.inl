// Attention over the paged cache with matrix tiles: bf16 times bf16, or whole numbers of 8 bits on both sides.
//
// Of 8 bits are the keys and values of the cache. Queries and weights, which meet them, are held in two digits each, so that
// nothing is lost but what the cache has rounded: a query as scale * (8 * high + low), a weight as scale * (256 * high + low).

namespace {

struct Scratch {
  float* scores;     // [16][kKeysAtOnce]
  float* sums;       // [16][head_dim]
  int32_t* dots;     // [16][kKeysAtOnce], of low digits; those of high ones stand in `scores`
  uint8_t* weights;  // [16][kKeysAtOnce] of bf16, or [2 digits][16][kKeysAtOnce]
  uint8_t* queries;  // [16][head_dim] of bf16, or [2 digits][16][head_dim]
  uint16_t* clean;   // one unit of values
  float* query_scale;  // [16], as are those that follow
  float* spoiled;
  float* most;
  float* total;

  explicit Scratch(uint8_t* memory) {
    scores = (float*)memory;
    sums = scores + kTile * kKeysAtOnce;
    dots = (int32_t*)(sums + kTile * kMaxHeadDim);
    weights = (uint8_t*)(dots + kTile * kKeysAtOnce);
    queries = weights + kTile * kKeysAtOnce * 2;
    clean = (uint16_t*)(queries + kTile * kMaxHeadDim * 2);
    query_scale = (float*)(clean + kTile * kMaxHeadDim);
    spoiled = query_scale + kTile;
    most = spoiled + kTile;
    total = most + kTile;
  }

  // Rows from `row` on; of the digits the first, which the others follow at the same distance.
  Scratch from(int row, int head_dim, bool is_of_bytes) const {
    Scratch s = *this;
    const int bytes = is_of_bytes ? 1 : 2;
    s.scores += row * kKeysAtOnce;
    s.sums += row * head_dim;
    s.dots += row * kKeysAtOnce;
    s.weights += row * kKeysAtOnce * bytes;
    s.queries += row * head_dim * bytes;
    s.query_scale += row;
    s.spoiled += row;
    s.most += row;
    s.total += row;
    return s;
  }
};

// Tiles wait for memory, which finds scattered units too late by itself: where few rows read them, keys are fetched some
// units ahead, and the values that will be read next are brought near.
PENSTOCK_INLINE void fetch(const Attend& t, const void* base, const float* scales, int position) {
  const size_t at = unit_offset(t, position);
  const int row_bytes = t.head_dim * (scales ? 1 : 2);
  prefetch((const uint8_t*)base + at * row_bytes, kTile * row_bytes);
  if (scales) prefetch((const uint8_t*)(scales + at), 64);
}

PENSTOCK_INLINE bool fetches(const Attend& t) { return t.num_rows < kTile; }

// Before the first unit, `ahead` of them; then one with each.
PENSTOCK_INLINE void fetch_ahead(const Attend& t, int first, int i, int num_keys, int ahead) {
  const int next = i + ahead * kTile;
  for (int u = i ? next : 0; u <= next && u < num_keys; u += kTile) fetch(t, t.keys, t.key_scales, first + u);
  fetch(t, t.values, t.value_scales, first + i);
}

// ---- bf16: sums 0-3 [rows][16], queries 4 [rows][32], keys 5 [16][16][2], weights 6 [rows][16], values 7 [8][16][2]

struct Bf16Cache {
  static void shape(const Attend& t) {
    TileShapes shapes;
    for (int i = 0; i < 5; ++i) shapes.set(i, t.num_rows, 64);
    shapes.set(5, kTile, 64);
    shapes.set(6, t.num_rows, kTile * 2);
    shapes.set(7, kTile / 2, 64);
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

  static void score(const Attend& t, Scratch& s, int first, int num_keys) {
    int i = 0;
    for (; i + 4 * kTile <= num_keys; i += 4 * kTile) {
      for (int u = 0; fetches(t) && u < 4; ++u) fetch_ahead(t, first, i + u * kTile, num_keys, 4);
      score_units<4>(t, s, first, i);
    }
    for (; i < num_keys; i += kTile) {
      if (fetches(t)) fetch_ahead(t, first, i, num_keys, 4);
      score_units<1>(t, s, first, i);
    }
  }

  struct Window {
    Window(const Attend&, int, int) {}
  };

  __attribute__((always_inline)) static inline void keep(const Attend&, Scratch& s, const Window&, int row, int, int i, Floats weight) {
    store_bf16((uint16_t*)s.weights + row * kKeysAtOnce + i, weight);
  }

  // Up to 64 numbers of the head, from `d` on.
  template <int kColumns>
  __attribute__((always_inline)) static inline void add_columns(const Attend& t, const Scratch& s, int first, int num_keys, int end, int d) {
    const int dim = t.head_dim;
    _tile_loadd(0, s.sums + d, dim * 4);
    if (kColumns > 1) _tile_loadd(1, s.sums + d + 16, dim * 4);
    if (kColumns > 2) _tile_loadd(2, s.sums + d + 32, dim * 4);
    if (kColumns > 3) _tile_loadd(3, s.sums + d + 48, dim * 4);
    for (int i = 0; i < num_keys; i += kTile) {
      const uint16_t* values = (const uint16_t*)t.values + unit_offset(t, first + i) * dim;
      const uint16_t* unit = clean_values(values, end - first - i, dim, s.clean) + d * 2;
      _tile_loadd(6, (const uint16_t*)s.weights + i, kKeysAtOnce * 2);
#define PENSTOCK_ADD(column)                           \
  if (kColumns > column) {                             \
    _tile_loadd(7, unit + column * 32, dim * 4);       \
    _tile_dpbf16ps(column, 6, 7);                      \
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
    int d = 0;
    for (; d + 64 <= t.head_dim; d += 64) add_columns<4>(t, s, first, num_keys, end, d);
    if (d < t.head_dim) add_columns<2>(t, s, first, num_keys, end, d);
  }
};

// ---- 8 bits, scoring: sums 0-3 [rows][16], queries 4 [rows][span], keys 5 [span / 4][16][4], with a span of 64 numbers, or
//      of 32 where heads are no multiple of that
//      adding: sums 0-3, weights 4-5 [rows][16], values 6-7 [4][16][4]

struct ByteCache {
  static int span(const Attend& t) { return t.head_dim % 64 ? 32 : 64; }

  static void shape(const Attend&) {}

  static void encode(const Attend& t, Scratch& s, int row, const float* q) {
    const int dim = t.head_dim;
    int8_t* to = (int8_t*)s.queries + row * dim;
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
      _mm_storeu_si128((__m128i*)(to + kTile * dim + d), _mm512_cvtepi32_epi8((__m512i)(whole - (high << kLowBits))));
    }
    s.query_scale[row] = peak / (float)kMostInteger;
    s.spoiled[row] = sum(spoiled);
  }

  // Two units: high and low digits of the queries with each.
  __attribute__((always_inline)) static inline void score_units(const Attend& t, Scratch& s, int first, int i, int next) {
    const int dim = t.head_dim, step = span(t);
    const int8_t* here = (const int8_t*)t.keys + unit_offset(t, first + i) * dim;
    const int8_t* there = (const int8_t*)t.keys + unit_offset(t, first + next) * dim;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int d = 0; d < dim; d += step) {
      const uint8_t* high = s.queries + d;
      const uint8_t* low = high + kTile * dim;
      _tile_loadd(5, here + d * kTile, 64);
      _tile_loadd(4, high, dim);
      _tile_dpbssd(0, 4, 5);
      _tile_loadd(4, low, dim);
      _tile_dpbssd(1, 4, 5);
      _tile_loadd(5, there + d * kTile, 64);
      _tile_dpbssd(3, 4, 5);
      _tile_loadd(4, high, dim);
      _tile_dpbssd(2, 4, 5);
    }
    _tile_stored(0, s.scores + i, kKeysAtOnce * 4);
    _tile_stored(1, s.dots + i, kKeysAtOnce * 4);
    _tile_stored(2, s.scores + next, kKeysAtOnce * 4);
    _tile_stored(3, s.dots + next, kKeysAtOnce * 4);
  }

  static void score(const Attend& t, Scratch& s, int first, int num_keys) {
    TileShapes shapes;
    for (int i = 0; i < 4; ++i) shapes.set(i, t.num_rows, 64);
    shapes.set(4, t.num_rows, span(t));
    shapes.set(5, span(t) / 4, 64);
    shapes.apply();
    for (int i = 0; i < num_keys; i += 2 * kTile) {
      for (int u = 0; fetches(t) && u < 2 && i + u * kTile < num_keys; ++u)
        fetch_ahead(t, first, i + u * kTile, num_keys, 8);
      score_units(t, s, first, i, i + kTile < num_keys ? i + kTile : i);
    }
    for (int i = 0; i < num_keys; i += kTile) {
      const Floats scales = load(t.key_scales + unit_offset(t, first + i));
      for (int row = 0; row < t.num_rows; ++row) {
        float* scores = s.scores + row * kKeysAtOnce + i;
        Ints high, low;
        std::memcpy(&high, scores, sizeof high);
        std::memcpy(&low, s.dots + row * kKeysAtOnce + i, sizeof low);
        store(scores, to_floats((high << kLowBits) + low) * (scales * s.query_scale[row]));
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

  __attribute__((always_inline)) static inline void keep(const Attend& t, Scratch& s, const Window& w, int row, int first, int i,
                                   Floats weight) {
    const Floats scaled = scaled_weight(t, first + i, weight);
    s.spoiled[row] += sum(scaled * 0.0f);
    const __m512i whole = _mm512_cvtps_epi32((__m512)(scaled * w.inverse));
    uint8_t* to = s.weights + row * kKeysAtOnce + i;
    _mm_storeu_si128((__m128i*)to, _mm512_cvtepi32_epi8(_mm512_srli_epi32(whole, 8)));
    _mm_storeu_si128((__m128i*)(to + kTile * kKeysAtOnce), _mm512_cvtepi32_epi8(whole));
  }

  static void add(const Attend& t, Scratch& s, const Window& w, int first, int num_keys, int) {
    TileShapes shapes;
    for (int i = 0; i < 4; ++i) shapes.set(i, t.num_rows, 64);
    for (int i = 4; i < 6; ++i) shapes.set(i, t.num_rows, kTile);
    for (int i = 6; i < 8; ++i) shapes.set(i, kTile / 4, 64);
    shapes.apply();
    const int dim = t.head_dim;
    const float scale = w.most / 65280.0f;
    alignas(64) int32_t dots[4][kTile * kTile];
    for (int d = 0; d < dim; d += 2 * kTile) {
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
      for (int i = 0; i < num_keys; i += kTile) {
        const int8_t* unit = (const int8_t*)t.values + unit_offset(t, first + i) * dim + d * 4;
          _tile_loadd(4, s.weights + i, kKeysAtOnce);
        _tile_loadd(6, unit, dim * 4);
        _tile_dpbusd(0, 4, 6);
        _tile_loadd(5, s.weights + kTile * kKeysAtOnce + i, kKeysAtOnce);
        _tile_dpbusd(1, 5, 6);
        _tile_loadd(7, unit + 64, dim * 4);
        _tile_dpbusd(2, 4, 7);
        _tile_dpbusd(3, 5, 7);
      }
      _tile_stored(0, dots[0], 64);
      _tile_stored(1, dots[1], 64);
      _tile_stored(2, dots[2], 64);
      _tile_stored(3, dots[3], 64);
      for (int row = 0; row < t.num_rows; ++row)
        for (int half = 0; half < 2; ++half) {
          Ints high, low;
          std::memcpy(&high, dots[half * 2] + row * kTile, sizeof high);
          std::memcpy(&low, dots[half * 2 + 1] + row * kTile, sizeof low);
          float* sums = s.sums + row * dim + d + half * kTile;
          store(sums, load(sums) + (to_floats(high) * 256.0f + to_floats(low)) * scale);
        }
    }
  }
};

// The keys and values of positions `begin` .. `end`, from the start of a window on. Rows see their own, or all.
template <typename Cache>
void attend_span(const Attend& t, Scratch s, int begin, int end, bool sees_all) {
  const int dim = t.head_dim;
  Cache::shape(t);
  for (int first = begin; first < end; first += kKeysAtOnce) {
    const int left = end - first, num_keys = left < kKeysAtOnce ? (left + 15) / 16 * 16 : kKeysAtOnce;
    Cache::score(t, s, first, num_keys);
    const typename Cache::Window window(t, first, first + (left < kKeysAtOnce ? left : kKeysAtOnce));
    for (int row = 0; row < t.num_rows; ++row) {
      const float factor =
          weigh(t, s.scores + row * kKeysAtOnce, first, num_keys, sees_all ? Seen{0, end} : seen_by(t, row), s.most[row],
                s.total[row], [&](int i, Floats weight) { Cache::keep(t, s, window, row, first, i, weight); });
      if (factor != 1.0f)
        for (int d = 0; d < dim; d += 16) store(s.sums + row * dim + d, load(s.sums + row * dim + d) * factor);
    }
    Cache::add(t, s, window, first, num_keys, end);
  }
}

// Tiles treat every row as if it were alone, so that what chunks share may be read for all of them at once.
template <typename Cache>
void attend_over(const Attend& t, uint8_t* memory) {
  const int dim = t.head_dim, num_rows = t.num_chunks * t.num_rows;
  Scratch s(memory);
  for (int row = 0; row < num_rows; ++row) {
    s.spoiled[row] = 0.0f;
    s.most[row] = -__builtin_inff();
    s.total[row] = 0.0f;
    const float* q = head_of((float*)t.chunks[row / t.num_rows].q, t, t.stride, row % t.num_rows);
    Cache::encode(t, s, row, q);
  }
  std::memset(s.sums, 0, sizeof(float) * num_rows * dim);
  const int num_shared = t.window ? 0 : t.num_shared;
  if (num_shared) {
    Attend all = t.part(0);
    all.num_rows = num_rows;
    attend_span<Cache>(all, s, 0, num_shared, true);
  }
  for (int i = 0; i < t.num_chunks; ++i) {
    const Attend part = t.part(i);
    const Seen span = span_of(part);
    const int begin = span.begin > num_shared ? span.begin / kKeysAtOnce * kKeysAtOnce : num_shared;
    attend_span<Cache>(part, s.from(i * t.num_rows, dim, t.key_scales), begin, span.end, false);
    for (int row = 0; row < t.num_rows; ++row) {
      float* out = head_of(part.chunk.out, part, part.out_stride, row);
      const float* sums = s.sums + (i * t.num_rows + row) * dim;
      const float inverse = 1.0f / s.total[i * t.num_rows + row], spoiled = s.spoiled[i * t.num_rows + row];
      for (int d = 0; d < dim; d += 16) store(out + d, load(sums + d) * inverse + spoiled);
    }
  }
}

void attend(const Attend& t, uint8_t* scratch) {
  if (t.key_scales)
    attend_over<ByteCache>(t, scratch);
  else
    attend_over<Bf16Cache>(t, scratch);
}

}  // namespace
