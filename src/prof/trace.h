#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

namespace anynpu {

enum class TaskKind : uint8_t {
  kKernel,
  kCopy,
  kFill,
  kHost,  ///< user code
};

/// One task of a stream. Times are nanoseconds since the Unix epoch.
struct TracedTask {
  const char* name = "";
  TaskKind kind = TaskKind::kKernel;
  int device = 0;
  uint64_t stream = 0;
  uint64_t correlation = 0;  ///< unique in the process
  uint64_t external = 0;     ///< what the enqueuing thread pushed last; 0: nothing
  int32_t thread = 0;        ///< the system's number of the enqueuing thread
  uint64_t bytes = 0;        ///< of a copy or fill
  int64_t enqueued = 0, started = 0, ended = 0;
};

/// What the tasks that the calling thread enqueues during its life are; the innermost counts. Tasks without
/// one are housekeeping, and in no trace. `name` must stay valid for ever.
class TaskLabel {
 public:
  explicit TaskLabel(const char* name, TaskKind kind = TaskKind::kKernel, uint64_t bytes = 0);
  ~TaskLabel();
  TaskLabel(const TaskLabel&) = delete;

 private:
  friend class Trace;
  const char* const name_;
  const TaskKind kind_;
  const uint64_t bytes_;
  const TaskLabel* const outer_;
};

/// Collects the tasks of all streams of the process between start() and stop(). Thread-safe.
class Trace {
 public:
  static bool active() { return active_.load(std::memory_order_relaxed); }
  static void start();  ///< raises kInvalidArgument when a trace is being collected
  /// The tasks that ended meanwhile, in the order of their ends. Tasks that have not ended are left out.
  static std::vector<TracedTask> stop();

  /// Ties the tasks that the calling thread enqueues to an event of the caller's, until it is popped.
  static void push_external(uint64_t id);
  static void pop_external();

  /// The stream's side. begin() gives null where the task is in no trace.
  static std::unique_ptr<TracedTask> begin(int device, uint64_t stream) {
    return active() ? begin_active(device, stream) : nullptr;
  }
  static void started(TracedTask& task);
  static void ended(std::unique_ptr<TracedTask> task);

 private:
  static std::unique_ptr<TracedTask> begin_active(int device, uint64_t stream);

  static inline std::atomic<bool> active_ = false;
};

}  // namespace anynpu
