// A step told by rows: which sequences go on, from where, and by how many tokens. Where their tokens and blocks are is read from
// the runner's own tables, so that nothing has to be gathered outside.
#pragma once
#include "step.h"

namespace penstock {

struct RowsStep {
  int32_t* tokens;            // [rows, token_stride] ids by position; what is drawn is written after the last
  const int32_t* tables;      // [rows, table_stride] block ids: a row's `num_tables` tables one after another
  const int32_t* num_blocks;  // [rows] how many of the first table's count; null where that was checked already
  const float* const* cosines;  // per rotation: [positions, rotary_dim / 2]
  const float* const* sines;
  const int64_t* chunks;  // [4][num_chunks]: rows, starts, lengths, whether a token is drawn after the last
  float* hidden;          // [tokens, hidden_size], out
  int64_t* drawn;         // [num_chunks], out: the likeliest token where one is drawn; -1 where numbers are not finite, 0 elsewhere
  int32_t token_stride;
  int32_t table_stride;
  int32_t num_rotations;
  int32_t num_chunks;
  int32_t draws;  // 0 leaves `drawn` and the tokens alone
  int32_t yields;  // it may be interrupted
  int32_t num_tables;

  int num_columns() const { return table_stride / num_tables; }
};

enum class Outcome {
  kDone = 0,
  kBeyond = 2,       // a chunk reaches beyond its row's blocks or tokens: nothing was done
  kInterrupted = 3,  // nothing was drawn; keys and values may have been written
};

Outcome run_rows(Context& context, const Model& model, const RowsStep& step, const Adaptation& adaptation = {});

}  // namespace penstock
