#include "rows.h"

#include <cstring>

namespace penstock {
namespace {

struct Chunk {
  int64_t row, start, length, samples;
};

Chunk chunk_at(const RowsStep& s, int index) {
  const int64_t* at = s.chunks + index;
  return {at[0], at[s.num_chunks], at[2 * s.num_chunks], at[3 * s.num_chunks]};
}

bool is_within(const RowsStep& s, const Model& m, const Chunk& chunk) {
  const int64_t end = chunk.start + chunk.length, most = s.num_blocks ? s.num_blocks[chunk.row] : s.num_columns();
  return chunk.start >= 0 && chunk.length > 0 && end <= most * m.block_size && end < s.token_stride;
}

// The step as the kernels read it, in memory that outlives the call.
Step gather(Context& c, const Model& m, const RowsStep& s, int num_tokens, int most_blocks) {
  RowsMemory& memory = c.rows;
  const int half = m.rotary_dim / 2;
  int64_t* ids = memory.ids.reserve<int64_t>(num_tokens);
  int64_t* slots = memory.slots.reserve<int64_t>((size_t)s.num_tables * num_tokens);
  int32_t* tables = memory.tables.reserve<int32_t>((size_t)s.num_tables * s.num_chunks * most_blocks);
  int32_t* starts = memory.starts.reserve<int32_t>(s.num_chunks + 1);
  int32_t* contexts = memory.contexts.reserve<int32_t>(s.num_chunks);
  float* angles = memory.angles.reserve<float>((size_t)2 * s.num_rotations * num_tokens * half);
  const float** places = memory.places.reserve<const float*>(2 * s.num_rotations);
  for (int i = 0; i < 2 * s.num_rotations; ++i) places[i] = angles + (size_t)i * num_tokens * half;
  int token = 0;
  for (int i = 0; i < s.num_chunks; ++i) {
    const Chunk chunk = chunk_at(s, i);
    const int32_t* table = s.tables + chunk.row * s.table_stride;
    starts[i] = token;
    contexts[i] = (int32_t)(chunk.start + chunk.length);
    for (int t = 0; t < s.num_tables; ++t)
      std::memcpy(tables + ((size_t)t * s.num_chunks + i) * most_blocks, table + t * s.num_columns(),
                  sizeof(int32_t) * ((contexts[i] + m.block_size - 1) / m.block_size));
    for (int r = 0; r < s.num_rotations; ++r) {
      const size_t count = chunk.length * half, from = chunk.start * half, to = (size_t)token * half;
      std::memcpy((float*)places[r] + to, s.cosines[r] + from, sizeof(float) * count);
      std::memcpy((float*)places[s.num_rotations + r] + to, s.sines[r] + from, sizeof(float) * count);
    }
    for (int64_t at = chunk.start; at < chunk.start + chunk.length; ++at, ++token) {
      ids[token] = s.tokens[chunk.row * s.token_stride + at];
      for (int t = 0; t < s.num_tables; ++t)
        slots[(size_t)t * num_tokens + token] =
            (int64_t)table[t * s.num_columns() + at / m.block_size] * m.block_size + at % m.block_size;
    }
  }
  starts[s.num_chunks] = token;
  return Step{ids,   slots,    tables,     starts,       contexts,    places, places + s.num_rotations,
              s.hidden, num_tokens, s.num_chunks, most_blocks, 0};
}

// Told by the runner's rows: what each token has.
Adaptation of_tokens(Context& c, const RowsStep& s, const Step& step, Adaptation adaptation) {
  if (!adaptation.adapters) return adaptation;
  const Adapter** adapters = c.rows.adapters.reserve<const Adapter*>(step.num_tokens);
  for (int i = 0; i < s.num_chunks; ++i)
    for (int token = step.query_starts[i]; token < step.query_starts[i + 1]; ++token)
      adapters[token] = adaptation.adapters[chunk_at(s, i).row];
  adaptation.adapters = adapters;
  return adaptation;
}

bool are_finite(const float* numbers, size_t count) {
  constexpr uint32_t kExponent = 0x7f800000u;  // all ones in infinities and NaN only
  uint32_t is_spoiled = 0;
  for (size_t i = 0; i < count; ++i) {
    uint32_t bits;
    std::memcpy(&bits, numbers + i, sizeof bits);
    is_spoiled |= (bits & kExponent) == kExponent;
  }
  return !is_spoiled;
}

// The likeliest token after the last state of every chunk that draws.
void draw(Context& c, const Model& m, const RowsStep& s, const Step& step) {
  const size_t size = m.hidden_size;
  float* states = c.rows.states.reserve<float>(s.num_chunks * size);
  int64_t* found = c.rows.found.reserve<int64_t>(s.num_chunks);
  int count = 0;
  for (int i = 0; i < s.num_chunks; ++i)
    if (chunk_at(s, i).samples)
      std::memcpy(states + count++ * size, s.hidden + (step.query_starts[i + 1] - 1) * size, sizeof(float) * size);
  if (count) run_product(c, m.output, Product{states, nullptr, found, count, 0, m.invariant, 0.0f});
  count = 0;
  for (int i = 0; i < s.num_chunks; ++i) {
    const Chunk chunk = chunk_at(s, i);
    const size_t begin = step.query_starts[i], end = step.query_starts[i + 1];
    s.drawn[i] = chunk.samples ? found[count++] : 0;
    if (!are_finite(s.hidden + begin * size, (end - begin) * size)) s.drawn[i] = -1;
    if (chunk.samples && s.drawn[i] >= 0)
      s.tokens[chunk.row * s.token_stride + chunk.start + chunk.length] = (int32_t)s.drawn[i];
  }
}

}  // namespace

Outcome run_rows(Context& c, const Model& model, const RowsStep& s, const Adaptation& adaptation) {
  int64_t num_tokens = 0, most_blocks = 0;
  for (int i = 0; i < s.num_chunks; ++i) {
    const Chunk chunk = chunk_at(s, i);
    if (!is_within(s, model, chunk)) return Outcome::kBeyond;
    const int64_t blocks = (chunk.start + chunk.length + model.block_size - 1) / model.block_size;
    num_tokens += chunk.length;
    if (blocks > most_blocks) most_blocks = blocks;
  }
  const Step step = gather(c, model, s, (int)num_tokens, (int)most_blocks);
  if (!run_step(c, model, step, s.yields, {}, of_tokens(c, s, step, adaptation))) return Outcome::kInterrupted;
  if (s.draws) draw(c, model, s, step);
  return Outcome::kDone;
}

}  // namespace penstock
