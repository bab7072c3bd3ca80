#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace anynpu {

class PhysicalMemory;

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

/// Raises kOutOfMemory with the numbers.
[[noreturn]] void raise_out_of_memory(int device, size_t size, const char* why);

/// Option ANYNPU_DEBUG_MEMORY: a page that faults follows each range, and addresses are not reused.
bool debug_memory();

/// Device memory: address space of a device, of which pages are committed by allocate() and given back to the
/// system by free(), so that a freed range faults. Anonymous private memory; map() puts physical memory into
/// reserved addresses instead. Pages come zeroed, and a fork inherits none. The address space grows with what
/// is reserved. Thread-safe.
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
  /// The first half of free(), and of ending a mapping: the range is no longer live, but its pages stay until
  /// give_back_retired().
  void retire(void* address);
  void give_back_retired(void* address);

  /// `size` bytes (a multiple of kPage) of addresses without memory, aligned to `alignment`, a power of two.
  /// Raises kOutOfMemory when there are none.
  void* reserve(size_t size, size_t alignment);
  /// Takes addresses back in which nothing is live or retired.
  void release(void* address, size_t size);
  /// Makes [address, address + size), reserved addresses where nothing is live, `size` bytes of `memory` from
  /// `offset` on; all three are multiples of kPage. False, and nothing is done, while the range holds what
  /// was retired. Raises kInvalidArgument when something is live there.
  bool map(void* address, size_t size, std::shared_ptr<PhysicalMemory> memory, size_t offset);

  /// The pages of [address, address + size), a part of an allocation, as memory that other processes can map:
  /// from then on they are a file's. Nothing may write there meanwhile. The range begins at a page or where
  /// its allocation does, and ends at a page or in the last one of its allocation. Raises kInvalidArgument
  /// when it does not, or overlaps pages that were shared before and are not the same.
  std::shared_ptr<PhysicalMemory> share(const void* address, size_t size);
  /// What share() gave for the same range before, or null. Raises kInvalidArgument where share() does.
  std::shared_ptr<PhysicalMemory> shared(const void* address, size_t size) const;

  /// The value there, read in one piece; nothing when no pages are there (any more).
  std::optional<uint64_t> load(const void* address) const;

  struct Range {
    char* begin;
    size_t size;
  };
  /// The live range (an allocation or a mapping) that holds `address`.
  std::optional<Range> find(const void* address) const;
  /// How many bytes from `address` on are live without a gap: all of its allocation, or of the mappings that
  /// follow each other, as far as `enough`.
  size_t live_bytes(const void* address, size_t enough) const;
  /// The starts of the live ranges in [begin, begin + size).
  std::vector<void*> live_in(const void* begin, size_t size) const;
  /// True for every address of the device, live or not; takes no lock.
  bool contains(const void* address) const { return meets(address, static_cast<const char*>(address) + 1); }
  /// True where one address of [begin, end) is the device's, live or not; takes no lock.
  bool meets(const void* begin, const void* end) const {
    const size_t spans = span_count_.load(std::memory_order_acquire);
    for (size_t i = 0; i < spans; ++i)
      if (end > spans_[i].begin && begin < spans_[i].begin + spans_[i].size) return true;
    return false;
  }
  size_t committed() const;  ///< by allocate()
  int device() const { return device_; }

 private:
  struct Live {
    size_t size;
    std::shared_ptr<PhysicalMemory> memory;  // null: an allocation
  };
  using LiveRanges = std::map<char*, Live>;

  static LiveRanges::const_iterator find(const LiveRanges& ranges, const void* address);
  Range pages_to_share(const void* address, size_t size) const;
  bool grow(size_t size);
  char* take_free(size_t size, size_t alignment);
  void give_back(char* begin, size_t size);

  const int device_;
  // Each span is as large as all before it together, where the system lets it, so that these are enough.
  std::array<Range, 32> spans_ = {};
  std::atomic<size_t> span_count_ = 0;
  mutable std::mutex mutex_;
  LiveRanges live_, retired_;                                // by address
  std::map<char*, std::shared_ptr<PhysicalMemory>> shared_;  // pages of allocations, by address
  std::map<char*, size_t> free_;                             // by address; never adjacent
  size_t committed_ = 0;
};

}  // namespace anynpu
