#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/error.h"
#include "runtime/arena.h"
#include "runtime/block_pool.h"
#include "runtime/stream.h"
#include "runtime/weak_streams.h"

namespace anynpu {

constexpr int kMostDevices = 64;

/// How long what needs memory waits for memory that is given back once queued work is done.
constexpr auto kFreeingLimit = std::chrono::seconds(2);

/// How many devices there are: ANYNPU_DEVICES; unset, LOCAL_WORLD_SIZE where torchrun set it, else 1. Starts
/// nothing, so a process that only asked may fork freely.
int device_count();

/// The name of the processor that the devices pass for.
const char* soc_name();

/// A logical NPU: memory, streams, and nothing that knows of PyTorch. Started by the first get().
/// Thread-safe.
class Device {
 public:
  /// Raises kInvalidDevice for an index outside [0, device_count), kForked in a child of a process that had
  /// started a device, kNotInitialized when the process is exiting.
  static Device& get(int index);
  /// True when any device, or the one with that index, was started in this process or one it forked from.
  static bool started();
  static bool started(int index);
  /// The device whose address range holds `address`, or null. Takes no lock; starts nothing.
  static Device* of(const void* address);
  /// The same for a device that one address of [begin, end) belongs to.
  static Device* meeting(const void* begin, const void* end);
  /// Raises kForked or kNotInitialized where no device can be used (any more).
  static void require_usable();
  /// True in a fork of a process that had started a device: device memory and threads do not exist here.
  static bool forked();

  int index() const { return index_; }
  Arena& arena() { return arena_; }
  BlockPool& pool() { return pool_; }
  Stream& default_stream() { return *default_stream_; }
  /// The stream of that number, or null where there is none (any more).
  std::shared_ptr<Stream> live_stream(uint64_t id) const;
  std::shared_ptr<Stream> default_stream_ptr() { return default_stream_; }
  std::shared_ptr<Stream> create_stream(StreamConfig config = {});

  CoreLimits& core_limits() { return core_limits_; }
  /// Whether this device was let reach the memory of `peer`. All memory is the host's; what this restricts is
  /// copies that name both devices.
  bool reaches(const Device& peer) const { return reaches_[peer.index_].load(std::memory_order_relaxed); }
  void set_reaches(const Device& peer, bool reaches) { reaches_[peer.index_] = reaches; }

  /// Waits for the work of all streams enqueued before the call, at most `limit`; false when it passed.
  /// Raises the first error of each stream's oldest, and kInvalidArgument in a task of the device.
  bool synchronize(std::optional<Duration> limit = std::nullopt);
  /// Drops all work that has not started, on every stream, whose next synchronisation raises kDeviceAborted,
  /// and waits at most `limit` for the work that runs; false when that passed. Raises kInvalidArgument in a
  /// task of the device.
  bool abort(std::optional<Duration> limit = Duration::zero());
  /// Drops queued work, waits for the running, and gives all memory back that no live pool block holds.
  void reset();

  /// Calls `function`, which must not throw, once the work that all streams of all devices have now is done,
  /// but for the task that calls this:
  /// a stream may use the memory of any device. At once when there is none, and in a fork of a process with
  /// devices; never when the process is exiting, because a task may have been left at work. Does not wait.
  static void after_work(UniqueFunction function);
  /// Waits for what after_work() still has to call, at most `limit`; false when that passed.
  static bool wait_for_after_work(Duration limit);
  /// What `allocate` returns; when it raises kOutOfMemory, what it returns after memory that is freed already
  /// was given back, for which this waits a moment.
  template <class F>
  static auto with_freed_memory(F allocate) {
    try {
      return allocate();
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kOutOfMemory || !wait_for_after_work(kFreeingLimit)) throw;
    }
    return allocate();
  }

 private:
  friend class Stream;
  explicit Device(int index);
  std::vector<std::shared_ptr<Stream>> live_streams() const;

  const int index_;
  CoreLimits core_limits_;
  std::array<std::atomic<bool>, kMostDevices> reaches_ = {};
  Arena arena_;
  BlockPool pool_;
  std::shared_ptr<Stream> default_stream_;
  WeakStreams streams_;
};

/// Ends the runtime for this process: no task starts any more, running ones get a moment to end. Called at
/// exit; later calls to Device::get raise kNotInitialized.
void shutdown();

/// The calling thread's device: unset (std::nullopt) in a new thread.
std::optional<int> thread_device();
void set_thread_device(std::optional<int> index);  ///< raises kInvalidDevice

/// The stream that the calling thread enqueues on for `device`; the device's default stream unless set.
Stream& current_stream(int device);
std::shared_ptr<Stream> current_stream_ptr(int device);
void set_current_stream(std::shared_ptr<Stream> stream);  ///< for the stream's device

}  // namespace anynpu
