#include "pool.h"

#include <chrono>
#if defined(__linux__)
#include <sched.h>
#endif

namespace penstock {
namespace {

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Fellows arrive within microseconds when each has a core of its own; when they do not, spinning only keeps them away.
constexpr int kSpinsBeforeYield = 2000;
// A generating engine comes back within a millisecond or so; an idle one leaves the core to others.
constexpr auto kLinger = std::chrono::microseconds(1500);

template <typename Condition>
void spin_until(Condition condition) {
  for (int spins = 0; !condition(); ++spins) linger(spins);
}

// A thread wakes where its waker runs, and two that spin on one core are seldom parted before the step is over: a short prompt
// after a rest took twice as long. It goes elsewhere once, and may then run anywhere again.
void leave(int core) {
#if defined(__linux__)
  if (sched_getcpu() != core) return;
  cpu_set_t all, others;
  if (sched_getaffinity(0, sizeof all, &all) != 0) return;
  others = all;
  CPU_CLR(core, &others);
  if (CPU_COUNT(&others) == 0) return;
  sched_setaffinity(0, sizeof others, &others);
  sched_setaffinity(0, sizeof all, &all);
#endif
}

}  // namespace

void linger(int spins) {
  if (spins < kSpinsBeforeYield) {
    pause();
  } else {
    std::this_thread::yield();
  }
}

void Member::barrier() const {
  Pool& p = *pool;
  const uint32_t phase = p.phase_.load(std::memory_order_relaxed);
  if (p.num_arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == p.num_threads_) {
    p.num_arrived_.store(0, std::memory_order_relaxed);
    p.start_count();
    p.phase_.store(phase + 1, std::memory_order_release);
  } else {
    spin_until([&] { return p.phase_.load(std::memory_order_acquire) != phase; });
  }
}

int Member::take(int count) const {
  const int piece = pool->counts_[0].taken.fetch_add(1, std::memory_order_relaxed);
  return piece < count ? piece : count;
}

int Member::take_near(int count) const {
  const int threads = pool->num_threads_;
  for (int i = 0; i < threads; ++i) {
    const int owner = (index + i) % threads;
    const int begin = (int)((int64_t)count * owner / threads), end = (int)((int64_t)count * (owner + 1) / threads);
    const int number = pool->counts_[owner].taken.fetch_add(1, std::memory_order_relaxed);
    if (number < end - begin) return begin + number;
  }
  return count;
}

void Pool::start_count() {
  for (int i = 0; i < num_threads_; ++i) counts_[i].taken.store(0, std::memory_order_relaxed);
}

Pool::Pool(int num_threads) : num_threads_(num_threads), counts_(new Count[num_threads]) {
  for (int index = 1; index < num_threads; ++index) threads_.emplace_back([this, index] { work(index); });
}

Pool::~Pool() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_.store(true);
    generation_.fetch_add(1);
  }
  wake_.notify_all();
  for (auto& thread : threads_) thread.join();
}

void Pool::run(void (*function)(void*, const Member&), void* context) {
  function_ = function;
  context_ = context;
  num_running_.store(num_threads_ - 1, std::memory_order_relaxed);
#if defined(__linux__)
  core_.store(sched_getcpu(), std::memory_order_relaxed);
#endif
  start_count();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    generation_.fetch_add(1, std::memory_order_release);
    if (num_asleep_ > 0) wake_.notify_all();
  }
  function(context, Member{this, 0});
  spin_until([&] { return num_running_.load(std::memory_order_acquire) == 0; });
}

void Pool::work(int index) {
  uint32_t seen = 0;
  for (;;) {
    const auto patience = std::chrono::steady_clock::now() + kLinger;
    for (int spins = 0; generation_.load(std::memory_order_acquire) == seen; ++spins) {
      pause();
      if ((spins & 63) == 63 && std::chrono::steady_clock::now() > patience) {
        std::unique_lock<std::mutex> lock(mutex_);
        ++num_asleep_;
        wake_.wait(lock, [&] { return generation_.load(std::memory_order_acquire) != seen; });
        --num_asleep_;
        lock.unlock();
        leave(core_.load(std::memory_order_relaxed));
      }
    }
    seen = generation_.load(std::memory_order_acquire);
    if (stopping_.load()) return;
    function_(context_, Member{this, index});
    num_running_.fetch_sub(1, std::memory_order_acq_rel);
  }
}

}  // namespace penstock
