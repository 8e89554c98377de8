// A whole step of a decoder: every thread walks through all layers and meets the others where numbers change hands.
#include "step.h"

#include <cstring>

namespace penstock {
namespace {

constexpr int kTilesAtOnce = 2;

int pieces(int count, int size) { return (count + size - 1) / size; }

// Some query rows of a chunk and of one kv head.
struct Item {
  int32_t chunk, kv_head, first_row, num_rows;
};

// ---- where products go

struct Target {
  const Matrix* matrix;
  float* to;
  int64_t stride;
  bool adds;
};

void put(void* context, const Block& block) {
  const Target& target = *(const Target*)context;
  const int column = block.first_tile * kTile;
  const int left = target.matrix->num_rows - column, width = block.num_tiles * kTile;
  const int count = left < width ? left : width;
  const float* bias = target.matrix->bias ? target.matrix->bias + column : nullptr;
  for (int r = 0; r < block.num_rows; ++r) {
    float* to = target.to + (int64_t)(block.row_tile * kTile + r) * target.stride + column;
    float* from = block.values + r * kBlockStride;
    if (bias)
      for (int i = 0; i < count; ++i) from[i] += bias[i];
    if (target.adds) {
      for (int i = 0; i < count; ++i) to[i] += from[i];
    } else {
      std::memcpy(to, from, sizeof(float) * count);
    }
  }
}

struct PeakTarget {
  const Kernels* kernels;
  const Matrix* matrix;
  Peak* peaks;  // [rows], the thread's own
};

void put_peaks(void* context, const Block& block) {
  const PeakTarget& target = *(const PeakTarget*)context;
  const int column = block.first_tile * kTile, left = target.matrix->num_rows - column;
  const int count = left < block.num_tiles * kTile ? left : block.num_tiles * kTile;
  for (int r = 0; r < block.num_rows; ++r) {
    float* values = block.values + r * kBlockStride;
    if (target.matrix->bias)
      for (int i = 0; i < count; ++i) values[i] += target.matrix->bias[column + i];
    target.kernels->peak(values, count, column, target.peaks[block.row_tile * kTile + r]);
  }
}

struct GateTarget {
  const Kernels* kernels;
  const Matrix* matrix;
  Rows* rows;
  int activation;
};

// Two tiles of gates and the two of the same up rows become one group of the next product's input.
void put_gated(void* context, const Block& block) {
  const GateTarget& target = *(const GateTarget*)context;
  for (int r = 0; r < block.num_rows; ++r) {
    float* values = block.values + r * kBlockStride;
    if (target.matrix->bias)
      for (int i = 0; i < 2 * kGroup; ++i) values[i] += target.matrix->bias[block.first_tile * kTile + i];
    target.kernels->gate(values, values + kGroup, kGroup, target.activation);
    target.kernels->encode_group(values, *target.rows, block.row_tile * kTile + r, block.first_tile / kMaxTiles);
  }
}

// Output tiles that a thread multiplies at a time. With many rows wide pieces read the rows less often, but the threads
// should end together; with few, every weight is met once and small pieces even out.
int piece_size(const Context& c, const Rows& rows, const Matrix& matrix, int unit) {
  if (rows.number != Number::kBf16 || rows.num_tiles() <= 2) return unit;
  const int tiles = num_tiles(matrix), threads = c.pool.num_threads();
  int most = kMostWidenedBytes / (rows.num_groups * 1024);
  most = most < unit ? unit : most < kWidestPiece ? most / unit * unit : kWidestPiece;
  int best = unit, least = tiles;
  for (int size = most; size >= unit; size -= unit) {
    const int busiest = pieces(pieces(tiles, size), threads) * size;
    if (busiest < least) best = size, least = busiest;
  }
  return best;
}

void multiply(const Member& member, Context& c, const Rows& rows, const Matrix& matrix, int unit, Sink sink) {
  const int tiles_at_once = piece_size(c, rows, matrix, unit);
  const int tiles = num_tiles(matrix), count = pieces(tiles, tiles_at_once);
  uint8_t* scratch = c.scratch[member.index].reserve<uint8_t>(0);
  for (int i = member.take(count); i < count; i = member.take(count)) {
    const int first = i * tiles_at_once, left = tiles - first;
    c.kernels->multiply(rows, matrix, first, left < tiles_at_once ? left : tiles_at_once, scratch, sink);
  }
  member.barrier();
}

// ---- a step

struct Run {
  Context& c;
  const Model& model;
  const Step& step;
  Rows input, attended, gated;
  float* stream;
  float* qkv;
  float* attention;
  float* sublayer;
  float* lines;  // one of hidden_size for each thread
  Item* items;
  int num_items;

  int qkv_size() const { return (model.num_heads + 2 * model.num_kv_heads) * model.head_dim; }
  int q_size() const { return model.num_heads * model.head_dim; }
};

template <typename Function>
void each_row(const Member& member, int count, Function function) {
  const int tiles = pieces(count, kTile);
  for (int tile = member.take(tiles); tile < tiles; tile = member.take(tiles)) {
    const int end = (tile + 1) * kTile < count ? (tile + 1) * kTile : count;
    for (int row = tile * kTile; row < end; ++row) function(row);
  }
  member.barrier();
}

void place(const Member& member, Run& run, const Layer& layer) {
  const Model& m = run.model;
  each_row(member, run.step.num_tokens, [&](int row) {
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
    p.slot = run.step.slots[row];
    p.num_heads = m.num_heads;
    p.num_kv_heads = m.num_kv_heads;
    p.head_dim = m.head_dim;
    p.rotary_dim = m.rotary_dim;
    p.block_size = m.block_size;
    p.eps = m.eps;
    run.c.kernels->place(p);
  });
}

void attend(const Member& member, Run& run, const Layer& layer) {
  const Model& m = run.model;
  uint8_t* scratch = run.c.scratch[member.index].reserve<uint8_t>(0);
  const int group = m.num_heads / m.num_kv_heads;
  for (int i = member.take(run.num_items); i < run.num_items; i = member.take(run.num_items)) {
    const Item& item = run.items[i];
    const int begin = run.step.query_starts[item.chunk], length = run.step.query_starts[item.chunk + 1] - begin;
    Attend task = {};
    task.q = run.qkv + (int64_t)begin * run.qkv_size() + item.kv_head * group * m.head_dim;
    task.out = run.attention + (int64_t)begin * run.q_size() + item.kv_head * group * m.head_dim;
    task.table = run.step.block_tables + (int64_t)item.chunk * run.step.table_stride;
    task.keys = layer.keys;
    task.values = layer.values;
    task.key_scales = layer.key_scales;
    task.value_scales = layer.value_scales;
    task.stride = run.qkv_size();
    task.out_stride = run.q_size();
    task.kv_head = item.kv_head;
    task.num_kv_heads = m.num_kv_heads;
    task.heads_per_group = group;
    task.head_dim = m.head_dim;
    task.block_size = m.block_size;
    task.start = run.step.contexts[item.chunk] - length;
    task.first_row = item.first_row;
    task.num_rows = item.num_rows;
    task.window = layer.window;
    task.scale = layer.scale;
    task.softcap = layer.softcap;
    run.c.kernels->attend(task, scratch);
    for (int row = item.first_row; row < item.first_row + item.num_rows; ++row) {
      const int token = begin + row / group, head = item.kv_head * group + row % group;
      const float* out = run.attention + (int64_t)token * run.q_size() + head * m.head_dim;
      for (int d = 0; d < m.head_dim; d += kGroup)
        run.c.kernels->encode_group(out + d, run.attended, token, (head * m.head_dim + d) / kGroup);
    }
  }
  member.barrier();
}

// A product added to the stream, at once or, where its own norm comes between, when `read_stream` runs.
void multiply_into_stream(const Member& member, Run& run, const Rows& rows, const Matrix& matrix, bool is_normed) {
  Target target{&matrix, is_normed ? run.sublayer : run.stream, run.model.hidden_size, !is_normed};
  multiply(member, run.c, rows, matrix, kTilesAtOnce, Sink{put, &target});
}

// Finishes the sublayer before, if its output waits for a norm, and hands the normed stream to `use(row, line)`.
template <typename Use>
void read_stream(const Member& member, Run& run, const float* waiting, const float* weight, Use use) {
  const Model& m = run.model;
  float* line = run.lines + (int64_t)member.index * m.hidden_size;
  each_row(member, run.step.num_tokens, [&](int row) {
    float* stream = run.stream + (int64_t)row * m.hidden_size;
    if (waiting) run.c.kernels->add(run.sublayer + (int64_t)row * m.hidden_size, waiting, m.eps, m.hidden_size, stream);
    run.c.kernels->norm(stream, weight, m.eps, m.hidden_size, line);
    use(row, line);
  });
}

void walk(void* context, const Member& member) {
  Run& run = *(Run*)context;
  const Model& m = run.model;
  const Kernels& k = *run.c.kernels;
  each_row(member, run.step.num_tokens, [&](int row) {
    k.embed(m.embedding, run.step.token_ids[row], m.embedding_scale, run.stream + (int64_t)row * m.hidden_size);
  });
  const float* waiting = nullptr;
  const auto encode = [&](int row, const float* line) { k.encode(line, run.input, row); };
  for (int i = 0; i < m.num_layers; ++i) {
    const Layer& layer = m.layers[i];
    read_stream(member, run, waiting, layer.attention_norm, encode);
    Target target{&layer.qkv, run.qkv, run.qkv_size(), false};
    multiply(member, run.c, run.input, layer.qkv, kTilesAtOnce, Sink{put, &target});
    place(member, run, layer);
    attend(member, run, layer);
    multiply_into_stream(member, run, run.attended, layer.out, layer.attention_post_norm);
    read_stream(member, run, layer.attention_post_norm, layer.mlp_norm, encode);
    GateTarget gates{&k, &layer.gate_up, &run.gated, m.activation};
    multiply(member, run.c, run.input, layer.gate_up, kMaxTiles, Sink{put_gated, &gates});
    multiply_into_stream(member, run, run.gated, layer.down, layer.mlp_post_norm);
    waiting = layer.mlp_post_norm;
  }
  read_stream(member, run, waiting, m.norm, [&](int row, const float* line) {
    std::memcpy(run.step.hidden + (int64_t)row * m.hidden_size, line, sizeof(float) * m.hidden_size);
  });
  k.finish();
}

// Long rows first, so that no thread starts on one when the others are done.
void plan_items(Run& run) {
  const int group = run.model.num_heads / run.model.num_kv_heads;
  int count = 0;
  for (int chunk = 0; chunk < run.step.num_chunks; ++chunk) {
    const int rows = (run.step.query_starts[chunk + 1] - run.step.query_starts[chunk]) * group;
    count += pieces(rows, kTile) * run.model.num_kv_heads;
  }
  run.items = run.c.items.reserve<Item>(count);
  run.num_items = 0;
  for (int chunk = 0; chunk < run.step.num_chunks; ++chunk) {
    const int rows = (run.step.query_starts[chunk + 1] - run.step.query_starts[chunk]) * group;
    for (int first = (pieces(rows, kTile) - 1) * kTile; first >= 0; first -= kTile)
      for (int head = 0; head < run.model.num_kv_heads; ++head)
        run.items[run.num_items++] = Item{chunk, head, first, rows - first < kTile ? rows - first : kTile};
  }
}

Run prepare(Context& c, const Model& m, const Step& s) {
  const int q_size = m.num_heads * m.head_dim, qkv_size = q_size + 2 * m.num_kv_heads * m.head_dim;
  const Number number = c.number_for(s.num_tokens, m.invariant);
  const size_t tokens = s.num_tokens;
  Run run{c, m, s, {}, {}, {}, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, 0};
  run.input = c.input.reserve(s.num_tokens, m.hidden_size, number);
  run.attended = c.attended.reserve(s.num_tokens, q_size, number);
  run.gated = c.gated.reserve(s.num_tokens, m.mlp_width, number);
  run.stream = c.stream.reserve<float>(tokens * m.hidden_size);
  run.qkv = c.qkv.reserve<float>(tokens * qkv_size);
  run.attention = c.attention.reserve<float>(tokens * q_size);
  run.sublayer = c.sublayer.reserve<float>(m.layers[0].attention_post_norm ? tokens * m.hidden_size : 1);
  run.lines = c.line.reserve<float>((size_t)c.pool.num_threads() * m.hidden_size);
  const int widest = m.hidden_size > m.mlp_width ? m.hidden_size : m.mlp_width;
  c.reserve_scratch(widest > q_size ? widest : q_size);
  plan_items(run);
  return run;
}

}  // namespace

void run_step(Context& c, const Model& model, const Step& step) {
  Run run = prepare(c, model, step);
  c.pool.run(walk, &run);
}

void run_attention(Context& c, const Model& model, const Step& step, float* qkv, float* out) {
  Run run = prepare(c, model, step);
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

void run_product(Context& c, const Matrix& matrix, const Product& product) {
  struct Work {
    Context& c;
    const Matrix& matrix;
    const Product& product;
    Rows rows;
    Peak* peaks;  // [threads][rows]
  };
  const Number number = product.number == 16 ? Number::kBf16 : product.number == 8 ? Number::kInteger
                        : c.number_for(product.num_rows, product.invariant);
  c.reserve_scratch(matrix.num_columns);
  Work work{c, matrix, product, c.input.reserve(product.num_rows, matrix.num_columns, number), nullptr};
  const int num_peaks = product.likeliest ? product.num_rows * c.pool.num_threads() : 0;
  work.peaks = c.items.reserve<Peak>(num_peaks);
  for (int i = 0; i < num_peaks; ++i) work.peaks[i] = Peak{-__builtin_inff(), 0, 0.0f};
  c.pool.run(
      [](void* context, const Member& member) {
        Work& w = *(Work*)context;
        const Product& p = w.product;
        each_row(member, p.num_rows,
                 [&](int row) { w.c.kernels->encode(p.x + (int64_t)row * w.matrix.num_columns, w.rows, row); });
        Target target{&w.matrix, p.out, w.matrix.num_rows, false};
        PeakTarget peaks{w.c.kernels, &w.matrix, w.peaks + (int64_t)member.index * p.num_rows};
        const Sink sink = p.likeliest ? Sink{put_peaks, &peaks} : Sink{put, &target};
        multiply(member, w.c, w.rows, w.matrix, kMaxTiles, sink);
        if (p.softcap > 0.0f && p.out)
          each_row(member, p.num_rows, [&](int row) {
            w.c.kernels->softcap(p.out + (int64_t)row * w.matrix.num_rows, w.matrix.num_rows, p.softcap);
          });
        w.c.kernels->finish();
      },
      &work);
  for (int row = 0; product.likeliest && row < product.num_rows; ++row) {
    Peak best = work.peaks[row];
    for (int thread = 1; thread < c.pool.num_threads(); ++thread) {
      const Peak& other = work.peaks[(int64_t)thread * product.num_rows + row];
      best.spoiled += other.spoiled;
      if (other.most > best.most || (other.most == best.most && other.place < best.place))
        best.most = other.most, best.place = other.place;
    }
    product.likeliest[row] = best.spoiled == 0.0f ? best.place : -1;
  }
}

}  // namespace penstock
