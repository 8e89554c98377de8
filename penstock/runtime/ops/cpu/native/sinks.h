// Where the products of a step go: into rows of floats, or into the next product's input.
#pragma once
#include <cstring>

#include "kernels.h"

namespace penstock {
namespace {

struct Target {
  const Matrix* matrix;
  float* to;
  int64_t stride;
  bool adds;
};

inline void put(void* context, const Block& block) {
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

// Rows that have room for whole tiles may be written by whole tiles.
inline Sink sink_of(Target& target) {
  const bool is_whole = !target.matrix->bias && target.matrix->num_rows % kTile == 0;
  return Sink{put, &target, is_whole ? target.to : nullptr, target.stride, target.adds};
}

struct GateTarget {
  const Kernels* kernels;
  const Matrix* matrix;
  Rows* rows;
  int activation;
};

// Two tiles of gates and the two of the same up rows become one group of the next product's input.
inline void put_gated(void* context, const Block& block) {
  const GateTarget& target = *(const GateTarget*)context;
  for (int r = 0; target.matrix->bias && r < block.num_rows; ++r)
    for (int i = 0; i < 2 * kGroup; ++i)
      block.values[r * kBlockStride + i] += target.matrix->bias[block.first_tile * kTile + i];
  target.kernels->gate(block, target.activation, *target.rows, block.first_tile / kMaxTiles);
}

inline Sink sink_of(GateTarget& target) {
  return Sink{put_gated, &target, nullptr, 0, false, target.matrix->bias ? nullptr : target.rows, target.activation};
}

}  // namespace
}  // namespace penstock
