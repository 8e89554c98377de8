// What adapters add to a step: each row's own thin matrices. A row's numbers depend on its own adapter alone, so a batch that
// mixes adapters computes what each would alone.
#pragma once
#include <algorithm>

#include "kernels.h"

namespace penstock {

// Rows `first` .. `first + size` of a matrix, both multiples of 16, change by B A: a is bf16 [rank][columns], b is bf16
// [size / 16][rank][16].
struct AdapterPart {
  const uint16_t* a;
  const uint16_t* b;
  int32_t rank;
  int32_t first;
  int32_t size;
  int32_t reserved;
};

struct AdapterMatrix {
  AdapterPart parts[3];
  const float* factors;  // [num_rows] that the plain product counts times (DoRA), or null
  int32_t num_parts;
  int32_t reserved;
};

struct AdapterLayer {
  AdapterMatrix qkv, out, gate_up, down;  // gate_up: all gate rows, then all up rows
};

struct Adapter {
  const AdapterLayer* layers;
  const float* embedding;  // [tokens, hidden_size] in place of the model's, or null
  const float* left;       // [tokens, rank], added to what is looked up times right [rank, hidden_size]; or null
  const float* right;
  int32_t rank;
  int32_t has_factors;
};

// Of a step: the adapter of each of its tokens, or of each row of the runner where the step is told by rows; null for none.
struct Adaptation {
  const Adapter* const* adapters = nullptr;
  int32_t shrunk_size = 0;  // floats that the thin products of one matrix take, at most
  int32_t has_factors = 0;
};

namespace {

// h = A x, part after part.
inline void shrink(const Kernels& k, const AdapterMatrix& matrix, const float* x, int columns, float* h) {
  for (int i = 0; i < matrix.num_parts; ++i) {
    const AdapterPart& part = matrix.parts[i];
    k.shrink(part.a, part.rank, x, columns, h);
    h += part.rank;
  }
}

// Adds outputs `first` .. `first + count` of B h to y.
inline void expand(const Kernels& k, const AdapterMatrix& matrix, const float* h, int first, int count, float* y) {
  for (int i = 0; i < matrix.num_parts; ++i) {
    const AdapterPart& part = matrix.parts[i];
    const int begin = std::max(first, part.first), end = std::min(first + count, part.first + part.size);
    if (begin < end) {
      const uint16_t* b = part.b + (int64_t)(begin - part.first) * part.rank;
      k.expand(b, part.rank, h, end - begin, y + begin - first);
    }
    h += part.rank;
  }
}

inline void scale(const AdapterMatrix& matrix, const float* bias, int first, int count, float* y) {
  if (!matrix.factors) return;
  for (int i = 0; i < count; ++i) {
    const float b = bias ? bias[first + i] : 0.0f;
    y[i] = (y[i] - b) * matrix.factors[first + i] + b;
  }
}

// A row as it was before it was encoded, as near as the encoding is.
inline void decode_row(const Rows& rows, int row, float* out) {
  if (rows.whole) {
    __builtin_memcpy(out, rows.whole_row(row), sizeof(float) * rows.num_groups * kGroup);
    return;
  }
  for (int group = 0; group < rows.num_groups; ++group, out += kGroup) {
    const size_t at = ((size_t)(row / kTile) * rows.num_groups + group) * kTile + row % kTile;
    if (rows.number == Number::kBf16) {
      const uint16_t* from = (const uint16_t*)rows.values + at * kGroup;
      for (int i = 0; i < kGroup; ++i) {
        const uint32_t bits = (uint32_t)from[i] << 16;
        __builtin_memcpy(out + i, &bits, sizeof bits);
      }
    } else {
      const int8_t* from = (const int8_t*)rows.values + at * 2 * kGroup;
      for (int i = 0; i < kGroup; ++i) out[i] = rows.scales[at] * (float)(from[i] * (1 << kLowBits) + from[kGroup + i]);
    }
  }
}

}  // namespace
}  // namespace penstock
