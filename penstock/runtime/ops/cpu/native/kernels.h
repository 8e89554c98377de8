// The table every instruction set fills in, and the values its functions work on.
#pragma once
#include "abi.h"

// No function may be shared between files compiled for different instruction sets.
#define PENSTOCK_INLINE static inline __attribute__((always_inline))

namespace penstock {

enum class Number : int32_t { kInteger, kBf16, kByte };

constexpr int kLowBits = 3;
constexpr int kMostInteger = 127 << kLowBits;

// Activations ready to be multiplied, 16 rows a tile; rows past `count` in the last tile mean nothing.
//
//   integer  input = scale * q with q in -1016 .. 1016, held as q = 8 * high + low, both bytes:
//            values [tile][group][16 rows][32 high, 32 low]
//            scales, sums (scale * the sum of q) and totals (the sum of q) are [tile][group][16 rows]
//   bf16     values [tile][group][16 rows][32 inputs]; no scales
//   byte     input = scale * q with q in -127 .. 127: values [tile][chunk of two groups][16 rows][64]
//            scales and totals are those of rows; a row is rounded when all of it is known, and stands in `whole` before
struct Rows {
  void* values;
  float* scales;
  float* sums;
  int32_t* totals;
  float* whole;  // [rows][inputs]
  int32_t count;
  int32_t num_groups;
  Number number;

  __attribute__((always_inline)) int num_tiles() const { return (count + kTile - 1) / kTile; }

  __attribute__((always_inline)) int num_chunks() const { return (num_groups + 1) / 2; }
  __attribute__((always_inline)) float* whole_row(int row) const { return whole + (int64_t)row * num_groups * kGroup; }

  // Some of the rows, from a whole tile on; of bf16 or bytes.
  Rows part(int first_tile, int num_rows) const {
    Rows rows = *this;
    const int lines = number == Number::kByte ? num_chunks() : num_groups;
    rows.values = (uint8_t*)values + (int64_t)first_tile * lines * kTile * 64;
    rows.scales += first_tile * kTile;
    rows.totals += first_tile * kTile;
    if (whole) rows.whole = whole_row(first_tile * kTile);
    rows.count = num_rows;
    return rows;
  }
};

constexpr int kMaxTiles = 4;                     // output tiles a product is handed on by
constexpr int kBlockStride = kMaxTiles * kTile;  // floats between rows of a Block

// Outputs of up to 16 rows and of `num_tiles` output tiles from `first_tile` on.
struct Block {
  int row_tile;
  int num_rows;
  int first_tile;
  int num_tiles;
  float* values;  // [16][kBlockStride]
};

// Memory that will be read soon, asked for little by little while a product is computed from something else.
struct Ahead {
  static constexpr int kLines = 8;  // of 64 bytes, at a time

  const char* at = nullptr;
  int num_lines = 0;
  bool (*turn)(Ahead& ahead) = nullptr;  // to the next run, if there is one

  __attribute__((always_inline)) void advance() {
    if (num_lines <= 0 && !(turn && turn(*this))) return;  // a run may end within so many lines
    for (int i = 0; i < kLines; ++i) __builtin_prefetch(at + i * 64, 0, 2);
    at += kLines * 64;
    num_lines -= kLines;
  }
};

// Where a product goes. `take` is called once for each tile of rows and run of output tiles. Kernels that know a shorter way
// may go it where one is offered: store whole tiles in `rows`, or add to what stands there; gate and lay down in `gated`.
struct Sink {
  void (*take)(void* context, const Block& block);
  void* context;
  float* rows = nullptr;  // [whole tiles of rows, stride]
  int64_t stride = 0;
  bool adds = false;
  Rows* gated = nullptr;
  int activation = 0;
  Ahead* ahead = nullptr;

  Sink beside(Ahead& ahead) const {
    Sink sink = *this;
    sink.ahead = &ahead;
    return sink;
  }
};

// A chunk's queries, and where its keys and values are found.
struct Queries {
  const float* q;  // [tokens, stride]: the chunk's first query, at the kv head's first query head
  float* out;      // likewise, [tokens, out_stride]
  const int32_t* table;
  int32_t start;  // position of the chunk's first query
};

// Queries that share a kv head: of each chunk, rows `first_row` .. `first_row + num_rows` of [queries x heads in the group].
// Several chunks have up to 16 rows together, and the same blocks up to position `num_shared`, which all of them see. One chunk
// may instead have several kv heads, from `kv_head` on, with up to 16 rows together, or up to `kMostRows` rows of one kv head.
struct Attend {
  Queries chunk;  // the one looked at
  const Queries* chunks;
  int32_t num_chunks;
  int32_t num_shared;  // a multiple of kKeysAtOnce
  const void* keys;    // the layer's
  const void* values;
  const float* key_scales;
  const float* value_scales;
  int64_t block_stride;  // keys
  int64_t stride;
  int64_t out_stride;
  int32_t kv_head;
  int32_t heads_at_once;  // kv heads
  int32_t num_kv_heads;
  int32_t heads_per_group;
  int32_t head_dim;
  int32_t block_size;
  int32_t first_row;
  int32_t num_rows;
  int32_t window;
  float scale;
  float softcap;

  Attend part(int index) const {
    Attend part = *this;
    part.chunk = chunks[index];
    return part;
  }

  Attend head(int index) const {
    Attend head = *this;
    head.kv_head += index;
    head.chunk.q += index * heads_per_group * head_dim;
    head.chunk.out += index * heads_per_group * head_dim;
    return head;
  }
};

struct Peak {
  float most;
  int32_t place;
  float spoiled;
};

constexpr float kLeast = -3.402823466e38f;  // stands for what may not be chosen; no infinity, which would spoil a row

constexpr int kKeysAtOnce = 256;  // keys between two updates of the running softmax, counted from position 0
constexpr int kMaxHeadDim = 256;
constexpr int kMostRows = 4 * kTile;  // of queries that an Attend may have

// One token's keys and queries, of some kv heads and the query heads they serve: normed, rotated; keys and values laid down in
// the cache.
struct Place {
  float* qkv;
  const float* cosine;  // null for no rotation
  const float* sine;
  const float* q_norm;
  const float* k_norm;
  void* keys;
  void* values;
  float* key_scales;
  float* value_scales;
  int64_t slot;
  int64_t block_stride;  // keys
  int32_t num_heads;
  int32_t num_kv_heads;
  int32_t first_kv_head;
  int32_t end_kv_head;
  int32_t head_dim;
  int32_t rotary_dim;
  int32_t block_size;
  float eps;
};

struct Kernels {
  const char* name;
  int bf16_from;  // rows from which bf16 products are the faster ones; 0 for never
  void (*embed)(const Matrix& matrix, int64_t row, float scale, float* out);
  void (*norm)(const float* x, const float* weight, float eps, int size, float* out);
  // stream += x (through its own norm, if there is one)
  void (*add)(const float* x, const float* weight, float eps, int size, float* stream);
  void (*encode)(const float* x, Rows& rows, int row);
  // The 32 numbers of one group.
  void (*encode_group)(const float* x, Rows& rows, int row, int group);
  // 32 gates and 32 ups of each row, side by side: the gated ones become a group of `rows`.
  void (*gate)(const Block& block, int activation, Rows& rows, int group);
  void (*softcap)(float* x, int count, float cap);
  // A row's largest number so far and its place, the first of equals in whatever order they come; `spoiled` becomes
  // not-a-number with the first number that is not finite.
  void (*peak)(const float* x, int count, int place, Peak& peak);
  // Numbers of places whose bit is not set become kLeast. `place`, that of the first, is a multiple of 16.
  void (*allow)(float* x, int count, int place, const uint16_t* bits);
  void (*multiply)(const Rows& rows, const Matrix& matrix, int first_tile, int num_tiles, uint8_t* scratch, Sink sink);
  void (*place)(const Place& place);
  void (*attend)(const Attend& task, uint8_t* scratch);
  void (*finish)();  // a thread is done with a step
  // A row as it was before it was encoded, as near as the encoding is.
  void (*decode)(const Rows& rows, int row, float* out);
  // Of each of up to kTogether rows, out[k] = a[k] x, for bf16 a [rank][columns / 32][16][2]: of a group of columns, each beside
  // that of the other half.
  void (*shrink)(const uint16_t* a, int rank, const float* const* x, int num_rows, int columns, float* const* out);
  // Likewise y[i] += sum of h[k] b[i / 16][k / 2][i % 16][k % 2], for bf16 b; `count` is a multiple of 16, `rank` of 2.
  void (*expand)(const uint16_t* b, int rank, const float* const* h, int num_rows, int count, float* const* y);
};

constexpr int kTogether = 4;                  // rows of one adapter that its numbers are read once for
constexpr int kWidestPiece = 8;               // output tiles that one call multiplies
constexpr int kMostWidenedBytes = 384 << 10;  // of their weights as bf16, which should stay near
constexpr int kScratchGroupBytes = 2 * kMaxTiles * 1024;
constexpr int kAttendScratchBytes = kTile * kKeysAtOnce * 14 + (kMostRows * 6 + kKeysAtOnce * 2) * kMaxHeadDim + 4096;

PENSTOCK_INLINE int block_bytes(const Matrix& m) { return m.bits == 4 ? 320 : m.has_minimum ? 576 : 544; }
PENSTOCK_INLINE int num_tiles(const Matrix& m) { return (m.num_rows + kTile - 1) / kTile; }

extern const Kernels kPortable, kAvx2, kAvx512, kAmx, kEmulatedAmx;

}  // namespace penstock
