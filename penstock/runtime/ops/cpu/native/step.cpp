// A whole step of a decoder: every thread walks through all layers and meets the others where numbers change hands, or takes rows
// of its own through them.
#include "step.h"

#include "panels.h"
#include "sinks.h"

namespace penstock {
namespace {

constexpr int kTilesAtOnce = 2;
constexpr int kMostAheadBytes = 768 << 10;  // beside the weights that pass by, of what a core keeps near

struct Run {
  Context& c;
  const Model& model;
  const Step& step;
  Rows input, attended, gated;
  float* stream;
  float* qkv;
  float* attention;
  float* sublayer;
  float* lines;  // kTogether of hidden_size for each thread
  Items items;
  Panels panels;  // none if products are shared out by outputs
  bool yields;    // it may be interrupted
  Sharing sharing = {};
  bool is_lost = false;  // another rank; the first thread's to say

  Adaptation adaptation = {};
  float* shrunk = nullptr;    // [tokens, shrunk_size] what adapters made of the next product's inputs
  float* wide = nullptr;      // kTogether of mlp_width for each thread
  const Together* together = nullptr;   // all rows, tile by tile
  const int32_t* starts = nullptr;      // of each tile's in it

  bool is_adapted() const { return adaptation.adapters; }
  float* shrunk_row(int row) const { return shrunk + (int64_t)row * adaptation.shrunk_size; }
  Adapting adapting(int layer, int first) const {
    if (!is_adapted()) return {};
    return {together, starts + first / kTile, shrunk, adaptation.shrunk_size, first, layer, model.mlp_width};
  }

  int qkv_size() const { return (model.num_heads + 2 * model.num_kv_heads) * model.head_dim; }
  int q_size() const { return model.num_heads * model.head_dim; }
};

int64_t block_stride(const Model& m) { return m.block_stride ? m.block_stride : m.num_kv_heads * m.block_size; }

const int32_t* table_of(const Step& step, const Layer& layer, int chunk) {
  return step.block_tables + ((int64_t)layer.table * step.num_chunks + chunk) * step.table_stride;
}

void place_row(Run& run, const Layer& layer, int row, int first_kv_head, int end_kv_head) {
  const Model& m = run.model;
  Place p = {};
  p.qkv = run.qkv + (int64_t)row * run.qkv_size();
  if (layer.rotation >= 0) {
    p.cosine = run.step.cosines[layer.rotation] + (int64_t)row * (m.rotary_dim / 2);
    p.sine = run.step.sines[layer.rotation] + (int64_t)row * (m.rotary_dim / 2);
  }
  p.q_norm = layer.q_norm;
  p.k_norm = layer.k_norm;
  p.keys = layer.keys;
  p.values = layer.values;
  p.key_scales = layer.key_scales;
  p.value_scales = layer.value_scales;
  p.slot = run.step.slots[(int64_t)layer.table * run.step.num_tokens + row];
  p.block_stride = block_stride(m);
  p.num_heads = m.num_heads;
  p.num_kv_heads = m.num_kv_heads;
  p.first_kv_head = first_kv_head;
  p.end_kv_head = end_kv_head;
  p.head_dim = m.head_dim;
  p.rotary_dim = m.rotary_dim;
  p.block_size = m.block_size;
  p.eps = m.eps;
  run.c.kernels->place(p);
}

void place_row(Run& run, const Layer& layer, int row) { place_row(run, layer, row, 0, run.model.num_kv_heads); }

// Tokens that come alone are placed when they attend, one kv head by whoever attends with it: nobody else in this step reads
// their keys and values.
bool places_late(const Run& run) {
  const int group = run.model.num_heads / run.model.num_kv_heads;
  return !run.panels.most_rows() && run.step.num_tokens == run.step.num_chunks && group <= kTile;
}

void place(const Member& member, Run& run, const Layer& layer) {
  if (!places_late(run)) each_row(member, run.step.num_tokens, [&](int row) { place_row(run, layer, row); });
}

// `chunks` has room for as many as an item may have.
Attend task_of(const Run& run, const Layer& layer, const Item& item, Queries* chunks) {
  const Model& m = run.model;
  const int group = m.num_heads / m.num_kv_heads, column = item.kv_head * group * m.head_dim;
  for (int i = 0; i < item.num_chunks; ++i) {
    const int chunk = run.items.chunks[item.first_chunk + i];
    const int begin = run.step.query_starts[chunk], length = run.step.query_starts[chunk + 1] - begin;
    chunks[i].q = run.qkv + (int64_t)begin * run.qkv_size() + column;
    chunks[i].out = run.attention + (int64_t)begin * run.q_size() + column;
    chunks[i].table = table_of(run.step, layer, chunk);
    chunks[i].start = run.step.contexts[chunk] - length;
  }
  Attend task = {};
  task.chunk = chunks[0];
  task.chunks = chunks;
  task.num_chunks = item.num_chunks;
  task.num_shared = item.num_shared;
  task.keys = layer.keys;
  task.values = layer.values;
  task.key_scales = layer.key_scales;
  task.value_scales = layer.value_scales;
  task.block_stride = block_stride(m);
  task.stride = run.qkv_size();
  task.out_stride = run.q_size();
  task.kv_head = item.kv_head;
  task.heads_at_once = item.num_kv_heads;
  task.num_kv_heads = m.num_kv_heads;
  task.heads_per_group = group;
  task.head_dim = m.head_dim;
  task.block_size = m.block_size;
  task.first_row = item.first_row;
  task.num_rows = item.num_rows;
  task.window = layer.window;
  task.scale = layer.scale;
  task.softcap = layer.softcap;
  return task;
}

void attend_item(const Member& member, Run& run, const Layer& layer, const Item& item) {
  const Model& m = run.model;
  const int group = m.num_heads / m.num_kv_heads;
  Queries chunks[kTile];
  for (int chunk = 0; places_late(run) && chunk < item.num_chunks; ++chunk)
    place_row(run, layer, run.items.chunks[item.first_chunk + chunk], item.kv_head, item.kv_head + item.num_kv_heads);
  run.c.kernels->attend(task_of(run, layer, item, chunks), run.c.scratch[member.index].reserve<uint8_t>(0));
  if (run.attended.whole) return;  // rounded when a row's heads are all there
  for (int row = 0; row < item.num_rows * item.num_chunks * item.num_kv_heads; ++row) {
    const int part = row / item.num_rows, flat = item.first_row + row % item.num_rows;
    const int chunk = run.items.chunks[item.first_chunk + (item.num_kv_heads > 1 ? 0 : part)];
    const int kv_head = item.kv_head + (item.num_kv_heads > 1 ? part : 0);
    const int token = run.step.query_starts[chunk] + flat / group, head = kv_head * group + flat % group;
    const float* out = run.attention + (int64_t)token * run.q_size() + head * m.head_dim;
    for (int d = 0; d < m.head_dim; d += kGroup)
      run.c.kernels->encode_group(out + d, run.attended, token, (head * m.head_dim + d) / kGroup);
  }
}

void attend(const Member& member, Run& run, const Layer& layer) {
  for (int i = member.take_near(run.items.count); i < run.items.count; i = member.take_near(run.items.count))
    attend_item(member, run, layer, run.items.items[i]);
  member.barrier();
}

// Rows whose numbers are all there become bytes, where they are to.
void round_rows(const Member& member, Run& run, Rows& rows) {
  if (rows.whole) each_row(member, rows.count, [&](int row) { run.c.kernels->encode(rows.whole_row(row), rows, row); });
}

// The keys and values with which a thread will begin to attend. Products of few rows leave memory idle, and attention waits for
// little else.
struct Beginning : Ahead {
  const Run* run;
  const Layer* layer;
  const Item *item, *end;
  int64_t num_bytes = kMostAheadBytes;  // still to be asked for
  int block = 0;
  bool has_keys = false;  // of the block

  Beginning(const Run& run, const Layer& layer, const Member& member) : run(&run), layer(&layer) {
    const int64_t count = run.items.count, threads = run.c.pool.num_threads();
    item = run.items.items + count * member.index / threads;
    end = run.items.items + count * (member.index + 1) / threads;
    if (places_late(run)) turn = [](Ahead& ahead) { return ((Beginning&)ahead).next(); };
  }

  bool next() {
    const Model& m = run->model;
    const Step& step = run->step;
    if (num_bytes <= 0 || item == end) return false;
    const int chunk = run->items.chunks[item->first_chunk];
    const int64_t key = table_of(step, *layer, chunk)[block] * block_stride(m) + item->kv_head * m.block_size;
    const int row_bytes = m.head_dim * (layer->key_scales ? 1 : 2), bytes = item->num_kv_heads * m.block_size * row_bytes;
    at = (const char*)(has_keys ? layer->values : layer->keys) + key * row_bytes;
    num_lines = bytes / 64;
    num_bytes -= bytes;
    block += has_keys;
    has_keys = !has_keys;
    if (block * m.block_size >= step.contexts[chunk]) ++item, block = 0;
    return true;
  }
};

// A sublayer's output that is not in the stream yet: its own norm comes between, or other ranks have parts of it.
struct Waiting {
  bool is_there = false;
  const float* norm = nullptr;  // none where only other ranks were waited for

  static Waiting of(const float* norm, bool is_shared = false) { return {norm || is_shared, norm}; }
};

// The numbers of all ranks become their sum. Whoever calls has met the other threads, and meets them here again.
void add_up(const Member& member, Run& run, float* numbers) {
  if (member.index == 0 && !run.is_lost)
    run.is_lost = run.sharing.add_up(numbers, (int64_t)run.step.num_tokens * run.model.hidden_size) != 0;
  member.barrier();
}

// A sublayer's last product, which adapters add to once all of its inputs are there, before it is added to the stream.
struct Ending {
  int layer = -1;  // none
  bool is_down = false;
  const Rows* gated = nullptr;
  int first = 0;  // row of the first of them
};

void adapt_ending(const Member& member, Run& run, const Ending& ending, const Together& rows) {
  if (ending.layer < 0 || !rows.adapter) return;
  const Model& m = run.model;
  const Kernels& k = *run.c.kernels;
  const AdapterLayer& layer = rows.adapter->layers[ending.layer];
  const AdapterMatrix& matrix = ending.is_down ? layer.down : layer.out;
  const Matrix& plain = ending.is_down ? m.layers[ending.layer].down : m.layers[ending.layer].out;
  Lines x, h, y;
  for (int i = 0; i < rows.count; ++i) {
    const int64_t row = rows.rows[i];
    float* wide = run.wide + ((int64_t)member.index * kTogether + i) * m.mlp_width;
    if (ending.is_down && matrix.num_parts) k.decode(*ending.gated, row - ending.first, wide);
    x.add(ending.is_down ? wide : run.attention + row * run.q_size());
    h.add(run.shrunk_row(row));
    y.add(run.sublayer + row * m.hidden_size);
  }
  scale(matrix, plain.bias, 0, m.hidden_size, y);
  shrink(k, matrix, x, ending.is_down ? m.mlp_width : run.q_size(), h);
  expand(k, matrix, h, 0, m.hidden_size, y);
}

// As `each_row`, but of rows of one adapter at a time.
template <typename Function>
void each_together(const Member& member, Run& run, Function function) {
  const int count = run.step.num_tokens;
  if (!run.is_adapted()) return each_row(member, count, [&](int row) { function(Together{nullptr, 1, {row}}); });
  const int64_t threads = run.c.pool.num_threads(), all = run.starts[pieces(count, kTile)];
  const int64_t end = all * (member.index + 1) / threads;
  for (int64_t i = all * member.index / threads; i < end; ++i) function(run.together[i]);
  member.barrier();
}

// A product added to the stream, at once or, where it has to wait, when `read_row` runs. Ranks add up what adapters added too.
void multiply_into_stream(const Member& member, Run& run, const Rows& rows, const Matrix& matrix, bool is_normed,
                          Ahead& ahead, Ending& ending) {
  const bool waits = is_normed || run.sharing.add_up || run.is_adapted();
  Target target{&matrix, waits ? run.sublayer : run.stream, run.model.hidden_size, !waits};
  multiply(member, run.c, rows, matrix, kTilesAtOnce, sink_of(target).beside(ahead));
  if (!run.sharing.add_up) return;
  if (run.is_adapted())
    each_together(member, run, [&](const Together& rows) { adapt_ending(member, run, ending, rows); });
  ending.layer = -1;
  add_up(member, run, run.sublayer);
}

// Finishes the sublayer before, if its output waits, and returns the stream of a row, normed unless there is no norm.
float* read_row(const Member& member, Run& run, Waiting waiting, const float* weight, int row, int place = 0) {
  const Model& m = run.model;
  float* line = run.lines + ((int64_t)member.index * kTogether + place) * m.hidden_size;
  float* stream = run.stream + (int64_t)row * m.hidden_size;
  const float* sublayer = run.sublayer + (int64_t)row * m.hidden_size;
  if (waiting.norm) {
    run.c.kernels->add(sublayer, waiting.norm, m.eps, m.hidden_size, stream);
  } else if (waiting.is_there) {
    for (int i = 0; i < m.hidden_size; ++i) stream[i] += sublayer[i];
  }
  if (!weight) return stream;
  run.c.kernels->norm(stream, weight, m.eps, m.hidden_size, line);
  return line;
}

// A product's rows of input, from `first` on.
struct Input {
  int layer;
  bool is_gate_up;
  Rows* rows;
  int first = 0;
};

// Likewise of rows together, which become the next product's input.
void read_rows(const Member& member, Run& run, Waiting waiting, const float* weight, const Together& rows, Input input) {
  Lines lines, h;
  for (int i = 0; i < rows.count; ++i) {
    lines.add(read_row(member, run, waiting, weight, rows.rows[i], i));
    run.c.kernels->encode(lines.at[i], *input.rows, rows.rows[i] - input.first);
    h.add(run.shrunk_row(rows.rows[i]));
  }
  if (!rows.adapter) return;
  const AdapterLayer& own = rows.adapter->layers[input.layer];
  shrink(*run.c.kernels, input.is_gate_up ? own.gate_up : own.qkv, lines, run.model.hidden_size, h);
}

void adapt_embedding(const Model& m, const Adapter& adapter, int64_t token, float* stream) {
  if (adapter.embedding)
    for (int i = 0; i < m.hidden_size; ++i)
      stream[i] = adapter.embedding[token * m.hidden_size + i] * m.embedding_scale;
  for (int k = 0; k < adapter.rank; ++k) {
    const float h = adapter.left[token * adapter.rank + k] * m.embedding_scale;
    for (int i = 0; i < m.hidden_size; ++i) stream[i] += h * adapter.right[(int64_t)k * m.hidden_size + i];
  }
}

// Of a vocabulary that ranks share, tokens of others are zeros here.
void embed_row(Run& run, int row) {
  const Model& m = run.model;
  float* stream = run.stream + (int64_t)row * m.hidden_size;
  const int64_t token = run.step.token_ids[row] - run.sharing.first_token;
  if (run.sharing.inputs) {
    std::memcpy(stream, run.sharing.inputs + (int64_t)row * m.hidden_size, sizeof(float) * m.hidden_size);
  } else if (token < 0 || token >= m.embedding.num_rows) {
    std::memset(stream, 0, sizeof(float) * m.hidden_size);
  } else {
    run.c.kernels->embed(m.embedding, token, m.embedding_scale, stream);
    const Adapter* adapter = run.is_adapted() ? run.adaptation.adapters[row] : nullptr;
    if (adapter) adapt_embedding(m, *adapter, token, stream);
  }
}

void finish_row(const Member& member, Run& run, Waiting waiting, int row) {
  const float* line = read_row(member, run, waiting, run.model.norm, row);
  std::memcpy(run.step.hidden + (int64_t)row * run.model.hidden_size, line, sizeof(float) * run.model.hidden_size);
}

void note(const Member& member, Run& run, Part part, int layer) {
  if (!member.index) run.c.marks.note(part, layer);
}

// ---- few rows: every product is shared out by its outputs

void walk(void* context, const Member& member) {
  Run& run = *(Run*)context;
  const Model& m = run.model;
  const Kernels& k = *run.c.kernels;
  const int count = run.step.num_tokens;
  const bool is_shared = run.sharing.add_up, waits = is_shared || run.is_adapted();
  note(member, run, Part::kStart, -1);
  each_row(member, count, [&](int row) { embed_row(run, row); });
  if (is_shared && !run.sharing.inputs) add_up(member, run, run.stream);
  Waiting waiting;
  Ending ending;
  Ahead nothing;
  Beginning next(run, m.layers[0], member);
  for (int i = 0; i < m.num_layers; ++i) {
    if (i && run.c.leaves[(i - 1) % 2]) return k.finish();
    const Layer& layer = m.layers[i];
    const auto read = [&](Waiting waiting, const float* weight, bool is_gate_up) {
      each_together(member, run, [&](const Together& rows) {
        adapt_ending(member, run, ending, rows);
        read_rows(member, run, waiting, weight, rows, {i, is_gate_up, &run.input});
      });
    };
    read(waiting, layer.attention_norm, false);
    note(member, run, Part::kRead, i);
    Target target{&layer.qkv, run.qkv, run.qkv_size(), false, &k, run.adapting(i, 0)};
    multiply(member, run.c, run.input, layer.qkv, kTilesAtOnce, sink_of(target).beside(next));
    note(member, run, Part::kQkv, i);
    place(member, run, layer);
    note(member, run, Part::kPlace, i);
    // One decides for all: they meet before any of them asks, and again before it is decided anew.
    if (!member.index && i + 1 < m.num_layers) run.c.leaves[i % 2] = run.yields && run.c.is_interrupted;
    attend(member, run, layer);
    round_rows(member, run, run.attended);
    note(member, run, Part::kAttention, i);
    ending = {i, false};
    multiply_into_stream(member, run, run.attended, layer.out, layer.attention_post_norm, nothing, ending);
    note(member, run, Part::kOut, i);
    if (i + 1 < m.num_layers) next = Beginning(run, m.layers[i + 1], member);
    read(Waiting::of(layer.attention_post_norm, waits), layer.mlp_norm, true);
    note(member, run, Part::kRead, i);
    GateTarget gates{&k, &layer.gate_up, &run.gated, m.activation, run.adapting(i, 0)};
    multiply(member, run.c, run.input, layer.gate_up, kMaxTiles, sink_of(gates).beside(next));
    round_rows(member, run, run.gated);
    note(member, run, Part::kGateUp, i);
    ending = {i, true, &run.gated};
    multiply_into_stream(member, run, run.gated, layer.down, layer.mlp_post_norm, next, ending);
    note(member, run, Part::kDown, i);
    waiting = Waiting::of(layer.mlp_post_norm, waits);
  }
  each_together(member, run, [&](const Together& rows) {
    adapt_ending(member, run, ending, rows);
    for (int i = 0; i < rows.count; ++i) finish_row(member, run, waiting, rows.rows[i]);
  });
  note(member, run, Part::kEnd, -1);
  k.finish();
}

// ---- many rows: a thread takes a panel of them through one stage after another, each from an attention to the next

struct Stage {
  const Member& member;
  Run& run;
  int first, count;
  Rows input, gated;  // the thread's own
  Ending ending;

  Stage(const Member& member, Run& run, const Panel& panel)
      : member(member), run(run), first(panel.first), count(panel.count),
        input(run.input.part(member.index * run.panels.most_rows() / kTile, count)),
        gated(run.gated.part(member.index * run.panels.most_rows() / kTile, count)) {}

  void multiply(const Rows& rows, const Matrix& matrix, Sink sink) {
    uint8_t* scratch = run.c.scratch[member.index].reserve<uint8_t>(0);
    run.c.kernels->multiply(rows, matrix, 0, num_tiles(matrix), scratch, sink);
  }

  void multiply_into_stream(const Rows& rows, const Matrix& matrix, bool is_normed) {
    const int64_t size = run.model.hidden_size;
    const bool waits = is_normed || run.is_adapted();
    Target target{&matrix, (waits ? run.sublayer : run.stream) + first * size, size, !waits};
    multiply(rows, matrix, sink_of(target));
  }

  void round_rows(Rows& rows) {
    for (int row = 0; rows.whole && row < rows.count; ++row) run.c.kernels->encode(rows.whole_row(row), rows, row);
  }

  template <typename Function>
  void each_together(Function function) {
    if (run.is_adapted()) {
      for (int i = run.starts[first / kTile]; i < run.starts[pieces(first + count, kTile)]; ++i) function(run.together[i]);
    } else {
      for (int row = first; row < first + count; ++row) function(Together{nullptr, 1, {row}});
    }
  }

  void read(Waiting waiting, const float* weight, int number, bool is_gate_up) {
    each_together([&](const Together& rows) {
      adapt_ending(member, run, ending, rows);
      read_rows(member, run, waiting, weight, rows, {number, is_gate_up, &input, first});
    });
  }

  void finish(Waiting waiting) {
    each_together([&](const Together& rows) {
      adapt_ending(member, run, ending, rows);
      for (int i = 0; i < rows.count; ++i) finish_row(member, run, waiting, rows.rows[i]);
    });
  }

  void before_attention(int i, Waiting waiting) {
    const Layer& layer = run.model.layers[i];
    read(waiting, layer.attention_norm, i, false);
    note(member, run, Part::kRead, i);
    Target target{&layer.qkv, run.qkv + (int64_t)first * run.qkv_size(), run.qkv_size(), false,
                  run.c.kernels, run.adapting(i, first)};
    multiply(input, layer.qkv, sink_of(target));
    note(member, run, Part::kQkv, i);
    for (int row = first; row < first + count; ++row) place_row(run, layer, row);
    note(member, run, Part::kPlace, i);
  }

  void after_attention(int i) {
    const Layer& layer = run.model.layers[i];
    Rows attended = run.attended.part(first / kTile, count);
    round_rows(attended);
    ending = {i, false};
    multiply_into_stream(attended, layer.out, layer.attention_post_norm);
    note(member, run, Part::kOut, i);
    read(Waiting::of(layer.attention_post_norm, run.is_adapted()), layer.mlp_norm, i, true);
    note(member, run, Part::kRead, i);
    GateTarget gates{run.c.kernels, &layer.gate_up, &gated, run.model.activation, run.adapting(i, first)};
    multiply(input, layer.gate_up, sink_of(gates));
    round_rows(gated);
    note(member, run, Part::kGateUp, i);
    ending = {i, true, &gated, first};
    multiply_into_stream(gated, layer.down, layer.mlp_post_norm);
    note(member, run, Part::kDown, i);
  }
};

void walk_panels(void* context, const Member& member) {
  Run& run = *(Run*)context;
  const Model& m = run.model;
  note(member, run, Part::kStart, -1);
  while (Panel* panel = run.panels.take(member.index)) {
    note(member, run, Part::kStart, -1);  // what lies before it was waited for
    if (run.yields && run.c.is_interrupted) {
      run.c.leaves[0] = true;
      run.panels.leave();
      break;
    }
    Stage stage(member, run, *panel);
    const int i = panel->num_done, end = panel->first + panel->count;
    const Waiting waiting = i ? Waiting::of(m.layers[i - 1].mlp_post_norm, run.is_adapted()) : Waiting{};
    for (int item = panel->first_item; i && item < panel->end_item; ++item)
      attend_item(member, run, m.layers[i - 1], run.items.items[item]);
    if (i) note(member, run, Part::kAttention, i - 1);
    if (i) stage.after_attention(i - 1);
    for (int row = panel->first; !i && row < end; ++row) embed_row(run, row);
    if (i < m.num_layers) stage.before_attention(i, waiting);
    if (i == m.num_layers) stage.finish(waiting);
    run.panels.put_back(*panel);
  }
  note(member, run, Part::kEnd, -1);
  run.c.kernels->finish();
}

// Rows of a tile that have one adapter go together, as long as every thread has some.
void put_together(Run& run) {
  const int count = run.step.num_tokens, threads = run.c.pool.num_threads();
  const int most = std::clamp(pieces(count, threads), 1, kTogether);
  Together* together = run.c.together.reserve<Together>(count);
  int32_t* starts = run.c.starts.reserve<int32_t>(pieces(count, kTile) + 1);
  int found = 0;
  for (int row = 0; row < count; ++row) {
    if (row % kTile == 0) starts[row / kTile] = found;
    const Adapter* adapter = run.adaptation.adapters[row];
    int i = starts[row / kTile];
    while (i < found && (together[i].adapter != adapter || together[i].count == most)) ++i;
    if (i == found) together[found++] = {adapter, 0, {}};
    together[i].rows[together[i].count++] = row;
  }
  starts[pieces(count, kTile)] = found;
  run.together = together;
  run.starts = starts;
}

void prepare_adapters(Run& run, const Adaptation& adaptation) {
  if (!adaptation.adapters) return;
  run.adaptation = adaptation;
  run.shrunk = run.c.shrunk.reserve<float>((size_t)run.step.num_tokens * adaptation.shrunk_size);
  run.wide = run.c.wide.reserve<float>((size_t)run.c.pool.num_threads() * kTogether * run.model.mlp_width);
  put_together(run);
}

Run prepare(Context& c, const Model& m, const Step& s, bool in_panels, bool is_adapted = false) {
  const int q_size = m.num_heads * m.head_dim, qkv_size = q_size + 2 * m.num_kv_heads * m.head_dim;
  const Number number = c.number_for(s.num_tokens, m.invariant, m.layers[0].qkv);
  const size_t tokens = pieces(s.num_tokens, kTile) * kTile;  // products may write whole tiles
  Run run{c, m, s, {}, {}, {}, nullptr, nullptr, nullptr, nullptr, nullptr, {}, {}, false};
  if (in_panels && number != Number::kInteger && s.num_tokens >= kPanelsFrom * c.pool.num_threads()) {
    run.panels = Panels(c, m, s, run.items);
  } else {
    run.items = make_items(c, m, s, 1);
    plan_items(m, s, 0, s.num_tokens, run.items);
  }
  const int panel_rows = run.panels.most_rows();
  const int held = panel_rows ? panel_rows * c.pool.num_threads() : s.num_tokens;  // between two attentions
  run.input = c.input.reserve(held, m.hidden_size, number);
  run.attended = c.attended.reserve(s.num_tokens, q_size, number);
  run.gated = c.gated.reserve(held, m.mlp_width, number);
  run.stream = c.stream.reserve<float>(tokens * m.hidden_size);
  run.qkv = c.qkv.reserve<float>(tokens * qkv_size);
  run.attention = c.attention.reserve<float>(tokens * q_size);
  const bool waits = m.layers[0].attention_post_norm || is_adapted || !in_panels;
  run.sublayer = c.sublayer.reserve<float>(waits ? tokens * m.hidden_size : 1);
  if (number == Number::kByte) {
    run.attended.whole = run.attention;
    run.gated.whole = c.ungated.reserve<float>((size_t)held * m.mlp_width);
  }
  run.lines = c.line.reserve<float>((size_t)c.pool.num_threads() * kTogether * m.hidden_size);
  const int widest = m.hidden_size > m.mlp_width ? m.hidden_size : m.mlp_width;
  c.reserve_scratch(widest > q_size ? widest : q_size);
  return run;
}

}  // namespace

bool run_step(Context& c, const Model& model, const Step& step, bool yields, const Sharing& sharing,
              const Adaptation& adaptation) {
  // Ranks meet after every sublayer of all rows.
  Run run = prepare(c, model, step, !sharing.add_up, adaptation.adapters);
  prepare_adapters(run, adaptation);
  run.yields = yields;
  run.sharing = sharing;
  c.leaves[0] = c.leaves[1] = false;
  c.pool.run(run.panels.most_rows() ? walk_panels : walk, &run);
  return !c.leaves[0] && !c.leaves[1] && !run.is_lost;
}

void run_attention(Context& c, const Model& model, const Step& step, float* qkv, float* out) {
  Run run = prepare(c, model, step, false);
  run.qkv = qkv;
  run.attention = out;
  c.pool.run(
      [](void* context, const Member& member) {
        Run& run = *(Run*)context;
        place(member, run, run.model.layers[0]);
        attend(member, run, run.model.layers[0]);
        run.c.kernels->finish();
      },
      &run);
}

}  // namespace penstock
