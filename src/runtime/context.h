#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/stream.h"
#include "runtime/weak_streams.h"

namespace anynpu {

/// What a thread works in: a device, a default stream, and the streams made in it. Each device has a default
/// context that its users share; more can be created. Current in a thread is, on the thread's device, the
/// context that the thread chose last there, else the default one. Thread-safe.
class Context : public std::enable_shared_from_this<Context> {
 public:
  static std::shared_ptr<Context> create(int device);
  Context(const Context&) = delete;

  /// The calling thread's. Raises kNoContext where the thread has no device, or the context was released.
  static std::shared_ptr<Context> current();
  void make_current();  ///< raises kInvalidHandle when it was released

  /// Makes the default context of `device` current and counts one use of it.
  static void use_default(int device);
  /// Takes back one use of the default context of `device`, or all. The last ends the context, waits for all
  /// work of the device and frees the device memory that was allocated through contexts. Raises kNoContext
  /// when there is no use, kInvalidArgument in a task of the device; an error of that work after all that.
  static void unuse_default(int device, bool all);
  /// The same as for the last use, also where there is none: memory and contexts may have been made without.
  static void end_default(int device);
  static uint64_t uses_of_default(int device);

  int device() const { return device_; }
  uint64_t id() const { return id_; }  ///< unique in the process, never reused
  bool is_default() const { return is_default_; }
  bool released() const { return released_; }
  const std::shared_ptr<Stream>& default_stream() const { return default_stream_; }
  std::shared_ptr<Stream> create_stream(StreamConfig config);

  /// Raises kInvalidArgument in a task of one of its streams, for which release() would wait.
  void require_outside_tasks();
  /// From now on it is current nowhere; waits for the work of its streams and raises its first error.
  void release();

  /// Device memory of the context's device, which lives until it is freed or the default context released.
  /// When there is too little, waits a moment for memory that was freed and is still used by queued work.
  void* allocate(size_t size);
  /// Does not wait: work that is queued on the device may still use the memory, which is given back after it.
  /// Raises kInvalidArgument when allocate() did not give it.
  static void free(void* address);

 private:
  Context(int device, bool is_default);
  static std::shared_ptr<Context> default_of(int device);
  std::vector<std::shared_ptr<Stream>> live_streams();
  void end();  ///< it is current nowhere, and its streams have no subscriptions, from now on
  static void end_default(int device, std::unique_lock<std::mutex> lock);

  const int device_;
  const uint64_t id_;
  const bool is_default_;
  const std::shared_ptr<Stream> default_stream_;
  std::atomic<bool> released_ = false;
  WeakStreams streams_;
};

}  // namespace anynpu
