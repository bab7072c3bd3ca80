#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include "base/error.h"
#include "base/unique_function.h"
#include "prof/trace.h"
#include "runtime/content_watch.h"
#include "runtime/event.h"
#include "runtime/executor.h"
#include "runtime/limits.h"

namespace anynpu {

struct StreamConfig {
  int priority = 0;              ///< streams with a smaller number get the compute thread first
  bool stop_on_failure = false;  ///< after a task failed, drop the following ones until a synchronisation
};

/// A task that failed: its place in its stream, from 1 on, and the thread that enqueued it.
struct TaskFailure {
  uint64_t task, stream;
  int device;
  uint32_t thread;
  std::exception_ptr error;
};
/// Calls `observe` for each task that fails from now on, on a service thread (Lane::kHost) and before later
/// work of its stream; null ends that. What `observe` throws is dropped.
void observe_failures(std::function<void(const TaskFailure&)> observe);

/// An ordered queue of work on one device. Tasks run one after the other in the order of the calls that
/// enqueued them, and progress whether or not anyone waits. A task that throws does not stop the following
/// ones (but see StreamConfig); the first error is raised by the next synchronisation. Thread-safe.
///
/// A stream is always idle (and its queue empty), or being run by one thread, or posted to the executor, or
/// parked on a recording that resumes it (its queue may be empty then only when it is held); so no task is
/// left without a thread, and none runs beside another.
class Stream : public std::enable_shared_from_this<Stream> {
 public:
  static std::shared_ptr<Stream> create(int device, StreamConfig config = {});
  ~Stream();
  Stream(const Stream&) = delete;

  int device() const { return device_; }
  uint64_t id() const { return id_; }  ///< unique in the process, never reused
  const StreamConfig& config() const { return config_; }
  CoreLimits& core_limits() { return core_limits_; }
  std::shared_ptr<const std::atomic<bool>> gone() const { return gone_; }  ///< true after its life
  void set_stop_on_failure(bool stop);

  /// Enqueues `task` and returns. On an idle stream a kShort task has run by then. Of device memory the task
  /// writes no more than `writes` says.
  void launch(Lane lane, UniqueFunction task, const Writes& writes = Writes::anything());

  /// Runs `function` as the stream's next task and returns when it is done. An exception of `function`
  /// arrives here and leaves the stream without error; an earlier error of the stream is raised instead of
  /// running it. kShort work runs in the caller.
  void call(Lane lane, const std::function<void()>& function, const Writes& writes = Writes::anything());

  /// Work enqueued from now on starts after `recording` is done. The caller does not wait. When that lasts
  /// longer than `limit` from when the stream gets there (zero: no limit), the wait is over, as a failed
  /// task.
  void wait(std::shared_ptr<Recording> recording, Duration limit = Duration::zero());
  void wait(const Event& event) {
    if (auto recording = event.recording()) wait(std::move(recording));
  }
  /// The point after all work enqueued so far; `then` is called once it is reached.
  std::shared_ptr<Recording> record(std::function<void()> then = {});

  bool idle() const;  ///< all work enqueued so far is done
  /// The same, but for the task that the calling thread is running.
  bool idle_but_for_caller() const;
  /// Blocks until the work enqueued before the call is done, at most `limit` when given; false when the limit
  /// passed. Raises the first error of the stream and clears it. The waiting thread runs kShort tasks itself.
  bool synchronize(std::optional<Duration> limit = std::nullopt);
  /// Drops the tasks that have not started and lets the running one end. The next synchronisation raises
  /// `reason`, when there is one, if anything was dropped.
  void abort(std::optional<ErrorCode> reason = ErrorCode::kAborted);

 private:
  friend class Executor;
  friend class Recording;
  friend class Standstill;

  /// A closure, or one of the two steps that need no thread: waiting for a recording, completing one. A task
  /// with none of the three was dropped.
  struct Task {
    Lane lane = Lane::kShort;
    UniqueFunction run = {};
    std::shared_ptr<Recording> wait_for = nullptr, complete = nullptr;
    Duration wait_limit = Duration::zero();        // zero: none, or it is watched already
    uint32_t threads = 0;                          // of its parallel regions; 0: all
    uint32_t enqueued_by = 0;                      // the system's number of the thread
    bool report = false;                           // the second half of a task: tells that it failed
    std::unique_ptr<TracedTask> traced = nullptr;  // only while a trace is being collected
  };
  enum class State : uint8_t { kIdle, kPosted, kRunning, kParked };
  class Lock;

  Stream(int device, StreamConfig config);
  Lock lock_usable();  ///< raises in a fork and after shutdown
  uint64_t enqueue(Lock& lock, Task task);
  void run_in_caller(Lock& lock, Task task);
  void call_elsewhere(Lock& lock, Lane lane, const std::function<void()>& function);
  void post();
  static bool may_run(Lane thread, Lane task);
  void drain(Lock& lock, Lane thread, uint64_t until = UINT64_MAX);
  bool step_over_waits();
  void execute(Lock& lock, Task task);
  std::exception_ptr failure_of(Task& task);
  void end_task(const Task& task, std::exception_ptr failure);
  void finished_one();
  bool help_until(Lock& lock, uint64_t ticket, std::optional<Duration> limit);
  void run_posted(Lane thread);
  void resume();
  void watch_limit(Task& wait);
  void expire(const std::shared_ptr<Recording>& recording, Duration limit);
  void raise_error();

  // For Standstill. With `until`, no stream there is or will be starts a task before `until` is done; null
  // ends that for streams to come. The streams there are.
  static std::vector<std::shared_ptr<Stream>> hold_all(const std::shared_ptr<Recording>& until);
  void hold(std::shared_ptr<Recording> until);
  bool wait_until_still(Recording::Clock::time_point deadline);  ///< false when the deadline passed

  const int device_;
  const uint64_t id_;
  StreamConfig config_;
  CoreLimits core_limits_;
  const std::shared_ptr<std::atomic<bool>> gone_ = std::make_shared<std::atomic<bool>>(false);

  mutable std::mutex mutex_;
  std::condition_variable progress_;
  State state_ = State::kIdle;
  std::deque<Task> queue_;
  std::shared_ptr<Recording> hold_;  // comes before the whole queue
  bool touching_ = false;            // a task that may use device memory runs
  // Tickets: the n-th task ever enqueued has ticket n, and is done when finished_ has reached n.
  uint64_t enqueued_ = 0, finished_ = 0;
  uint64_t wake_at_ = UINT64_MAX;  // the smallest ticket that a blocked thread waits for
  bool wake_ = false;              // that ticket is done: wake the threads when the lock is given up
  std::exception_ptr error_;
};

}  // namespace anynpu
