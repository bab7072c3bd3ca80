#pragma once

#include <memory>
#include <mutex>

#include "runtime/event.h"

namespace anynpu {

/// For its life nothing touches device memory: no short or parallel task of any stream runs. Streams that are
/// made meanwhile start behind it; host functions go on. One at a time.
class Standstill {
 public:
  /// Waits for the tasks that run. Raises kTimeout when they do not end: one may be waiting for a stream that
  /// stands still already.
  Standstill();
  ~Standstill();
  Standstill(const Standstill&) = delete;

 private:
  const std::unique_lock<std::mutex> one_at_a_time_;
  const std::shared_ptr<Recording> end_;
};

}  // namespace anynpu
