// Steps of many rows: a thread takes a panel of them through a whole layer, so that what one part leaves is near for the next.
//
// Rows meet only where they attend to keys of their chunk. So a panel may enter a stage once the panels with earlier rows of its
// chunks have ended the stage before, in which those keys were laid down; nobody waits for everybody.
#pragma once
#include "items.h"

namespace penstock {
namespace {

constexpr int kPanelsFrom = 64;         // rows for each thread from which it takes whole panels
constexpr int kMostPanelRows = 256;     // whose numbers stay in a thread's own cache
constexpr int kPanelUnit = 2 * kTile;   // rows that tiles multiply together
// What a number of a key costs against a weight, when rows of a prompt meet it together and when a token comes alone.
constexpr int kKeyCost = 6, kLoneKeyCost = 24;

struct Panel {
  int first, count;          // rows
  int first_item, end_item;  // of their attention
  int needs;                 // the first panel with rows of the same chunks
  int owner;                 // the thread whose cache it is in
  int num_done;              // stages
  bool is_taken;
};

// Rows of a step, cut so that threads have as much to do.
struct Cuts {
  const Model& m;
  const Step& step;

  int64_t weights() const {
    const Layer& layer = m.layers[0];
    int64_t count = 0;
    for (const Matrix* matrix : {&layer.qkv, &layer.out, &layer.gate_up, &layer.down})
      count += (int64_t)matrix->num_rows * matrix->num_columns;
    return count;
  }

  // Calls `each(row, cost)` for every row.
  template <typename Each>
  void walk(Each each) const {
    const int64_t products = weights(), key = 2 * m.num_heads * m.head_dim;
    for (int chunk = 0; chunk < step.num_chunks; ++chunk) {
      const int begin = step.query_starts[chunk], end = step.query_starts[chunk + 1];
      const int64_t cost = key * (end - begin > 1 ? kKeyCost : kLoneKeyCost);
      for (int row = begin; row < end; ++row) each(row, products + cost * (step.contexts[chunk] - end + row + 1));
    }
  }

  // The row after the last of a thread's.
  int end_of(int thread, int num_threads) const {
    if (thread + 1 == num_threads) return step.num_tokens;
    int64_t total = 0, before = 0;
    walk([&](int, int64_t cost) { total += cost; });
    int found = 0;
    walk([&](int row, int64_t cost) {
      if (before * num_threads < total * (thread + 1)) found = row + 1;
      before += cost;
    });
    return std::min((found + kPanelUnit / 2) / kPanelUnit * kPanelUnit, step.num_tokens);
  }
};

class Panels {
 public:
  Panels() = default;

  // Cuts a step's rows and plans their attention.
  Panels(Context& c, const Model& m, const Step& step, Items& items) : num_stages_(m.num_layers + 1) {
    const int threads = c.pool.num_threads(), most = pieces(step.num_tokens, kMostPanelRows / 2) + 2 * threads;
    panels_ = c.panels.reserve<Panel>(most);
    lock_ = &c.panels_lock;
    items = make_items(c, m, step, most);
    for (int thread = 0, begin = 0, end; thread < threads; ++thread, begin = end) {
      end = std::max(begin, Cuts{m, step}.end_of(thread, threads));
      const int parts = pieces(end - begin, kMostPanelRows);
      const int size = parts ? pieces(pieces(end - begin, parts), kPanelUnit) * kPanelUnit : 0;
      for (int first = begin; first < end; first += size) add(m, step, first, std::min(size, end - first), thread, items);
    }
  }

  int most_rows() const { return most_rows_; }  // of a panel, in whole tiles; 0 if there is none

  // A panel that may go on, one's own before others' and those behind before those ahead; null when all have ended.
  Panel* take(int thread) {
    for (int spins = 0;; ++spins) {
      {
        const std::lock_guard<std::mutex> guard(*lock_);
        if (num_left_ <= 0) return nullptr;
        Panel* best = nullptr;
        for (int i = 0; i < count_; ++i)
          if (is_ready(i) && (!best || is_before(panels_[i], *best, thread))) best = &panels_[i];
        if (best) {
          best->is_taken = true;
          return best;
        }
      }
      linger(spins);
    }
  }

  // It has ended a stage.
  void put_back(Panel& panel) {
    const std::lock_guard<std::mutex> guard(*lock_);
    panel.is_taken = false;
    num_left_ -= ++panel.num_done == num_stages_;
  }

  // No panel goes on: the step is given up.
  void leave() {
    const std::lock_guard<std::mutex> guard(*lock_);
    num_left_ = 0;
  }

 private:
  void add(const Model& m, const Step& step, int first, int count, int owner, Items& items) {
    int chunk = 0;
    while (step.query_starts[chunk + 1] <= first) ++chunk;
    int needs = count_;
    while (needs > 0 && panels_[needs - 1].first + panels_[needs - 1].count > step.query_starts[chunk]) --needs;
    const int first_item = items.count;
    plan_items(m, step, first, first + count, items);
    panels_[count_++] = Panel{first, count, first_item, items.count, needs, owner, 0, false};
    most_rows_ = std::max(most_rows_, pieces(count, kTile) * kTile);
    ++num_left_;
  }

  bool is_ready(int number) const {
    const Panel& panel = panels_[number];
    if (panel.is_taken || panel.num_done == num_stages_) return false;
    for (int i = panel.needs; i < number; ++i)
      if (panels_[i].num_done < panel.num_done) return false;
    return true;
  }

  static bool is_before(const Panel& a, const Panel& b, int thread) {
    if ((a.owner == thread) != (b.owner == thread)) return a.owner == thread;
    return a.num_done < b.num_done;
  }

  Panel* panels_ = nullptr;
  std::mutex* lock_ = nullptr;
  int count_ = 0;
  int num_left_ = 0;
  int num_stages_ = 0;
  int most_rows_ = 0;
};

}  // namespace
}  // namespace penstock
