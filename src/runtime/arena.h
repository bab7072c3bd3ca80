#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

namespace anynpu {

/// The bytes that all devices of the process may commit together (option ANYNPU_MEMORY). Thread-safe.
class MemoryBudget {
 public:
  static MemoryBudget& instance();

  size_t total() const { return total_; }
  size_t committed() const;
  bool reserve(size_t bytes);  ///< false when it would pass the total
  void release(size_t bytes);

 private:
  MemoryBudget();
  const size_t total_;
  mutable std::mutex mutex_;
  size_t committed_ = 0;
};

/// Option ANYNPU_DEBUG_MEMORY: a page that faults follows each range, and addresses are not reused.
bool debug_memory();

/// Device memory: one range of address space per device, of which pages are committed by allocate() and given
/// back to the system by free(), so that a freed range faults. Anonymous private memory that a fork does not
/// inherit. Pages come zeroed. Thread-safe.
class Arena {
 public:
  explicit Arena(int device);
  ~Arena();
  Arena(const Arena&) = delete;

  static constexpr size_t kPage = 4096;
  static constexpr size_t kHugePage = size_t{2} << 20;
  static constexpr size_t kAlignment = 64;  ///< of every address that allocate() returns

  /// A range of `size` bytes (1 or more), rounded up to pages; ranges of a huge page or more are aligned to
  /// one and advised to use them. Raises kOutOfMemory with the numbers when the budget is spent.
  void* allocate(size_t size);
  /// Raises kInvalidArgument when `address` is not the start of a live range.
  void free(void* address);
  /// The first half of free(): the range is no longer live, but its pages stay until give_back_retired().
  void retire(void* address);
  void give_back_retired(void* address);

  struct Range {
    char* begin;
    size_t size;
  };
  /// The live range that holds `address`.
  std::optional<Range> find(const void* address) const;
  /// True for every address of the device, live or not; takes no lock.
  bool contains(const void* address) const { return address >= base_ && address < base_ + reserved_; }
  size_t committed() const;
  int device() const { return device_; }

 private:
  char* take_free(size_t size, size_t alignment);
  void give_back(char* begin, size_t size);

  const int device_;
  char* base_ = nullptr;
  size_t reserved_ = 0;
  mutable std::mutex mutex_;
  std::map<char*, size_t> live_, retired_, free_;  // by address; free_ ranges are never adjacent
  size_t committed_ = 0;
};

}  // namespace anynpu
