// Attention over the paged cache with matrix tiles: bf16 times bf16, or whole numbers of 8 bits on both sides.

namespace {

// The keys and values of positions `begin` .. `end`, from the start of a window on, of one kv head or several. Rows see their
// own, or all.
template <typename Cache>
void attend_span(const Attend& t, Scratch all, int begin, int end, bool sees_all) {
  const int dim = t.head_dim, num_heads = t.heads_at_once;
  Cache::shape(t);
  for (int first = begin; first < end; first += kKeysAtOnce) {
    const int left = end - first, num_keys = left < kKeysAtOnce ? (left + 15) / 16 * 16 : kKeysAtOnce;
    for (int i = 0; i < num_keys; i += Cache::kUnitsAtOnce * kTile)
      for (int head = 0; head < num_heads; ++head) {
        Scratch s = all.from(head * t.num_rows, dim);
        Cache::score(t.head(head), s, first, i, num_keys);
      }
    for (int head = 0; head < num_heads; ++head) {
      const Attend one = t.head(head);
      Scratch s = all.from(head * t.num_rows, dim);
      Cache::scale(one, s, first, num_keys);
      const typename Cache::Window window(one, first, first + (left < kKeysAtOnce ? left : kKeysAtOnce));
      for (int row = 0; row < t.num_rows; ++row) {
        Floats spoiled = {};
        const float factor = weigh(
            one, s.scores + row * kKeysAtOnce, first, num_keys, sees_all ? Seen{0, end} : seen_by(t, row), s.most[row],
            s.total[row], [&](int i, Floats weight) { Cache::keep(one, s, window, row, first, i, weight, spoiled); });
        if (Cache::kSpoils) s.spoiled[row] += sum(spoiled);
        if (factor != 1.0f)
          for (int d = 0; d < dim; d += 16) store(s.sums + row * dim + d, load(s.sums + row * dim + d) * factor);
      }
      Cache::add(one, s, window, first, num_keys, end);
    }
  }
}

// Tiles treat every row as if it were alone, so that what chunks share may be read for all of them at once.
template <typename FewRows, typename ManyRows>
void attend_over(const Attend& t, uint8_t* memory) {
  const int dim = t.head_dim, num_rows = t.num_chunks * t.heads_at_once * t.num_rows;
  Scratch s(memory);
  const auto span = [](const Attend& t, const Scratch& s, int begin, int end, bool sees_all) {
    (t.num_rows <= kTile / 2 ? attend_span<FewRows> : attend_span<ManyRows>)(t, s, begin, end, sees_all);
  };
  const auto part_of = [&](int row) {
    const int part = row / t.num_rows;
    return t.part(part / t.heads_at_once).head(part % t.heads_at_once);
  };
  for (int row = 0; row < num_rows; ++row) {
    s.spoiled[row] = 0.0f;
    s.most[row] = -__builtin_inff();
    s.total[row] = 0.0f;
    FewRows::encode(t, s, row, head_of((float*)part_of(row).chunk.q, t, t.stride, row % t.num_rows));
  }
  std::memset(s.sums, 0, sizeof(float) * num_rows * dim);
  const int num_shared = t.window ? 0 : t.num_shared;
  if (num_shared) {
    Attend all = t.part(0);
    all.num_rows = num_rows;
    span(all, s, 0, num_shared, true);
  }
  for (int i = 0; i < t.num_chunks; ++i) {
    const Attend part = t.part(i);
    const Seen seen = span_of(part);
    const int begin = seen.begin > num_shared ? seen.begin / kKeysAtOnce * kKeysAtOnce : num_shared;
    span(part, s.from(i * t.num_rows, dim), begin, seen.end, false);
  }
  for (int row = 0; row < num_rows; ++row) {
    float* out = head_of(part_of(row).chunk.out, t, t.out_stride, row % t.num_rows);
    const float* sums = s.sums + row * dim;
    const float inverse = 1.0f / s.total[row], spoiled = s.spoiled[row];
    for (int d = 0; d < dim; d += 16) store(out + d, load(sums + d) * inverse + spoiled);
  }
}

void attend(const Attend& t, uint8_t* scratch) {
  if (!t.key_scales) return (t.num_rows > kTile ? attend_wide : attend_over<Bf16Cache, Bf16Cache>)(t, scratch);
  Attend part = t;
  for (int row = 0; row < t.num_rows; row += kTile) {
    part.first_row = t.first_row + row;
    part.num_rows = t.num_rows - row < kTile ? t.num_rows - row : kTile;
    attend_over<ByteCache<true>, ByteCache<false>>(part, scratch);
  }
}

}  // namespace
