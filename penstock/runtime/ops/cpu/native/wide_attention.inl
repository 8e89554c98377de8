// Attention of many rows of a chunk's queries with one kv head over keys and values of bf16: values are brought together once for
// all of the rows, and what a tile loads meets two tiles of them.
//
// Tiles, all of 16 lines of 64 bytes: sums 0-3, queries or weights 4-5 [16][32], keys or values 6-7 [16][16][2]

namespace {

constexpr int kWideRows = 2 * kTile;  // that are multiplied together

struct WideScratch {
  float* scores;      // [unit][2][16 rows][16]; the weights of two units, [16 rows][32], take the place of the first one's
  float* sums;        // [kMostRows][head_dim]
  uint16_t* queries;  // [kMostRows / 16][head_dim / 32][16][32]
  uint16_t* values;   // [kKeysAtOnce / 2][head_dim][2]
  float* most;        // [kMostRows]
  float* total;       // [kMostRows]

  explicit WideScratch(uint8_t* memory) {
    scores = (float*)memory;
    sums = scores + kWideRows * kKeysAtOnce;
    queries = (uint16_t*)(sums + kMostRows * kMaxHeadDim);
    values = queries + kMostRows * kMaxHeadDim;
    most = (float*)(values + kKeysAtOnce * kMaxHeadDim);
    total = most + kMostRows;
  }

  float* tile(int unit, int half) const { return scores + (unit * 2 + half) * kTile * kTile; }
};

// What `join` makes of the 16 numbers of each of 16 rows, joined in the order in which `sum` and `largest` go through one row.
template <typename Join>
PENSTOCK_INLINE Floats across(const float* rows, Join join) {
  const auto halves = [&](int a, int b) __attribute__((always_inline)) {
    const __m512 first = _mm512_load_ps(rows + a * kTile), second = _mm512_load_ps(rows + b * kTile);
    return join(_mm512_shuffle_f32x4(first, second, 0x44), _mm512_shuffle_f32x4(first, second, 0xee));
  };
  __m512 fours[4];  // of rows i, i + 4, i + 8, i + 12
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512 first = halves(i, i + 4), second = halves(i + 8, i + 12);
    fours[i] = join(_mm512_shuffle_f32x4(first, second, 0x88), _mm512_shuffle_f32x4(first, second, 0xdd));
  }
  const auto eights = [&](__m512 a, __m512 b) __attribute__((always_inline)) {
    return join(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xee));
  };
  const __m512 even = eights(fours[0], fours[1]), odd = eights(fours[2], fours[3]);
  return (Floats)join(_mm512_shuffle_ps(even, odd, 0x88), _mm512_shuffle_ps(even, odd, 0xdd));
}

// Two tiles of rows, from `row` on, and the keys of one window of the running softmax that any of them sees.
struct WideWindow {
  const Attend& t;
  const WideScratch& s;
  int row, first, num_units;

  void score() const {
    const int dim = t.head_dim;
    const uint16_t* queries = s.queries + row * dim;
    for (int unit = 0; unit < num_units; unit += 2) {
      const int next = unit + 1 < num_units ? unit + 1 : unit;
      const uint16_t* left = (const uint16_t*)t.keys + unit_offset(t, first + unit * kTile) * dim;
      const uint16_t* right = (const uint16_t*)t.keys + unit_offset(t, first + next * kTile) * dim;
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
      for (int d = 0; d < dim; d += 32)
        add_square<false>(queries + d * kTile, queries + (dim + d) * kTile, left + d * kTile, right + d * kTile);
      _tile_stored(0, s.tile(unit, 0), 64);
      _tile_stored(1, s.tile(unit + 1, 0), 64);
      _tile_stored(2, s.tile(unit, 1), 64);
      _tile_stored(3, s.tile(unit + 1, 1), 64);
    }
  }

  // `weigh` for 16 rows at once; what belongs to a row stands in its lane. Earlier sums are brought to the new maximum.
  void weigh(int half, bool has_sums) const {
    alignas(64) float lanes[kTile * kTile], shifts[kTile], factors[kTile];
    const int begin = row + half * kTile, last = t.num_rows - 1;
    const auto seen = [&](int r) __attribute__((always_inline)) { return seen_by(t, begin + r < last ? begin + r : last); };
    // Units that all rows see whole, and before and after them those that they do not.
    const int low = seen(kTile - 1).begin - first, high = seen(0).end - first;
    const int plain_begin = low <= 0 ? 0 : (low + kTile - 1) / kTile;
    const int plain_end = high <= 0 ? 0 : high / kTile < num_units ? high / kTile : num_units;
    const auto is_plain = [&](int unit) { return unit >= plain_begin && unit < plain_end; };
    const auto mask = [&](int r, int unit) __attribute__((always_inline)) {
      const Ints position = kLanes + (first + unit * kTile);
      return (position >= seen(r).begin) & (position < seen(r).end);
    };
    const bool bends = bends_scores(t);
    const float steepness = bends ? kLog2E : t.scale * kLog2E;
    for (int unit = 0; bends && unit < num_units; ++unit) bend_scores(t, s.tile(unit, half), kTile * kTile);
    for (int r = 0; r < kTile; ++r) {
      Floats peak = fill(-__builtin_inff());
      const auto raise = [&](int unit) __attribute__((always_inline)) {
        peak = maximum(select(mask(r, unit), load(s.tile(unit, half) + r * kTile), fill(-__builtin_inff())), peak);
      };
      int unit = 0;
      for (; unit < plain_begin && unit < num_units; ++unit) raise(unit);
      for (; unit < plain_end; ++unit) peak = maximum(load(s.tile(unit, half) + r * kTile), peak);
      for (; unit < num_units; ++unit) raise(unit);
      store(lanes + r * kTile, peak);
    }
    const Floats before = load(s.most + begin);
    const Floats raised = maximum(across(lanes, [](__m512 a, __m512 b) { return _mm512_max_ps(a, b); }), before);
    const Floats shift = raised * steepness;
    const Floats factor = select(before == raised, fill(1.0f), power_of_two(before * steepness - shift));
    store(shifts, shift);
    store(factors, factor);
    for (int r = 0; r < kTile; ++r) {
      const Floats down = fill(shifts[r]);
      Floats sums = {};
      const auto weight = [&](int unit) __attribute__((always_inline)) {
        return power_of_two(load(s.tile(unit, half) + r * kTile) * steepness - down);
      };
      const auto keep = [&](int unit, Floats left, Floats right) __attribute__((always_inline)) {
        sums += left;
        sums += right;
        _mm512_store_si512(s.tile(unit, half) + r * kTile, (__m512i)_mm512_cvtne2ps_pbh((__m512)right, (__m512)left));
      };
      for (int unit = 0; unit < num_units; unit += 2) {
        if (is_plain(unit) && is_plain(unit + 1)) {
          keep(unit, weight(unit), weight(unit + 1));
        } else {
          const Floats left = select(mask(r, unit), weight(unit), Floats{});
          keep(unit, left, unit + 1 < num_units ? select(mask(r, unit + 1), weight(unit + 1), Floats{}) : Floats{});
        }
      }
      store(lanes + r * kTile, sums);
    }
    const Floats added = across(lanes, [](__m512 a, __m512 b) { return _mm512_add_ps(a, b); });
    store(s.most + begin, raised);
    store(s.total + begin, load(s.total + begin) * factor + added);
    for (int r = 0; has_sums && r < kTile; ++r) {
      float* sums = s.sums + (begin + r) * t.head_dim;
      for (int d = 0; factors[r] != 1.0f && d < t.head_dim; d += 16) store(sums + d, load(sums + d) * factors[r]);
    }
  }

  void add(bool has_sums) const {
    const int dim = t.head_dim;
    float* sums = s.sums + row * dim;
    for (int d = 0; d < dim; d += 32) {
      const Square square{sums + d, sums + kTile * dim + d, dim, true, has_sums};
      square.start();
      for (int unit = 0; unit < num_units; unit += 2) {
        const uint16_t* values = s.values + unit * kTile * dim + d * 2;
        _tile_loadd(4, s.tile(unit, 0), 64);
        _tile_loadd(6, values, dim * 4);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, values + 32, dim * 4);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, s.tile(unit, 1), 64);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
      square.store();
    }
  }
};

// Units of a window up to position `end`.
PENSTOCK_INLINE int units_until(int first, int end) {
  return end - first < kKeysAtOnce ? (end - first + kTile - 1) / kTile : kKeysAtOnce / kTile;
}

PENSTOCK_INLINE void gather_window(const Attend& t, const WideScratch& s, int first, int end) {
  const int dim = t.head_dim, count = units_until(first, end);
  for (int unit = 0; unit < count; ++unit) {
    const uint16_t* from = (const uint16_t*)t.values + unit_offset(t, first + unit * kTile) * dim;
    gather_values(from, dim * 2, end - first - unit * kTile, dim * 2, s.values + unit * kTile * dim);
  }
  if (count % 2) std::memset(s.values + count * kTile * dim, 0, kTile * dim * 2);
}

void attend_wide(const Attend& t, uint8_t* memory) {
  const int dim = t.head_dim, num_rows = (t.num_rows + kWideRows - 1) / kWideRows * kWideRows;
  const WideScratch s(memory);
  shape_bf16();
  for (int row = 0; row < num_rows; ++row) {
    const float* q = head_of((float*)t.chunk.q, t, t.stride, row < t.num_rows ? row : t.num_rows - 1);
    uint16_t* to = s.queries + (row / kTile * dim + row % kTile * 2) * kTile;
    for (int d = 0; d < dim; d += 16) store_bf16(to + d / 32 * 32 * kTile + d % 32, load(q + d));
    s.most[row] = -__builtin_inff();
    s.total[row] = 0.0f;
  }
  const Seen seen = span_of(t);
  const int begin = seen.begin / kKeysAtOnce * kKeysAtOnce;
  for (int first = begin; first < seen.end; first += kKeysAtOnce) {
    gather_window(t, s, first, seen.end);
    for (int row = 0; row < num_rows; row += kWideRows) {
      const int last = row + kWideRows < t.num_rows ? row + kWideRows - 1 : t.num_rows - 1, end = seen_by(t, last).end;
      if (first >= end) continue;
      const WideWindow window{t, s, row, first, units_until(first, end)};
      window.score();
      window.weigh(0, first > begin);
      window.weigh(1, first > begin);
      window.add(first > begin);
    }
  }
  for (int row = 0; row < t.num_rows; ++row) {
    float* out = head_of(t.chunk.out, t, t.out_stride, row);
    const float inverse = 1.0f / s.total[row];
    for (int d = 0; d < dim; d += 16) store(out + d, load(s.sums + row * dim + d) * inverse);
  }
}

}  // namespace
