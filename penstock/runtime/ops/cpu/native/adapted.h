// What adapters add to a step: each row's own thin matrices. A row's numbers depend on its own adapter alone, so a batch that
// mixes adapters computes what each would alone.
#pragma once
#include <algorithm>

#include "kernels.h"

namespace penstock {

// Rows `first` .. `first + size` of a matrix, both multiples of 16, change by B A, laid out as `shrink` and `expand` read them;
// the rank is even.
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
  int32_t reserved;
};

// Of a step: the adapter of each of its tokens, or of each row of the runner where the step is told by rows; null for none.
struct Adaptation {
  const Adapter* const* adapters = nullptr;
  int32_t shrunk_size = 0;  // floats that the thin products of one matrix take, at most
  int32_t reserved = 0;
};

// Rows of one adapter, or of none, within a tile of rows.
struct Together {
  const Adapter* adapter;
  int32_t count;
  int32_t rows[kTogether];
};

namespace {

// Numbers of rows that are computed together.
struct Lines {
  float* at[kTogether];
  int count = 0;

  void add(float* line) { at[count++] = line; }

  Lines from(int64_t column) const {
    Lines lines;
    for (int i = 0; i < count; ++i) lines.add(at[i] + column);
    return lines;
  }
};

// h = A x, part after part.
inline void shrink(const Kernels& k, const AdapterMatrix& matrix, const Lines& x, int columns, Lines h) {
  for (int i = 0; i < matrix.num_parts; ++i) {
    const AdapterPart& part = matrix.parts[i];
    k.shrink(part.a, part.rank, x.at, x.count, columns, h.at);
    h = h.from(part.rank);
  }
}

// Adds outputs `first` .. `first + count` of B h to y.
inline void expand(const Kernels& k, const AdapterMatrix& matrix, Lines h, int first, int count, const Lines& y) {
  for (int i = 0; i < matrix.num_parts; ++i) {
    const AdapterPart& part = matrix.parts[i];
    const int begin = std::max(first, part.first), end = std::min(first + count, part.first + part.size);
    if (begin < end) {
      const uint16_t* b = part.b + (int64_t)(begin - part.first) * part.rank;
      k.expand(b, part.rank, h.at, h.count, end - begin, y.from(begin - first).at);
    }
    h = h.from(part.rank);
  }
}

// `bias` is that of the output `first`, or null.
inline void scale(const AdapterMatrix& matrix, const float* bias, int first, int count, const Lines& y) {
  if (!matrix.factors) return;
  for (int r = 0; r < y.count; ++r)
    for (int i = 0; i < count; ++i) {
      const float b = bias ? bias[i] : 0.0f;
      y.at[r][i] = (y.at[r][i] - b) * matrix.factors[first + i] + b;
    }
}

}  // namespace
}  // namespace penstock
