// What attention is shared out by: rows of queries that meet the same keys.
#pragma once
#include <algorithm>

#include "share.h"

namespace penstock {
namespace {

// Some query rows of one kv head: of one chunk, or of several that generate a token each and have begun with the same blocks.
// Or of several kv heads, of a chunk of one token.
struct Item {
  int32_t first_chunk, num_chunks;  // among `Items::chunks`
  int32_t num_shared;               // positions
  int32_t kv_head, num_kv_heads, first_row, num_rows;
};

constexpr int kChunksForEach = 4;  // thread, from which single tokens are shared out whole

struct Items {
  Item* items;
  int count;
  int32_t* chunks;  // of the step, those that share beginnings side by side
};

struct Beginnings {
  const Step& step;
  int block_size;

  const int32_t* table(int chunk) const { return step.block_tables + (int64_t)chunk * step.table_stride; }
  int num_queries(int chunk) const { return step.query_starts[chunk + 1] - step.query_starts[chunk]; }
  int num_blocks(int chunk) const { return step.contexts[chunk] / block_size; }  // full ones

  bool is_before(int a, int b) const {
    const bool a_is_long = num_queries(a) > 1, b_is_long = num_queries(b) > 1;
    if (a_is_long || b_is_long) return a_is_long != b_is_long ? a_is_long : a < b;
    const int32_t *ours = table(a), *theirs = table(b);
    const int common = num_common(a, b);
    if (common < num_blocks(a) && common < num_blocks(b)) return ours[common] < theirs[common];
    return num_blocks(a) != num_blocks(b) ? num_blocks(a) > num_blocks(b) : a < b;
  }

  int num_common(int a, int b) const {
    const int most = std::min(num_blocks(a), num_blocks(b));
    int count = 0;
    while (count < most && table(a)[count] == table(b)[count]) ++count;
    return count;
  }

  // Positions, up to the end of a window of the running softmax, so that sharing changes nothing but the time.
  int num_shared(int a, int b) const { return num_common(a, b) * block_size / kKeysAtOnce * kKeysAtOnce; }
};

// Prompts come before single tokens, and late rows before early ones unless they are to stand in order, so that no thread starts
// on a long one when the others are done.
inline Items plan_items(Context& c, const Model& m, const Step& step, bool in_order) {
  const int group = m.num_heads / m.num_kv_heads;
  const Beginnings beginnings{step, m.block_size};
  int most = 0;
  for (int chunk = 0; chunk < step.num_chunks; ++chunk)
    most += pieces(beginnings.num_queries(chunk) * group, kMostRows) * m.num_kv_heads;
  Items items{c.items.reserve<Item>(most), 0, c.chunks.reserve<int32_t>(step.num_chunks)};
  for (int chunk = 0; chunk < step.num_chunks; ++chunk) items.chunks[chunk] = chunk;
  std::sort(items.chunks, items.chunks + step.num_chunks, [&](int a, int b) { return beginnings.is_before(a, b); });
  // Kv heads of a block lie side by side: memory runs ahead when they are read together.
  const bool are_many = step.num_chunks >= kChunksForEach * c.pool.num_threads();
  const int heads_at_once = are_many && group <= kTile ? kTile / group : 1;
  for (int i = 0, end; i < step.num_chunks; i = end) {
    const int chunk = items.chunks[i], rows = beginnings.num_queries(chunk) * group;
    int num_shared = 0;
    for (end = i + 1; rows == group && end < step.num_chunks && (end - i + 1) * group <= kTile; ++end) {
      const int shared = beginnings.num_shared(chunk, items.chunks[end]);
      if (shared == 0 || shared < num_shared) break;
      if (num_shared == 0) num_shared = shared;
    }
    const int heads = rows == group && end == i + 1 ? heads_at_once : 1;
    const int count = pieces(rows, kMostRows);
    for (int piece = 0; piece < count; ++piece) {
      const int first = (in_order ? piece : count - 1 - piece) * kMostRows;
      for (int head = 0; head < m.num_kv_heads; head += heads)
        items.items[items.count++] = Item{i,    end - i, num_shared, head, std::min(heads, m.num_kv_heads - head),
                                          first, std::min(rows - first, kMostRows)};
    }
  }
  return items;
}

}  // namespace
}  // namespace penstock
