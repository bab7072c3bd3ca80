#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "runtime/arena.h"

namespace anynpu {

class Recording;
class Stream;

/// A quantity of torch's memory_stats: what it is, its peak, and all that was ever added and taken away.
struct MemoryCounter {
  int64_t current = 0, peak = 0, allocated = 0, freed = 0;
};

/// Indices into MemoryStats::PerKind: the sum, and the two kinds of segment.
enum MemoryKind : uint8_t { kAllMemory, kSmallBlocks, kLargeBlocks };

/// Counters under the names of torch.cuda.memory_stats; the *_bytes count bytes, the others pieces.
struct MemoryStats {
  using PerKind = std::array<MemoryCounter, 3>;
  PerKind allocation, segment, active, inactive_split;
  PerKind allocated_bytes, reserved_bytes, active_bytes, inactive_split_bytes, requested_bytes;
  int64_t num_alloc_retries = 0, num_ooms = 0, num_device_alloc = 0, num_device_free = 0;
};

/// A piece of device memory handed out by a BlockPool.
struct Block;

/// The caching allocator of one device. A freed block is reused by later allocations for the same stream,
/// which its order makes safe without waiting; work of other streams that uses the block is made known by
/// record_stream(), and the block then rests until that work is done.
///
/// Requests are rounded up to 512 bytes. Up to 1 MiB they are cut from segments of 2 MiB, larger ones from
/// segments of at least 20 MiB (from 10 MiB on, of their own size rounded up to 2 MiB). Free blocks stand in
/// lists by size class (32 per power of two; two-level segregated fit, Masmano et al. 2004), so allocating
/// and freeing take constant time; neighbours merge when freed. Thread-safe.
class BlockPool {
 public:
  explicit BlockPool(Arena& arena);
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;

  /// At least `size` bytes, aligned to 64, for work of `stream` (its id); null for 0 bytes. Raises
  /// kOutOfMemory with the numbers after unused segments were given back.
  Block* allocate(size_t size, uint64_t stream);
  void free(Block* block);  ///< accepts null
  void record_stream(Block* block, const std::shared_ptr<Stream>& stream);

  static void* address(const Block* block);
  static size_t size(const Block* block);  ///< usable bytes
  static BlockPool& pool_of(const Block* block);
  Block* find(const void* address) const;  ///< the allocated block that starts there, or null; not fast

  void release_unused();  ///< gives segments without allocated blocks back to the arena
  MemoryStats stats() const;
  void reset_peak_stats();
  void reset_accumulated_stats();
  void set_fraction(double fraction);  ///< at most this part of the budget is reserved; 0 to 1

  struct Piece {
    void* address;
    size_t size, requested;
    bool allocated;
  };
  struct SegmentInfo {
    void* address;
    size_t size, allocated;
    uint64_t stream;
    MemoryKind kind;
    std::vector<Piece> pieces;
  };
  std::vector<SegmentInfo> snapshot() const;

 private:
  friend struct Block;
  class Bins;
  struct Segment;
  struct Deferred {
    Block* block;
    std::vector<std::shared_ptr<Recording>> until;
  };

  Bins& bins(uint64_t stream, MemoryKind kind);
  void link(Block* block);
  void unlink(Block* block);
  Block* give_out(Block* block, size_t size, size_t requested);
  void take_back(Block* block);
  void merge_with_next(Block* block);
  Block* new_block(Segment* segment, char* address, size_t size);
  Block* new_segment(size_t size, uint64_t stream, MemoryKind kind);
  Block* new_segment_or_make_room(size_t size, uint64_t stream, MemoryKind kind);
  [[noreturn]] void raise_out_of_memory(size_t size);
  void collect_deferred();
  void release_unused_locked();
  template <class F>
  void for_each_counter(F function);

  Arena& arena_;
  mutable std::mutex mutex_;
  std::unordered_map<uint64_t, std::unique_ptr<Bins>> bins_;  // by stream id * 2 + (kind is large)
  std::map<const char*, std::unique_ptr<Segment>> segments_;  // by address
  std::vector<std::unique_ptr<Block>> spare_;                 // Block objects to use again
  std::vector<Deferred> deferred_;
  double fraction_ = 1.0;
  MemoryStats stats_;
};

}  // namespace anynpu
