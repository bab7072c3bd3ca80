#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <vector>

namespace anynpu {

/// Waits for what nobody announces: a value in memory, work of another process, a limit of time. One thread
/// looks at everything that is waited for, from every 50 microseconds to, after a while, every millisecond;
/// it goes when nothing has been waited for in a while. Where the system gives no thread, those that wait for
/// streams and events look (Executor::help_if_starved). Thread-safe.
class Watcher {
 public:
  static Watcher& instance();

  /// Calls `look` with no lock held, again and again until it returns true. It must neither block nor throw.
  void watch(std::function<bool()> look);

  /// Something is watched, and the thread for it could not be started.
  bool starved() const { return starved_.load(std::memory_order_relaxed); }
  /// Tries again to start it, or else looks once in the calling thread.
  void help();

 private:
  using Lock = std::unique_lock<std::mutex>;
  Watcher() = default;
  void provide_thread();
  bool look_at_all(Lock& lock);
  void loop();

  std::mutex mutex_;
  std::condition_variable added_;
  std::vector<std::function<bool()>> looks_;
  bool running_ = false;  // there is a thread
  std::atomic<bool> starved_ = false;
};

}  // namespace anynpu
