// What outlives a call: threads, and memory that grows to the largest step seen.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "kernels.h"
#include "pool.h"

namespace penstock {

// Memory aligned to cache lines, contents undefined after it grew. Much of it stands on large pages: tiles are stored in 16 rows
// at once, which on small ones are as many pages.
class Buffer {
 public:
  template <typename T>
  T* reserve(size_t count) {
    const size_t bytes = (count * sizeof(T) + 127) / 64 * 64;
    if (bytes > size_) {
      std::free(data_);
      size_ = 0;
      const size_t large = (bytes + kSpare) / kLargePage * kLargePage, rounded = bytes > large ? bytes : large;
      if (posix_memalign(&data_, large ? kLargePage : 64, rounded)) {
        data_ = nullptr;
        throw std::bad_alloc();
      }
#if defined(__linux__)
      if (large) madvise(data_, large, MADV_HUGEPAGE);  // a request; small pages do as well
#endif
      size_ = rounded;
    }
    return (T*)data_;
  }
  Buffer() = default;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { std::free(data_); }

 private:
  static constexpr size_t kLargePage = 2 << 20;
  static constexpr size_t kSpare = 512 << 10;  // what a large page may leave unused; the rest stands on small ones

  void* data_ = nullptr;
  size_t size_ = 0;
};

// Memory of a `Rows`.
struct RowsBuffer {
  Buffer values, scales, sums, totals;

  Rows reserve(int count, int size, Number number) {
    const size_t tiles = (count + kTile - 1) / kTile, groups = size / kGroup, scaled = tiles * groups * kTile;
    Rows rows;
    rows.values = values.reserve<uint16_t>(scaled * kGroup);
    rows.scales = scales.reserve<float>(scaled);
    rows.sums = sums.reserve<float>(scaled);
    rows.totals = totals.reserve<int32_t>(scaled);
    rows.whole = nullptr;
    rows.count = count;
    rows.num_groups = (int)groups;
    rows.number = number;
    if (count % kTile) {
      // Tiles multiply the rows that are not there, too: whatever lay in this memory may be numbers that take long.
      const size_t each = (number == Number::kByte ? 1 : groups) * kTile, last = (tiles - 1) * each;
      std::memset(rows.scales + last, 0, each * sizeof(float));
      std::memset(rows.sums + last, 0, each * sizeof(float));
    }
    return rows;
  }
};

// What `run_rows` gathers for a step.
struct RowsMemory {
  Buffer ids, slots, tables, starts, contexts, angles, places, states, found, adapters;
};

// When the first thread ended a part of a step: what a profile is made of. Nothing is noted unless it was asked for.
enum class Part : int32_t { kStart, kRead, kQkv, kPlace, kAttention, kOut, kGateUp, kDown, kEnd, kOutput };

struct Mark {
  int64_t time_ns;
  int32_t part;
  int32_t layer;  // -1 outside of layers
};

struct Marks {
  Mark* at = nullptr;
  int64_t capacity = 0, count = 0;

  void note(Part part, int layer) {
    if (count >= capacity) return;
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    at[count++] = {std::chrono::duration_cast<std::chrono::nanoseconds>(now).count(), (int32_t)part, layer};
  }
};

struct Context {
  Context(int num_threads, const Kernels* kernels)
      : pool(num_threads), kernels(kernels), scratch(new Buffer[num_threads]) {}

  Pool pool;
  const Kernels* kernels;
  std::unique_ptr<Buffer[]> scratch;  // one a thread
  RowsBuffer input, attended, gated;
  Buffer stream, qkv, attention, sublayer, line, items, chunks, panels, shrunk, together, starts, wide, ungated;
  std::mutex panels_lock;
  RowsMemory rows;
  Marks marks;  // the first thread's to write
  std::atomic<bool> is_interrupted{false};  // set from outside: steps that yield are left halfway
  std::atomic<bool> leaves[2] = {};         // what the threads of a step agreed on, by turns of layers

  Number number_for(int count, bool invariant, const Matrix& matrix) const {
    if (matrix.row_scales) return Number::kByte;
    return kernels->bf16_from && count >= kernels->bf16_from && !invariant ? Number::kBf16 : Number::kInteger;
  }

  void reserve_scratch(int most_columns) {
    const size_t product = (size_t)(most_columns / kGroup) * kScratchGroupBytes;
    size_t bytes = product > kAttendScratchBytes ? product : kAttendScratchBytes;
    if (bytes < kMostWidenedBytes) bytes = kMostWidenedBytes;
    for (int i = 0; i < pool.num_threads(); ++i) scratch[i].reserve<uint8_t>(bytes);
  }
};

}  // namespace penstock
