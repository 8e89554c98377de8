// Where the products of a step go: into rows of floats, or into the next product's input.
#pragma once
#include <cstring>

#include "adapted.h"

namespace penstock {
namespace {

// Adapters of the rows that a product has, and what they made of its inputs.
struct Adapting {
  const Together* together;  // null for none
  const int32_t* starts;     // of each tile of rows, from the product's first on
  float* shrunk;             // [rows, shrunk_size], by the step's rows as `together` is
  int shrunk_size;
  int first;  // row of the step that is the product's first
  int layer;
  int width;  // of a gated sublayer

  // Calls `function(its adapter's layer, h, y)` for all rows of a block that have an adapter.
  template <typename Function>
  void each(const Block& block, Function function) const {
    for (int i = starts[block.row_tile]; i < starts[block.row_tile + 1]; ++i) {
      const Together& rows = together[i];
      if (!rows.adapter) continue;
      Lines h, y;
      for (int r = 0; r < rows.count; ++r) {
        h.add(shrunk + (int64_t)rows.rows[r] * shrunk_size);
        y.add(block.values + (rows.rows[r] - first - block.row_tile * kTile) * kBlockStride);
      }
      function(rows.adapter->layers[layer], h, y);
    }
  }
};

struct Target {
  const Matrix* matrix;
  float* to;
  int64_t stride;
  bool adds;
  const Kernels* kernels = nullptr;
  Adapting adapting = {};
};

inline void put(void* context, const Block& block) {
  const Target& target = *(const Target*)context;
  const int column = block.first_tile * kTile;
  const int left = target.matrix->num_rows - column, width = block.num_tiles * kTile;
  const int count = left < width ? left : width;
  const float* bias = target.matrix->bias ? target.matrix->bias + column : nullptr;
  for (int r = 0; bias && r < block.num_rows; ++r)
    for (int i = 0; i < count; ++i) block.values[r * kBlockStride + i] += bias[i];
  if (target.adapting.together)
    target.adapting.each(block, [&](const AdapterLayer& layer, const Lines& h, const Lines& y) {
      scale(layer.qkv, bias, column, count, y);
      expand(*target.kernels, layer.qkv, h, column, count, y);
    });
  for (int r = 0; r < block.num_rows; ++r) {
    float* to = target.to + (int64_t)(block.row_tile * kTile + r) * target.stride + column;
    const float* from = block.values + r * kBlockStride;
    if (target.adds) {
      for (int i = 0; i < count; ++i) to[i] += from[i];
    } else {
      std::memcpy(to, from, sizeof(float) * count);
    }
  }
}

// Rows that have room for whole tiles may be written by whole tiles.
inline Sink sink_of(Target& target) {
  const bool is_whole = !target.matrix->bias && !target.adapting.together && target.matrix->num_rows % kTile == 0;
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
inline void adapt_gates(const GateTarget& target, const Block& block) {
  target.adapting.each(block, [&](const AdapterLayer& layer, const Lines& h, const Lines& y) {
    for (int half = 0; half < 2; ++half) {
      const int column = block.first_tile * kTile + half * kGroup;
      const int first = half * target.adapting.width + block.first_tile / kMaxTiles * kGroup;
      const float* bias = target.matrix->bias ? target.matrix->bias + column : nullptr;
      scale(layer.gate_up, bias, first, kGroup, y.from(half * kGroup));
      expand(*target.kernels, layer.gate_up, h, first, kGroup, y.from(half * kGroup));
    }
  });
}

// Two tiles of gates and the two of the same up rows become one group of the next product's input.
inline void put_gated(void* context, const Block& block) {
  const GateTarget& target = *(const GateTarget*)context;
  for (int r = 0; target.matrix->bias && r < block.num_rows; ++r)
    for (int i = 0; i < 2 * kGroup; ++i)
      block.values[r * kBlockStride + i] += target.matrix->bias[block.first_tile * kTile + i];
  if (target.adapting.together) adapt_gates(target, block);
  target.kernels->gate(block, target.activation, *target.rows, block.first_tile / kMaxTiles);
}

inline Sink sink_of(GateTarget& target) {
  const bool is_plain = !target.matrix->bias && !target.adapting.together;
  return Sink{put_gated, &target, nullptr, 0, false, is_plain ? target.rows : nullptr, target.activation};
}

}  // namespace
}  // namespace penstock
