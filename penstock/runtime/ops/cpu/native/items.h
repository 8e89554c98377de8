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
  int num_chunks;
  int heads_at_once;  // kv heads
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

// Room for the items of a step whose rows are planned in so many parts.
inline Items make_items(Context& c, const Model& m, const Step& step, int num_parts) {
  const int group = m.num_heads / m.num_kv_heads;
  int most = num_parts * m.num_kv_heads;  // a cut may leave one more of each
  for (int chunk = 0; chunk < step.num_chunks; ++chunk)
    most += pieces((step.query_starts[chunk + 1] - step.query_starts[chunk]) * group, kMostRows) * m.num_kv_heads;
  // Kv heads of a block lie side by side: memory runs ahead when they are read together.
  const bool are_many = step.num_chunks >= kChunksForEach * c.pool.num_threads();
  return Items{c.items.reserve<Item>(most), 0, c.chunks.reserve<int32_t>(step.num_chunks + num_parts), 0,
               are_many && group <= kTile ? kTile / group : 1};
}

// Adds the items of rows `begin` .. `end` of a step. Prompts come before single tokens, and late rows before early ones, so that no
// thread starts on a long one when the others are done.
inline void plan_items(const Model& m, const Step& step, int begin, int end, Items& items) {
  const int group = m.num_heads / m.num_kv_heads;
  const Beginnings beginnings{step, m.block_size};
  int32_t* chunks = items.chunks + items.num_chunks;
  int num_chunks = 0;
  for (int chunk = 0; chunk < step.num_chunks; ++chunk)
    if (step.query_starts[chunk] < end && step.query_starts[chunk + 1] > begin) chunks[num_chunks++] = chunk;
  std::sort(chunks, chunks + num_chunks, [&](int a, int b) { return beginnings.is_before(a, b); });
  for (int i = 0, next; i < num_chunks; i = next) {
    const int chunk = chunks[i], start = step.query_starts[chunk];
    const bool is_alone = beginnings.num_queries(chunk) == 1;
    int num_shared = 0;
    for (next = i + 1; is_alone && next < num_chunks && (next - i + 1) * group <= kTile; ++next) {
      const int shared = beginnings.num_shared(chunk, chunks[next]);
      if (shared == 0 || shared < num_shared) break;
      if (num_shared == 0) num_shared = shared;
    }
    const int heads = is_alone && next == i + 1 ? items.heads_at_once : 1;
    const int from = std::max(begin - start, 0) * group;
    const int to = std::min(end - start, beginnings.num_queries(chunk)) * group;
    for (int piece = pieces(to - from, kMostRows) - 1; piece >= 0; --piece) {
      const int first = from + piece * kMostRows;
      for (int head = 0; head < m.num_kv_heads; head += heads)
        items.items[items.count++] = Item{items.num_chunks + i, next - i, num_shared, head,
                                          std::min(heads, m.num_kv_heads - head), first, std::min(to - first, kMostRows)};
    }
  }
  items.num_chunks += num_chunks;
}

}  // namespace
}  // namespace penstock
