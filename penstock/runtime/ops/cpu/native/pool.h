// Threads that run one function together and meet at barriers. They sleep when there is nothing to do.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace penstock {

class Pool;

// Waits for a fellow a little, longer the more often it was called.
void linger(int spins);

// What a function run by the pool knows of itself and its fellows.
struct Member {
  Pool* pool;
  int index;

  void barrier() const;
  // The next piece of `count` that nobody has taken yet, or `count`. All members must call it until it is exhausted, then
  // meet at `barrier`, which starts a new count.
  int take(int count) const;
  // Likewise, for pieces that lie side by side in memory: everyone has a run of them, and helps the others when it is done.
  int take_near(int count) const;
};

class Pool {
 public:
  explicit Pool(int num_threads);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int num_threads() const { return num_threads_; }
  // Runs `function(context, member)` on every thread, the caller's among them, and returns when all are done.
  void run(void (*function)(void*, const Member&), void* context);

 private:
  friend struct Member;
  void work(int index);
  void start_count();

  struct alignas(64) Count {
    std::atomic<int> taken{0};
  };

  const int num_threads_;
  void (*function_)(void*, const Member&) = nullptr;
  void* context_ = nullptr;
  alignas(64) std::atomic<uint32_t> generation_{0};
  alignas(64) std::atomic<int> num_running_{0};
  alignas(64) std::atomic<int> num_arrived_{0};
  alignas(64) std::atomic<uint32_t> phase_{0};
  std::atomic<int> core_{-1};
  std::atomic<bool> stopping_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
  int num_asleep_ = 0;
  std::unique_ptr<Count[]> counts_;  // one a thread; pieces that are nobody's in particular go by the first
  std::vector<std::thread> threads_;
};

}  // namespace penstock
