#pragma once

#include <cstddef>
#include <memory>

#include "runtime/device.h"
#include "runtime/physical_memory.h"

namespace anynpu {

/// A range of device addresses without memory, into which physical memory is mapped. What is unmapped, and
/// what is mapped when the range goes, ends for new work at once; work that is queued on the device may still
/// use the memory and the addresses, which are given back after it. Thread-safe.
class AddressRange {
 public:
  /// `size` bytes, rounded up to Arena::kPage, aligned to `alignment`, a power of two. Raises kOutOfMemory
  /// when there are no such addresses.
  AddressRange(Device& device, size_t size, size_t alignment);
  ~AddressRange();
  AddressRange(const AddressRange&) = delete;

  char* begin() const;
  size_t size() const;
  bool contains(const void* address) const { return address >= begin() && address < begin() + size(); }

  /// Makes [address, address + size) `size` bytes of `memory` from `offset` on; `size` is rounded up to
  /// Arena::kPage. Waits a moment for queued work that still uses what was unmapped there. Raises
  /// kInvalidArgument, naming what is wrong, where the range or the memory does not hold that, something is
  /// mapped there, or the memory is of another device.
  void map(void* address, size_t size, std::shared_ptr<PhysicalMemory> memory, size_t offset);
  /// Ends the mapping that starts at `address`. Raises kInvalidArgument when none does.
  void unmap(void* address);
  bool mapped() const;  ///< whether anything is

 private:
  struct Addresses;

  Device& device_;
  const std::shared_ptr<Addresses> addresses_;  // shared with what waits for queued work
};

}  // namespace anynpu
