#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
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
  MemoryCounter oversize_allocations, oversize_segments;  ///< from PoolSettings::max_split_size on
  std::map<uint64_t, PerKind> group_reserved_bytes;
  int64_t num_alloc_retries = 0, num_ooms = 0, num_device_alloc = 0, num_device_free = 0;
};

/// How the pools of the process allocate, in the terms of torch's allocator settings.
struct PoolSettings {
  size_t max_split_size = SIZE_MAX;  ///< requests from this size on get a block of their own, never a part
  size_t max_non_split_rounding = size_t{20} << 20;  ///< how much larger than such a request that may be
  size_t large_segment_size = size_t{20} << 20;
  /// Unused segments are given back, those first that rest the longest, before a new one would let the pool
  /// reserve more than this part of what it may; 0: only when there is no room.
  double garbage_collection_threshold = 0;
  /// Into how many steps each power of two is divided that sizes are rounded up to, for sizes from 1, 2, 4…
  /// MiB on (smaller and larger ones as the next); 0 and 1, and where there is no entry: units of 512 bytes.
  std::vector<size_t> roundup_power2_divisions = {};
  bool caching = true;  ///< false: a segment goes back to the arena with its last block
};

/// A piece of device memory handed out by a BlockPool.
struct Block;

/// What a pool's user wants kept with a block, and told with an event. The pool does not look into it.
using PoolNote = std::shared_ptr<void>;

/// Something that a pool did; the names are those of torch's allocator traces.
struct PoolEvent {
  enum Action : uint8_t { kAlloc, kFreeRequested, kFreeCompleted, kSegmentAlloc, kSegmentFree, kOom };
  Action action;
  int device;
  uintptr_t address;  ///< of kOom: how many bytes are free
  size_t size;        ///< of blocks: as requested
  uint64_t stream, group;
  const PoolNote& note;
};
using PoolObserver = std::function<void(const PoolEvent&)>;

/// The caching allocator of one device. A freed block is reused by later allocations for the same stream,
/// which its order makes safe without waiting; work of other streams that uses the block is made known by
/// record_stream(), and the block then rests until that work is done. What a task of the stream allocates
/// does not come after the work that is queued behind it: it has segments of its own, whose blocks rest until
/// the work that the stream had when they were freed is done.
///
/// Requests are rounded up to 512 bytes. Up to 1 MiB they are cut from segments of 2 MiB, larger ones from
/// segments of at least 20 MiB (from 10 MiB on, of their own size rounded up to 2 MiB). Free blocks stand in
/// lists by size class (32 per power of two; two-level segregated fit, Masmano et al. 2004), so allocating
/// and freeing take constant time; neighbours merge when freed. Thread-safe.
///
/// A group (a number below 2^23; 0 is the pool at large) has segments of its own, which no other allocation
/// uses and which it keeps until it is dropped.
class BlockPool {
 public:
  static void configure(PoolSettings settings);  ///< for what all pools do from now on
  static const PoolSettings& settings();

  /// What gives blocks back that are kept for speed alone: called without locks, once before an allocation
  /// fails. False where there are none. Null: nothing does.
  using Relief = bool (*)();
  static void set_relief(Relief relief);

  explicit BlockPool(Arena& arena);
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;

  /// At least `size` bytes, aligned to 64, for work of `stream` (its id); null for 0 bytes. Raises
  /// kOutOfMemory with the numbers after unused segments were given back.
  Block* allocate(size_t size, uint64_t stream, uint64_t group = 0, PoolNote note = nullptr);
  void free(Block* block, const PoolNote& note = nullptr);  ///< accepts null
  void record_stream(Block* block, const std::shared_ptr<Stream>& stream);
  /// Once freed, the block rests until `end` is reached, too.
  void rest_until(Block* block, std::shared_ptr<Recording> end);
  /// Makes freed blocks available whose rest is over, as each allocation does before it takes one.
  void collect();

  static void* address(const Block* block);
  static size_t size(const Block* block);  ///< usable bytes
  static BlockPool& pool_of(const Block* block);
  Block* find(const void* address) const;  ///< the allocated block that starts there, or null; not fast

  /// Gives segments without allocated blocks back to the arena, when the work that streams have now is done
  /// (see Device::after_work): those of `group`; for 0 all but those of groups that live.
  void release_unused(uint64_t group = 0);
  void drop_group(uint64_t group);  ///< nothing is allocated in it any more
  MemoryStats stats() const;
  void reset_peak_stats();
  void reset_accumulated_stats();
  void set_fraction(double fraction);  ///< at most this part of the budget is reserved; 0 to 1
  double fraction() const;
  /// Calls `observer` for everything that happens from now on, in order and under the pool's lock: it must
  /// not use the pool. Null ends that.
  void observe(PoolObserver observer);

  /// kAwaitingFree: freed, and still used by another stream.
  enum class PieceState : uint8_t { kInactive, kAllocated, kAwaitingFree };
  struct Piece {
    void* address;
    size_t size, requested;
    PieceState state;
    PoolNote note;
  };
  struct SegmentInfo {
    void* address;
    size_t size, requested, allocated, active;  ///< active: allocated or awaiting their free
    uint64_t stream, group;
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

  /// Holds the pool's mutex. When it ends, memory of segments that were released meanwhile goes back to the
  /// arena.
  class Lock;

  Bins& bins(uint64_t stream, uint64_t group, MemoryKind kind, bool in_task);
  void link(Block* block);
  void unlink(Block* block);
  Block* give_out(Block* block, size_t size, size_t requested, PoolNote note);
  void take_back(Block* block);
  void merge_with_next(Block* block);
  Block* new_block(Segment* segment, char* address, size_t size);
  Block* new_segment(size_t size, uint64_t stream, uint64_t group, MemoryKind kind);
  Block* segment_if_possible(size_t size, uint64_t stream, uint64_t group, MemoryKind kind);
  [[noreturn]] void raise_out_of_memory(size_t size, uint64_t stream, uint64_t group, const PoolNote& note);
  std::string largest_holders() const;
  void collect_deferred();
  void collect_garbage(size_t wanted, size_t limit);
  bool kept(const Segment& segment) const;
  void release_unused_locked();
  bool release_if_unused(Segment& segment);
  void count_segment(const Segment& segment, int sign);
  void tell(PoolEvent::Action action, const Segment& segment, const void* address, size_t size,
            const PoolNote& note) const;
  template <class F>
  void for_each_counter(F function);

  Arena& arena_;
  mutable std::mutex mutex_;
  std::unordered_map<uint64_t, std::unique_ptr<Bins>> bins_;  // by group, stream and kind
  std::map<const char*, std::unique_ptr<Segment>> segments_;  // by address
  std::vector<std::unique_ptr<Block>> spare_;                 // Block objects to use again
  std::vector<Deferred> deferred_;
  std::vector<char*> released_;  // memory of segments, on its way back to the arena
  std::set<uint64_t> groups_;    // that live
  uint64_t unused_count_ = 0;    // how often a segment lost its last block
  PoolObserver observer_;
  double fraction_ = 1.0;
  MemoryStats stats_;
};

}  // namespace anynpu
