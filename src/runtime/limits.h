#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>

namespace anynpu {

class Stream;

/// Limits of time for tasks that are enqueued from now on, in the whole process; zero: none. A task cannot be
/// stopped: one that took too long leaves kTaskTimeout in its stream when it ends. A wait for an event that
/// lasts too long is over, and leaves kTimeout.
struct TimeLimits {
  std::atomic<std::chrono::nanoseconds> task = std::chrono::nanoseconds::zero();
  std::atomic<std::chrono::nanoseconds> wait = std::chrono::nanoseconds::zero();
};
TimeLimits& time_limits();

/// The kinds of cores that the interface tells apart. Both are the CPUs that the process may use.
enum class CoreKind : uint8_t { kCube, kVector };
constexpr size_t kCoreKinds = 2;

/// How many CPUs the process may use: what stands here for cores of every kind.
uint32_t core_count();

/// How many cores work may use, by kind; 0: as many as there are. Thread-safe.
class CoreLimits {
 public:
  uint32_t get(CoreKind kind) const { return most_[static_cast<size_t>(kind)]; }
  /// Raises kInvalidArgument unless there are so many.
  void set(CoreKind kind, uint32_t most);
  void reset();

 private:
  std::array<std::atomic<uint32_t>, kCoreKinds> most_ = {};
};

/// From now on the limits of `stream`, where it has some, hold for what the calling thread enqueues; null
/// ends that. A device's limits hold otherwise.
void use_core_limits_of(std::shared_ptr<Stream> stream);
std::shared_ptr<Stream> core_limits_in_use();
/// How many cores of a kind work may use that the calling thread enqueues on `device`.
uint32_t cores_of_thread(CoreKind kind, int device);
/// The smallest of them when there is any limit in the process, else 0: for tasks, which use cores of both.
uint32_t thread_limit(int device);

}  // namespace anynpu
