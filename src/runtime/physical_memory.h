#pragma once

#include <cstddef>
#include <memory>

#include "base/descriptor.h"

namespace anynpu {

/// Memory without an address: a file in memory that Arena::map() gives addresses, here and in processes that
/// its descriptor was passed to. Zeroed at first. It lives, and counts towards the budget of the process that
/// allocated it, until the last owner goes; owners are handles and mappings.
class PhysicalMemory {
 public:
  /// `size` bytes (1 or more), rounded up to multiples of `page`. Raises kOutOfMemory with the numbers when
  /// the budget is spent.
  static std::shared_ptr<PhysicalMemory> allocate(int device, size_t size, size_t page);
  /// The memory of another process, which counts towards that one's budget.
  static std::shared_ptr<PhysicalMemory> adopt(int device, size_t size, Descriptor file);
  /// Memory to take the place of `size` bytes that count towards the budget; take_over() makes it count
  /// instead of them. Raises kOutOfMemory where the system has none.
  static std::shared_ptr<PhysicalMemory> replace(int device, size_t size);
  void take_over() { counted_ = true; }

  ~PhysicalMemory();
  PhysicalMemory(const PhysicalMemory&) = delete;

  int device() const { return device_; }
  size_t size() const { return size_; }
  int file() const { return file_.get(); }
  bool foreign() const { return foreign_; }  ///< of another process

 private:
  PhysicalMemory(int device, size_t size, Descriptor file, bool foreign, bool counted);

  const int device_;
  const size_t size_;
  const Descriptor file_;
  const bool foreign_;
  bool counted_;  // in the budget
};

}  // namespace anynpu
