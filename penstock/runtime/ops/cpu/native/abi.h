// What Python and this library share: plain structs (penstock/runtime/ops/cpu/library.py spells them out again with ctypes).
//
// Every pointer is borrowed for the length of a call, those inside a Model for as long as the Model is used.
#pragma once
#include <cstdint>

namespace penstock {

constexpr int kGroup = 32;  // inputs under one scale
constexpr int kTile = 16;   // outputs, or tokens, or keys, that one kernel call handles together

// A weight matrix [num_rows outputs, num_columns inputs], packed. For each run of 16 outputs and each group of 32 inputs:
//
//   bits 4   256 bytes of values, 16 scales, 16 minimums (half precision); value = scale * q + minimum, q in 0 .. 15
//   bits 8   512 bytes of values, 16 scales and, if has_minimum, 16 minimums; q in -128 .. 127
//
// Values stand as [8][16 outputs][4 inputs]; of 4-bit values, bytes j hold rows j (low half) and j + 4 (high half).
//
// Where outputs have one scale each, `row_scales`, filled up to whole runs of 16, inputs are rounded to bytes by token (W8A8), and
// nothing stands between the values: of each run of 16 outputs [inputs / 4][16 outputs][4], inputs filled up to whole chunks of 64.
struct Matrix {
  const uint8_t* data;
  const float* bias;        // [num_rows] or null
  const float* row_scales;  // null where groups have theirs
  int32_t bits;
  int32_t has_minimum;
  int32_t num_rows;
  int32_t num_columns;
};

// One decoder layer. Keys and values of the cache are [block][kv_head][16-key unit][16 * head_dim]:
//   bf16        keys [head_dim / 2][16 keys][2]        values [8 key pairs][head_dim][2]
//   8 bits      keys [head_dim / 4][16 keys][4]        values [4 key quads][head_dim][4]
// Whole numbers of 8 bits count times their key's scale, [block][kv_head][16-key unit][16]; bf16 has none.
struct Layer {
  Matrix qkv, out, gate_up, down;  // gate_up: runs of 32 gate rows, then the same 32 up rows
  const float* attention_norm;
  const float* attention_post_norm;  // null but for the sandwich placement
  const float* mlp_norm;
  const float* mlp_post_norm;
  const float* q_norm;  // [head_dim] or null
  const float* k_norm;
  void* keys;
  void* values;
  float* key_scales;
  float* value_scales;
  int32_t window;  // 0 sees all
  int32_t rotation;  // which of the step's angle tables; -1 for none
  float scale;
  float softcap;  // 0 for none
  int32_t table;  // which of the step's block tables
};

struct Model {
  const Layer* layers;
  const float* norm;
  Matrix embedding, output;
  int32_t num_layers;
  int32_t hidden_size;
  int32_t num_heads;
  int32_t num_kv_heads;
  int32_t head_dim;
  int32_t rotary_dim;
  int32_t mlp_width;
  int32_t block_size;
  int32_t activation;  // 0 silu, 1 gelu with tanh, 2 gelu
  int32_t invariant;   // nonzero: a row's numbers never depend on how many rows stand beside it
  float eps;
  float embedding_scale;
  float logit_softcap;  // 0 for none
  int32_t block_stride;  // keys of all kv heads from one block of a layer's cache to the next; 0 where blocks stand side by side
};

// One step: chunks of tokens, flattened one after another.
struct Step {
  const int64_t* token_ids;
  const int64_t* slots;         // [tables, tokens] block * block_size + offset
  const int32_t* block_tables;  // [tables, chunks, table_stride]
  const int32_t* query_starts;  // [chunks + 1]
  const int32_t* contexts;      // [chunks]
  const float* const* cosines;  // per rotation: [tokens, rotary_dim / 2]
  const float* const* sines;
  float* hidden;  // [tokens, hidden_size], out: after the final norm
  int32_t num_tokens;
  int32_t num_chunks;
  int32_t table_stride;
  int32_t reserved;
};

}  // namespace penstock
