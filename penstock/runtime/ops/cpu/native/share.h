// How the work of a phase is shared out among threads.
#pragma once
#include "context.h"

namespace penstock {
namespace {

inline int pieces(int count, int size) { return (count + size - 1) / size; }

template <typename Function>
void each_row(const Member& member, int count, Function function) {
  const int tiles = pieces(count, kTile);
  for (int tile = member.take(tiles); tile < tiles; tile = member.take(tiles)) {
    const int end = (tile + 1) * kTile < count ? (tile + 1) * kTile : count;
    for (int row = tile * kTile; row < end; ++row) function(row);
  }
  member.barrier();
}

// Output tiles that a thread multiplies at a time. With many rows wide pieces read the rows less often, but the threads
// should end together; with few, every weight is met once and small pieces even out.
inline int piece_size(const Context& c, const Rows& rows, const Matrix& matrix, int unit) {
  if (rows.number == Number::kInteger || rows.num_tiles() <= 2) return unit;
  const int tiles = num_tiles(matrix), threads = c.pool.num_threads();
  int most = kMostWidenedBytes / (rows.num_groups * 1024);
  most = most < unit ? unit : most < kWidestPiece ? most / unit * unit : kWidestPiece;
  int best = unit, least = tiles;
  for (int size = most; size >= unit; size -= unit) {
    const int busiest = pieces(pieces(tiles, size), threads) * size;
    if (busiest < least) best = size, least = busiest;
  }
  return best;
}

inline void multiply(const Member& member, Context& c, const Rows& rows, const Matrix& matrix, int unit, Sink sink) {
  const int tiles_at_once = piece_size(c, rows, matrix, unit);
  const int tiles = num_tiles(matrix), count = pieces(tiles, tiles_at_once);
  uint8_t* scratch = c.scratch[member.index].reserve<uint8_t>(0);
  for (int i = member.take_near(count); i < count; i = member.take_near(count)) {
    const int first = i * tiles_at_once, left = tiles - first;
    c.kernels->multiply(rows, matrix, first, left < tiles_at_once ? left : tiles_at_once, scratch, sink);
  }
  member.barrier();
}

}  // namespace
}  // namespace penstock
