#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/executor.h"

namespace anynpu {

class SharedEvent;

/// One recorded point in a stream's order: becomes done when all work enqueued before it is. Shared between
/// the event, the stream that reaches it and the streams that wait for it, so each may go first. Thread-safe.
class Recording {
 public:
  using Clock = std::chrono::steady_clock;

  /// A point of the stream with that id; 0: of none. `then` is called, with no lock held, once it is reached.
  explicit Recording(uint64_t stream = 0, std::function<void()> then = {})
      : stream_(stream), then_(std::move(then)) {}

  bool done() const { return done_.load(std::memory_order_acquire); }
  /// Blocks the caller, at most `limit` when given; false when the limit passed. Raises kInvalidArgument in a
  /// task of its own stream.
  bool wait(std::optional<Duration> limit) const;
  /// When the point was reached. Only once done.
  Clock::time_point time() const { return time_; }
  /// The error that the stream carried when the point was reached, or null. Only once done.
  std::exception_ptr error() const { return error_; }

  /// Marks the point as reached and lets waiting threads and streams go on. Called once, with no lock held.
  void complete(std::exception_ptr error) { resume(reach(std::move(error))); }
  /// The two halves of complete(): the first may be called with a stream's lock held, and gives the second
  /// what it needs.
  std::vector<std::shared_ptr<Stream>> reach(std::exception_ptr error);
  void resume(const std::vector<std::shared_ptr<Stream>>& waiting);
  /// True when done; otherwise complete() will resume `stream`.
  bool done_or_resume_later(std::shared_ptr<Stream> stream);

 private:
  const uint64_t stream_;
  std::function<void()> then_;
  mutable std::mutex mutex_;
  mutable std::condition_variable reached_;
  std::atomic<bool> done_ = false;
  Clock::time_point time_;
  std::exception_ptr error_;
  std::vector<std::shared_ptr<Stream>> waiting_;
};

/// A point in a stream's order. Recording again moves the point; who waits already waits for the old one.
/// Waiting on an event that was never recorded (or was reset) returns at once. Thread-safe.
class Event {
 public:
  /// `timing`: elapsed_ms is allowed.
  explicit Event(bool timing = true) : timing_(timing) {}
  /// An event of several processes, without timing.
  explicit Event(std::shared_ptr<SharedEvent> shared) : timing_(false), shared_(std::move(shared)) {}

  bool timing() const { return timing_; }
  void record(Stream& stream);
  void reset();  ///< as if never recorded; raises kUnsupported for one of several processes
  bool recorded() const;
  bool done() const;  ///< true also when never recorded
  /// Blocks the caller until the point is reached, at most `limit` when given; false when the limit passed.
  /// Raises the error that the stream carried there.
  bool synchronize(std::optional<Duration> limit = std::nullopt) const;
  /// Milliseconds from this point to that of `end`. Raises kInvalidArgument where one has no timing, was
  /// never recorded or is not done yet.
  double elapsed_ms(const Event& end) const;

  std::shared_ptr<Recording> recording() const;                           ///< the latest, or null
  const std::shared_ptr<SharedEvent>& shared() const { return shared_; }  ///< null: of this process alone

 private:
  const bool timing_;
  const std::shared_ptr<SharedEvent> shared_;
  mutable std::mutex mutex_;
  std::shared_ptr<Recording> recording_;
};

}  // namespace anynpu
