#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <vector>

namespace anynpu {

/// Waits for what nobody announces: a value in memory, work of another process, a limit of time. One thread
/// looks at everything that is waited for, from every 50 microseconds to, after a while, every millisecond;
/// it goes when nothing has been waited for in a while. Thread-safe.
class Watcher {
 public:
  static Watcher& instance();

  /// Calls `look` with no lock held, again and again until it returns true. It must neither block nor throw.
  void watch(std::function<bool()> look);

 private:
  Watcher() = default;
  void loop();

  std::mutex mutex_;
  std::condition_variable added_;
  std::vector<std::function<bool()>> looks_;
  bool running_ = false;
};

}  // namespace anynpu
