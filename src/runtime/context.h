#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "runtime/stream.h"
#include "runtime/weak_streams.h"

namespace anynpu {

class AddressRange;

constexpr size_t kSystemParameters = 3;

/// What a thread works in: a device, a default stream, and the streams made in it. Each device has a default
/// context that its users share; more can be created. Current in a thread is, on the thread's device, the
/// context that the thread chose last there, else the default one. Thread-safe.
class Context : public std::enable_shared_from_this<Context> {
 public:
  static std::shared_ptr<Context> create(int device);
  Context(const Context&) = delete;

  /// The calling thread's. Raises kNoContext where the thread has no device, or the context was released.
  static std::shared_ptr<Context> current();
  /// The default context of `device`. Raises kNoContext while the device is reset.
  static std::shared_ptr<Context> default_of(int device);
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

  /// What a user set for work of the context, by number of the parameter; not set: nothing.
  void set_parameter(size_t number, int64_t value);
  std::optional<int64_t> parameter(size_t number);

  /// Raises kInvalidArgument in a task of one of its streams, for which release() would wait.
  void require_outside_tasks();
  /// From now on it is current nowhere; waits for the work of its streams and raises its first error.
  void release();

  // What follows lives until it is given back, or the default context of its device released. Giving back
  // does not wait: work that is queued on the device may still use the memory, which is given back after it.

  /// Device memory of the context's device. When there is too little, waits a moment for memory that was
  /// freed and is still used by queued work.
  void* allocate(size_t size);
  /// Raises kInvalidArgument when allocate() did not give it.
  static void free(void* address);

  /// Addresses of the context's device without memory; see AddressRange.
  void* reserve(size_t size, size_t alignment);
  /// The reserved range that holds `address`. Raises kInvalidArgument when none does.
  static std::shared_ptr<AddressRange> range_of(const void* address);
  /// Raises kInvalidArgument when `address` is not the start of a reserved range, or memory is mapped in it.
  static void release_range(void* address);

  /// Memory that another process exports under `key`, at an address of the context's device; a further import
  /// of a key gives the same address. Raises what ImportedMemory does.
  void* import(const std::string& key);
  /// Ends one import() of `key`, on any device; false when there is none.
  static bool end_import(const std::string& key);

 private:
  Context(int device, bool is_default);
  std::vector<std::shared_ptr<Stream>> live_streams();
  void end();  ///< it is current nowhere, and its streams have no subscriptions, from now on
  static void end_default(int device, std::unique_lock<std::mutex> lock);

  const int device_;
  const uint64_t id_;
  const bool is_default_;
  const std::shared_ptr<Stream> default_stream_;
  std::atomic<bool> released_ = false;
  WeakStreams streams_;
  std::mutex mutex_;
  std::array<std::optional<int64_t>, kSystemParameters> parameters_;  // guarded by mutex_
};

}  // namespace anynpu
