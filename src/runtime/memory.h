#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

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
/// use it at the same address. Raises kInvalidArgument when it overlaps pinned or device memory.
void register_host(void* address, size_t size);
/// Ends that for the range that starts at `address`; it must outlive queued work that uses it. Raises
/// kInvalidArgument when none does.
void unregister_host(void* address);

/// Raises kInvalidArgument, naming the argument, when `address` is null or is device or pinned memory and the
/// range leaves the live allocation that holds it. Other host memory is the caller's business.
void check_range(const char* name, const void* address, size_t bytes);

enum class CopyKind : uint8_t { kHostToHost, kHostToDevice, kDeviceToHost, kDeviceToDevice, kDefault };

/// Raises kInvalidArgument when the ranges overlap and are not the same.
void check_overlap(const void* to, const void* from, size_t bytes);

/// Raises kInvalidArgument, naming the argument, when the ranges overlap, an address does not lie where
/// `kind` says, its range leaves the allocation that holds it, or the ranges are of two devices of which
/// neither was let reach the other (see Device::set_reaches()).
void check_copy(const void* to, const void* from, size_t bytes, CopyKind kind);

/// Enqueues a copy (or fill) of `bytes` bytes. The ranges must stay valid until it is done, and must not
/// overlap. Small ones run in the caller when the stream is idle, large ones in parallel.
void copy_async(void* to, const void* from, size_t bytes, Stream& stream);
void fill_async(void* to, uint8_t value, size_t bytes, Stream& stream);
/// Enqueues reading `bytes` bytes into caches.
void prefetch_async(const void* from, size_t bytes, Stream& stream);

}  // namespace anynpu
