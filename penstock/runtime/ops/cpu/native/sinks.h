// Where the products of a step go: into rows of floats, or into the next product's input.
#pragma once
#include <cstring>

#include "adapted.h"

namespace penstock {
namespace {

// Adapters of the rows that a product has, and what they made of its inputs.
struct Adapting {
  const Adapter* const* adapters;  // of the product's first row on; null for none
  const float* shrunk;
  int shrunk_size;
  int layer;
  int width;  // of a gated sublayer
};

struct Target {
  const Matrix* matrix;
  float* to;
  int64_t stride;
  bool adds;
  const Kernels* kernels = nullptr;
  Adapting adapting = {};
};

inline void adapt_qkv(const Target& target, int row, int column, int count, float* values) {
  const Adapting& adapting = target.adapting;
  const Adapter* adapter = adapting.adapters ? adapting.adapters[row] : nullptr;
  if (!adapter) return;
  const AdapterMatrix& matrix = adapter->layers[adapting.layer].qkv;
  scale(matrix, target.matrix->bias, column, count, values);
  expand(*target.kernels, matrix, adapting.shrunk + (int64_t)row * adapting.shrunk_size, column, count, values);
}

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
    adapt_qkv(target, block.row_tile * kTile + r, column, count, from);
    if (target.adds) {
      for (int i = 0; i < count; ++i) to[i] += from[i];
    } else {
      std::memcpy(to, from, sizeof(float) * count);
    }
  }
}

// Rows that have room for whole tiles may be written by whole tiles.
inline Sink sink_of(Target& target) {
  const bool is_whole = !target.matrix->bias && !target.adapting.adapters && target.matrix->num_rows % kTile == 0;
  return Sink{put, &target, is_whole ? target.to : nullptr, target.stride, target.adds};
}

struct GateTarget {
  const Kernels* kernels;
  const Matrix* matrix;
  Rows* rows;
  int activation;
  Adapting adapting = {};
};

// A block has 32 gates and the 32 ups of the same numbers; adapters have all gates, then all ups.
inline void adapt_gates(const GateTarget& target, int row, int group, float* values) {
  const Adapting& adapting = target.adapting;
  const Adapter* adapter = adapting.adapters ? adapting.adapters[row] : nullptr;
  if (!adapter) return;
  const AdapterMatrix& matrix = adapter->layers[adapting.layer].gate_up;
  const float* h = adapting.shrunk + (int64_t)row * adapting.shrunk_size;
  for (int half = 0; half < 2; ++half, values += kGroup) {
    const int first = half * adapting.width + group * kGroup;
    if (matrix.factors)
      for (int i = 0; i < kGroup; ++i) {
        const float* bias = target.matrix->bias;
        const float b = bias ? bias[group * 2 * kGroup + half * kGroup + i] : 0.0f;
        values[i] = (values[i] - b) * matrix.factors[first + i] + b;
      }
    expand(*target.kernels, matrix, h, first, kGroup, values);
  }
}

// Two tiles of gates and the two of the same up rows become one group of the next product's input.
inline void put_gated(void* context, const Block& block) {
  const GateTarget& target = *(const GateTarget*)context;
  for (int r = 0; target.matrix->bias && r < block.num_rows; ++r)
    for (int i = 0; i < 2 * kGroup; ++i)
      block.values[r * kBlockStride + i] += target.matrix->bias[block.first_tile * kTile + i];
  for (int r = 0; target.adapting.adapters && r < block.num_rows; ++r)
    adapt_gates(target, block.row_tile * kTile + r, block.first_tile / kMaxTiles, block.values + r * kBlockStride);
  target.kernels->gate(block, target.activation, *target.rows, block.first_tile / kMaxTiles);
}

inline Sink sink_of(GateTarget& target) {
  const bool is_plain = !target.matrix->bias && !target.adapting.adapters;
  return Sink{put_gated, &target, nullptr, 0, false, is_plain ? target.rows : nullptr, target.activation};
}

}  // namespace
}  // namespace penstock
