// Attention over the paged cache with matrix tiles: bf16 times bf16, or whole numbers of 8 bits on both sides.

namespace {

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
      Floats spoiled = {};
      const float factor =
          weigh(t, s.scores + row * kKeysAtOnce, first, num_keys, sees_all ? Seen{0, end} : seen_by(t, row), s.most[row],
                s.total[row], [&](int i, Floats weight) { Cache::keep(t, s, window, row, first, i, weight, spoiled); });
      if (Cache::kSpoils) s.spoiled[row] += sum(spoiled);
      if (factor != 1.0f)
        for (int d = 0; d < dim; d += 16) store(s.sums + row * dim + d, load(s.sums + row * dim + d) * factor);
    }
    Cache::add(t, s, window, first, num_keys, end);
  }
}

// Tiles treat every row as if it were alone, so that what chunks share may be read for all of them at once.
template <typename FewRows, typename ManyRows>
void attend_over(const Attend& t, uint8_t* memory) {
  const int dim = t.head_dim, num_rows = t.num_chunks * t.num_rows;
  Scratch s(memory);
  const auto span = [](const Attend& t, const Scratch& s, int begin, int end, bool sees_all) {
    (t.num_rows <= kTile / 2 ? attend_span<FewRows> : attend_span<ManyRows>)(t, s, begin, end, sees_all);
  };
  for (int row = 0; row < num_rows; ++row) {
    s.spoiled[row] = 0.0f;
    s.most[row] = -__builtin_inff();
    s.total[row] = 0.0f;
    const float* q = head_of((float*)t.chunks[row / t.num_rows].q, t, t.stride, row % t.num_rows);
    FewRows::encode(t, s, row, q);
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
    attend_over<ByteCache<true>, ByteCache<false>>(t, scratch);
  else
    attend_over<Bf16Cache, Bf16Cache>(t, scratch);
}

}  // namespace
