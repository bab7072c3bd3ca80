#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <shared_mutex>

namespace anynpu {

class Stream;

/// Where an address lies, as far as the runtime gave it out.
enum class MemoryPlace : uint8_t { kDevice, kPinnedHost, kHost };
MemoryPlace place_of(const void* address);

/// Host memory that copies may use after the call that enqueued them returned. Inherited by forks (DataLoader
/// workers fill it). Raises kOutOfMemory. Thread-safe.
void* allocate_pinned(size_t size);
/// Does not wait: work that is queued on a device may still use the memory, which is given back after it.
/// Raises kInvalidArgument when `address` was not given out.
void free_pinned(void* address);
/// The pinned range that holds `address`: its start, or null. Registered memory counts.
void* find_pinned(const void* address);

/// Makes host memory of the caller pinned, and device memory too as far as the kinds of copies go: devices
/// use it at the same address. Raises kInvalidArgument when it is not mapped, or overlaps pinned or device
/// memory.
void register_host(void* address, size_t size);
/// Ends that for the range that starts at `address`; it must outlive queued work that uses it. Raises
/// kInvalidArgument when none does.
void unregister_host(void* address);

/// Raises kInvalidArgument, naming the argument, when `address` is null or is device or pinned memory and the
/// range leaves the live allocation that holds it. Other host memory is the caller's business.
void check_range(const char* name, const void* address, size_t bytes);

/// While one is held, no allocation ends: a range that was checked is still there when work on it is
/// enqueued. Not for the time in which that work runs.
std::shared_lock<std::shared_mutex> hold_memory();
/// What whoever ends an allocation holds while it does.
std::unique_lock<std::shared_mutex> change_memory();

enum class CopyKind : uint8_t { kHostToHost, kHostToDevice, kDeviceToHost, kDeviceToDevice, kDefault };

/// A copy of `rows` rows of `width` bytes, which start `to_pitch` and `from_pitch` (at least `width`) bytes
/// apart.
struct RowCopy {
  void* to;
  const void* from;
  size_t width, rows = 1, to_pitch = 0, from_pitch = 0;
};

/// Raises kInvalidArgument, naming the argument, when a row to write overlaps a row to read (but the copy
/// onto itself is accepted), an address does not lie where `kind` says, the rows leave the allocation that
/// holds it, or they lie on two devices of which neither was let reach the other (Device::set_reaches()).
void check_copy(const RowCopy& copy, CopyKind kind);

/// Enqueues a copy (or fill) of `bytes` bytes. The ranges must stay valid until it is done, and must not
/// overlap. Small ones run in the caller when the stream is idle, large ones in parallel.
void copy_async(void* to, const void* from, size_t bytes, Stream& stream);
void copy_async(const RowCopy& copy, Stream& stream);
void fill_async(void* to, uint8_t value, size_t bytes, Stream& stream);
/// Enqueues reading `bytes` bytes into caches.
void prefetch_async(const void* from, size_t bytes, Stream& stream);

}  // namespace anynpu
