// One product by itself, shared out by outputs: scores over a vocabulary.
#include "share.h"
#include "sinks.h"
#include "step.h"

namespace penstock {
namespace {

struct PeakTarget {
  const Kernels* kernels;
  const Matrix* matrix;
  Peak* peaks;  // [rows], the thread's own
  const Allowed* allowed;
};

void put_peaks(void* context, const Block& block) {
  const PeakTarget& target = *(const PeakTarget*)context;
  const int column = block.first_tile * kTile, left = target.matrix->num_rows - column;
  const int count = left < block.num_tiles * kTile ? left : block.num_tiles * kTile;
  for (int r = 0; r < block.num_rows; ++r) {
    float* values = block.values + r * kBlockStride;
    if (target.matrix->bias)
      for (int i = 0; i < count; ++i) values[i] += target.matrix->bias[column + i];
    const int row = block.row_tile * kTile + r;
    const Allowed& allowed = *target.allowed;
    if (allowed.masks && allowed.masks[row] >= 0)
      target.kernels->allow(values, count, column, allowed.bits + allowed.masks[row] * allowed.stride);
    target.kernels->peak(values, count, column, target.peaks[row]);
  }
}

}  // namespace

void run_product(Context& c, const Matrix& matrix, const Product& product, const Allowed& allowed) {
  struct Work {
    Context& c;
    const Matrix& matrix;
    const Product& product;
    const Allowed& allowed;
    Rows rows;
    Peak* peaks;  // [threads][rows]
  };
  const Number number = matrix.row_scales || !product.number
                            ? c.number_for(product.num_rows, product.invariant, matrix)
                            : product.number == 16 ? Number::kBf16 : Number::kInteger;
  c.reserve_scratch(matrix.num_columns);
  Work work{c, matrix, product, allowed, c.input.reserve(product.num_rows, matrix.num_columns, number), nullptr};
  const int num_peaks = product.likeliest ? product.num_rows * c.pool.num_threads() : 0;
  work.peaks = c.items.reserve<Peak>(num_peaks);
  for (int i = 0; i < num_peaks; ++i) work.peaks[i] = Peak{-__builtin_inff(), 0, 0.0f};
  c.pool.run(
      [](void* context, const Member& member) {
        Work& w = *(Work*)context;
        const Product& p = w.product;
        each_row(member, p.num_rows,
                 [&](int row) { w.c.kernels->encode(p.x + (int64_t)row * w.matrix.num_columns, w.rows, row); });
        Target target{&w.matrix, p.out, w.matrix.num_rows, false};
        PeakTarget peaks{w.c.kernels, &w.matrix, w.peaks + (int64_t)member.index * p.num_rows, &w.allowed};
        const Sink sink = p.likeliest ? Sink{put_peaks, &peaks} : Sink{put, &target};
        multiply(member, w.c, w.rows, w.matrix, kMaxTiles, sink);
        if (p.softcap > 0.0f && p.out)
          each_row(member, p.num_rows, [&](int row) {
            w.c.kernels->softcap(p.out + (int64_t)row * w.matrix.num_rows, w.matrix.num_rows, p.softcap);
          });
        w.c.kernels->finish();
      },
      &work);
  c.marks.note(Part::kOutput, -1);
  for (int row = 0; product.likeliest && row < product.num_rows; ++row) {
    Peak best = work.peaks[row];
    for (int thread = 1; thread < c.pool.num_threads(); ++thread) {
      const Peak& other = work.peaks[(int64_t)thread * product.num_rows + row];
      best.spoiled += other.spoiled;
      if (other.most > best.most || (other.most == best.most && other.place < best.place))
        best.most = other.most, best.place = other.place;
    }
    product.likeliest[row] = best.spoiled != 0.0f ? -1 : best.most > kLeast ? best.place : kNothingLeft;
  }
}

}  // namespace penstock
