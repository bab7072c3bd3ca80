#include "runtime/block_pool.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <deque>
#include <utility>

#include "base/error.h"
#include "runtime/block_pool_parts.h"
#include "runtime/content_watch.h"
#include "runtime/device.h"
#include "runtime/running.h"
#include "runtime/stream.h"

namespace anynpu {
namespace {

constexpr size_t kUnit = 512;
constexpr size_t kSmallLimit = size_t{1} << 20;
constexpr size_t kSmallSegment = size_t{2} << 20;
constexpr size_t kOwnSegmentFrom = size_t{10} << 20;
constexpr size_t kSegmentUnit = size_t{2} << 20;

size_t round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

struct SettingsHistory {
  std::mutex mutex;
  std::deque<PoolSettings> all = {{}};  // former ones stay, for threads that still read them
  std::atomic<const PoolSettings*> now = &all.back();
};

SettingsHistory& settings_history() {
  static auto* history = new SettingsHistory;
  return *history;
}

std::atomic<BlockPool::Relief> relief_of_all = nullptr;

bool relieve() {
  const BlockPool::Relief relief = relief_of_all.load(std::memory_order_acquire);
  return relief != nullptr && relief();
}

/// Rounds up to the unit, or to the steps into which the size's power of two is divided.
size_t block_size(size_t requested, const std::vector<size_t>& divisions) {
  if (debug_memory()) return round_up(requested, Arena::kAlignment);
  if (divisions.empty()) return round_up(requested, kUnit);
  const auto power =
      static_cast<size_t>(std::bit_width(requested | kSmallLimit) - std::bit_width(kSmallLimit));
  const size_t steps = divisions[std::min(power, divisions.size() - 1)];
  return round_up(requested, steps > 1 ? std::max(kUnit, std::bit_floor(requested) / steps) : kUnit);
}

size_t segment_size(size_t size, MemoryKind kind, const PoolSettings& settings) {
  if (debug_memory()) return size;  // the arena makes what follows the block fault
  if (kind == kSmallBlocks) return kSmallSegment;
  const bool own = size >= kOwnSegmentFrom || size >= settings.max_split_size || !settings.caching;
  return own ? round_up(size, kSegmentUnit)
             : std::max(settings.large_segment_size, round_up(size, kSegmentUnit));
}

/// What is left of a block is kept as a block of its own from this size on.
size_t smallest_rest(MemoryKind kind) { return kind == kSmallBlocks ? kUnit : kSmallLimit + kUnit; }

/// Adds `amount` or, where it is negative, takes it away. An allocation and its free count about fifteen
/// times, so this has no branch and is always inlined: it would be half of their time otherwise.
[[gnu::always_inline]] inline void count(MemoryCounter& counter, int64_t amount) {
  counter.current += amount;
  counter.peak = std::max(counter.peak, counter.current);
  counter.allocated += std::max<int64_t>(amount, 0);
  counter.freed += std::max<int64_t>(-amount, 0);
}

[[gnu::always_inline]] inline void count(MemoryStats::PerKind& what, MemoryKind kind, int64_t amount) {
  for (MemoryKind each : {kAllMemory, kind}) count(what[each], amount);
}

bool is_oversize(size_t size) { return size >= BlockPool::settings().max_split_size; }

/// Oversize blocks are for requests of about their size only.
bool may_take(const Block& block, size_t size) {
  const PoolSettings& settings = BlockPool::settings();
  return is_oversize(size) ? block.size - size <= settings.max_non_split_rounding : !is_oversize(block.size);
}

}  // namespace

/// Free blocks by size class. Class of a size: exact below 32 units, then 32 classes per power of two.
class BlockPool::Bins {
 public:
  void insert(Block* block) {
    const size_t bin = bin_of(block->size);
    block->bin_previous = nullptr;
    block->bin_next = heads_[bin];
    if (heads_[bin] != nullptr) heads_[bin]->bin_previous = block;
    heads_[bin] = block;
    occupied_[bin / 64] |= uint64_t{1} << bin % 64;
  }

  void remove(Block* block) {
    const size_t bin = bin_of(block->size);
    (block->bin_previous != nullptr ? block->bin_previous->bin_next : heads_[bin]) = block->bin_next;
    if (block->bin_next != nullptr) block->bin_next->bin_previous = block->bin_previous;
    if (heads_[bin] == nullptr) occupied_[bin / 64] &= ~(uint64_t{1} << bin % 64);
  }

  /// A block of at least `size` bytes, or null.
  Block* find(size_t size) const {
    const size_t bin = bin_of(size);
    // The size's own class also holds smaller blocks; a few steps find the one just freed.
    Block* block = heads_[bin];
    for (int step = 0; block != nullptr && block->size < size; ++step)
      block = step < kSearch ? block->bin_next : nullptr;
    return block != nullptr ? block : first_from(bin + 1);
  }

 private:
  static constexpr size_t kPerPower = 32;
  static constexpr size_t kBins = 36 * kPerPower;  // up to 2^49 bytes
  static constexpr int kSearch = 64;

  static size_t bin_of(size_t bytes) {
    const size_t units = bytes / kUnit;
    if (units < kPerPower) return units;
    const int log = std::bit_width(units) - 1;
    return std::min(kBins - 1, (log - 4) * kPerPower + ((units >> (log - 5)) & (kPerPower - 1)));
  }

  Block* first_from(size_t bin) const {
    uint64_t mask = ~uint64_t{0} << bin % 64;
    for (size_t word = bin / 64; word < occupied_.size(); ++word, mask = ~uint64_t{0}) {
      const uint64_t bits = occupied_[word] & mask;
      if (bits != 0) return heads_[word * 64 + std::countr_zero(bits)];
    }
    return nullptr;
  }

  std::array<Block*, kBins> heads_ = {};
  std::array<uint64_t, kBins / 64> occupied_ = {};
};

void BlockPool::configure(PoolSettings settings) {
  SettingsHistory& history = settings_history();
  std::lock_guard lock(history.mutex);
  history.now.store(&history.all.emplace_back(std::move(settings)), std::memory_order_release);
}

const PoolSettings& BlockPool::settings() { return *settings_history().now.load(std::memory_order_acquire); }

void BlockPool::set_relief(Relief relief) { relief_of_all.store(relief, std::memory_order_release); }

BlockPool::BlockPool(Arena& arena) : arena_(arena) {}

BlockPool::~BlockPool() {
  for (auto& [address, segment] : segments_)
    for (Block *block = segment->first, *next; block != nullptr; block = next) {
      next = block->next;
      delete block;
    }
}

class BlockPool::Lock {
 public:
  explicit Lock(BlockPool& pool) : pool_(pool), lock_(pool.mutex_) {}
  ~Lock() {
    if (pool_.released_.empty()) return;
    std::vector<char*> released = std::exchange(pool_.released_, {});
    lock_.unlock();  // streams have locks of their own
    Device::after_work([&arena = pool_.arena_, released = std::move(released)] {
      for (char* address : released) arena.free(address);
    });
  }
  Lock(const Lock&) = delete;

 private:
  BlockPool& pool_;
  std::unique_lock<std::mutex> lock_;
};

// [docs:block-allocate]
Block* BlockPool::allocate(size_t requested, uint64_t stream, uint64_t group, PoolNote note) {
  if (requested == 0) return nullptr;
  for (int attempt = 0;; ++attempt) {
    const bool relieved = attempt == 1 && relieve();
    {
      Lock lock(*this);
      if (requested > MemoryBudget::instance().total()) raise_out_of_memory(requested, stream, group, note);
      const size_t size = block_size(requested, settings().roundup_power2_divisions);
      const MemoryKind kind = size <= kSmallLimit ? kSmallBlocks : kLargeBlocks;
      if (!deferred_.empty()) collect_deferred();
      Block* block = bins(stream, group, kind, Running::in_stream(stream)).find(size);
      if (block == nullptr || !may_take(*block, size)) block = segment_if_possible(size, stream, group, kind);
      if (block != nullptr) return give_out(block, size, requested, std::move(note));
      if (attempt > 1 || (attempt == 1 && !relieved)) raise_out_of_memory(requested, stream, group, note);
      if (attempt == 0) ++stats_.num_alloc_retries;
      release_unused_locked();
    }
    Device::wait_for_after_work(kFreeingLimit);
  }
}
// [/docs]

void BlockPool::free(Block* block, const PoolNote& note) {
  if (block == nullptr || Device::forked()) return;
  ContentWatch::note_freed(block->address);
  std::vector<std::shared_ptr<Recording>> until = std::move(block->ends);
  if (!block->other_streams.empty() && !Executor::stopped())
    for (const auto& stream : block->other_streams) until.push_back(stream->record());
  if (block->segment->in_task && !Executor::stopped())
    if (const auto stream = Device::get(arena_.device()).live_stream(block->segment->stream))
      if (!stream->idle_but_for_caller()) until.push_back(stream->record());
  std::erase_if(until, [](const auto& point) { return point->done(); });

  Lock lock(*this);
  const MemoryKind kind = block->segment->kind;
  tell(PoolEvent::kFreeRequested, *block->segment, block->address, block->requested, note);
  block->other_streams.clear();
  block->ends.clear();
  block->state = Block::kDeferred;
  count(stats_.allocation, kind, -1);
  count(stats_.allocated_bytes, kind, -static_cast<int64_t>(block->size));
  count(stats_.requested_bytes, kind, -static_cast<int64_t>(block->requested));
  if (until.empty()) {
    take_back(block);
  } else {
    deferred_.push_back({block, std::move(until)});
  }
}

void BlockPool::record_stream(Block* block, const std::shared_ptr<Stream>& stream) {
  if (block == nullptr || stream->id() == block->segment->stream) return;
  std::lock_guard lock(mutex_);
  auto& streams = block->other_streams;
  if (std::find(streams.begin(), streams.end(), stream) == streams.end()) streams.push_back(stream);
}

void BlockPool::rest_until(Block* block, std::shared_ptr<Recording> end) {
  std::lock_guard lock(mutex_);
  std::erase_if(block->ends, [](const auto& before) { return before->done(); });
  block->ends.push_back(std::move(end));
}

void BlockPool::collect() {
  Lock lock(*this);
  collect_deferred();
}

void* BlockPool::address(const Block* block) { return block == nullptr ? nullptr : block->address; }

size_t BlockPool::size(const Block* block) { return block == nullptr ? 0 : block->size; }

BlockPool& BlockPool::pool_of(const Block* block) { return *block->segment->pool; }

Block* BlockPool::find(const void* address) const {
  std::lock_guard lock(mutex_);
  auto after = segments_.upper_bound(static_cast<const char*>(address));
  if (after == segments_.begin()) return nullptr;
  Block* block = std::prev(after)->second->first;
  while (block != nullptr && block->address != address) block = block->next;
  return block != nullptr && block->state == Block::kAllocated ? block : nullptr;
}

void BlockPool::release_unused(uint64_t group) {
  Lock lock(*this);
  collect_deferred();
  std::erase_if(segments_, [&](auto& entry) {
    const Segment& segment = *entry.second;
    return (group == 0 ? !kept(segment) : segment.group == group) && release_if_unused(*entry.second);
  });
}

void BlockPool::drop_group(uint64_t group) {
  release_unused(group);
  std::lock_guard lock(mutex_);
  groups_.erase(group);
}

void BlockPool::set_fraction(double fraction) {
  require(fraction >= 0 && fraction <= 1, ErrorCode::kInvalidArgument, "memory fraction: ", fraction,
          " is not between 0 and 1");
  std::lock_guard lock(mutex_);
  fraction_ = fraction;
}

double BlockPool::fraction() const {
  std::lock_guard lock(mutex_);
  return fraction_;
}

void BlockPool::observe(PoolObserver observer) {
  std::lock_guard lock(mutex_);
  observer_ = std::move(observer);
}

BlockPool::Bins& BlockPool::bins(uint64_t stream, uint64_t group, MemoryKind kind, bool in_task) {
  auto& bins = bins_[(group << 41) + stream * 4 + (in_task ? 2 : 0) + (kind == kLargeBlocks)];
  if (bins == nullptr) bins = std::make_unique<Bins>();
  return *bins;
}

/// Makes a block findable. Whether it is its whole segment does not change while it is.
void BlockPool::link(Block* block) {
  const Segment& segment = *block->segment;
  block->state = Block::kFree;
  segment.bins.insert(block);
  if (block->is_whole_segment()) return;
  count(stats_.inactive_split, segment.kind, 1);
  count(stats_.inactive_split_bytes, segment.kind, static_cast<int64_t>(block->size));
}

void BlockPool::unlink(Block* block) {
  const Segment& segment = *block->segment;
  segment.bins.remove(block);
  if (block->is_whole_segment()) return;
  count(stats_.inactive_split, segment.kind, -1);
  count(stats_.inactive_split_bytes, segment.kind, -static_cast<int64_t>(block->size));
}

/// Allocates the first `size` bytes of a free block and keeps the rest.
Block* BlockPool::give_out(Block* block, size_t size, size_t requested, PoolNote note) {
  const MemoryKind kind = block->segment->kind;
  unlink(block);
  const bool oversize = is_oversize(size);
  if (const size_t rest = block->size - size; rest >= smallest_rest(kind) && !oversize) {
    Block* other = new_block(block->segment, block->address + size, rest);
    other->previous = block;
    other->next = block->next;
    if (other->next != nullptr) other->next->previous = other;
    block->next = other;
    block->size = size;
    link(other);
  }
  block->state = Block::kAllocated;
  block->requested = requested;
  block->note = std::move(note);
  const auto bytes = static_cast<int64_t>(block->size);
  count(stats_.allocation, kind, 1);
  count(stats_.active, kind, 1);
  count(stats_.allocated_bytes, kind, bytes);
  count(stats_.active_bytes, kind, bytes);
  count(stats_.requested_bytes, kind, static_cast<int64_t>(requested));
  block->oversize = oversize;
  if (oversize) count(stats_.oversize_allocations, 1);
  tell(PoolEvent::kAlloc, *block->segment, block->address, requested, block->note);
  return block;
}

/// Merges a block that no work uses any more with its free neighbours and makes it available.
void BlockPool::take_back(Block* block) {
  const MemoryKind kind = block->segment->kind;
  tell(PoolEvent::kFreeCompleted, *block->segment, block->address, block->requested, block->note);
  block->note = nullptr;
  block->requested = 0;
  if (block->oversize) count(stats_.oversize_allocations, -1);
  count(stats_.active, kind, -1);
  count(stats_.active_bytes, kind, -static_cast<int64_t>(block->size));
  if (block->next != nullptr && block->next->state == Block::kFree) {
    unlink(block->next);
    merge_with_next(block);
  }
  if (Block* previous = block->previous; previous != nullptr && previous->state == Block::kFree) {
    unlink(previous);
    merge_with_next(previous);
    block = previous;
  }
  link(block);
  if (!block->is_whole_segment()) return;
  block->segment->unused_since = ++unused_count_;
  if (debug_memory() || !settings().caching) release_unused_locked();
}

void BlockPool::merge_with_next(Block* block) {
  std::unique_ptr<Block> next(block->next);
  block->size += next->size;
  block->next = next->next;
  if (block->next != nullptr) block->next->previous = block;
  spare_.push_back(std::move(next));
}

Block* BlockPool::new_block(Segment* segment, char* address, size_t size) {
  if (spare_.empty()) spare_.push_back(std::make_unique<Block>());
  Block* block = spare_.back().release();
  spare_.pop_back();
  *block = {.segment = segment, .address = address, .size = size};
  return block;
}

/// A free block that is a new segment.
Block* BlockPool::new_segment(size_t size, uint64_t stream, uint64_t group, MemoryKind kind) {
  const size_t bytes = segment_size(size, kind, settings());
  const auto limit = static_cast<size_t>(fraction_ * static_cast<double>(MemoryBudget::instance().total()));
  collect_garbage(bytes, limit);
  require(bytes + static_cast<size_t>(stats_.reserved_bytes[kAllMemory].current) <= limit,
          ErrorCode::kOutOfMemory, "device ", arena_.device(), " may reserve ", limit, " bytes");
  auto* address = static_cast<char*>(arena_.allocate(bytes));
  if (group != 0) groups_.insert(group);
  auto& segment = segments_[address];
  const bool in_task = Running::in_stream(stream);
  segment.reset(new Segment{this, stream, group, kind, bins(stream, group, kind, in_task), bytes,
                            is_oversize(bytes), in_task});
  segment->first = new_block(segment.get(), address, bytes);
  ++stats_.num_device_alloc;
  count_segment(*segment, 1);
  link(segment->first);
  return segment->first;
}

/// Counts, and tells of, a segment that came (1) or went (-1).
void BlockPool::count_segment(const Segment& segment, int sign) {
  const int64_t bytes = sign * static_cast<int64_t>(segment.size);
  count(stats_.segment, segment.kind, sign);
  count(stats_.reserved_bytes, segment.kind, bytes);
  if (segment.group != 0) count(stats_.group_reserved_bytes[segment.group], segment.kind, bytes);
  if (segment.oversize) count(stats_.oversize_segments, sign);
  tell(sign > 0 ? PoolEvent::kSegmentAlloc : PoolEvent::kSegmentFree, segment, segment.first->address,
       segment.size, nullptr);
}

/// A block of a new segment; null where there is no room for one.
Block* BlockPool::segment_if_possible(size_t size, uint64_t stream, uint64_t group, MemoryKind kind) {
  try {
    return new_segment(size, stream, group, kind);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kOutOfMemory) throw;
    return nullptr;
  }
}

/// Takes back the freed blocks whose other streams are done with them.
void BlockPool::collect_deferred() {
  std::erase_if(deferred_, [&](Deferred& deferred) {
    std::erase_if(deferred.until, [](const auto& point) { return point->done(); });
    if (deferred.until.empty()) take_back(deferred.block);
    return deferred.until.empty();
  });
}

/// Before a new segment of `wanted` bytes: gives unused ones back, the one that rests longest first, while
/// the pool would reserve more than the threshold's part of `limit`.
void BlockPool::collect_garbage(size_t wanted, size_t limit) {
  const double threshold = settings().garbage_collection_threshold;
  if (threshold == 0) return;
  const auto most = static_cast<int64_t>(threshold * static_cast<double>(limit));
  const auto too_much = [&] {
    return stats_.reserved_bytes[kAllMemory].current + static_cast<int64_t>(wanted) > most;
  };
  if (!too_much()) return;
  std::map<uint64_t, const char*> unused;  // by age
  for (const auto& [address, segment] : segments_)
    if (segment->first->state == Block::kFree && segment->first->is_whole_segment() && !kept(*segment))
      unused.emplace(segment->unused_since, address);
  for (auto oldest = unused.begin(); oldest != unused.end() && too_much(); ++oldest) {
    const auto found = segments_.find(oldest->second);
    if (release_if_unused(*found->second)) segments_.erase(found);
  }
}

bool BlockPool::kept(const Segment& segment) const { return groups_.contains(segment.group); }

void BlockPool::release_unused_locked() {
  std::erase_if(segments_,
                [&](auto& entry) { return !kept(*entry.second) && release_if_unused(*entry.second); });
}

/// Gives the memory of a segment without allocated blocks back; the segment itself is then to be erased.
bool BlockPool::release_if_unused(Segment& segment) {
  Block* block = segment.first;
  if (block->state != Block::kFree || !block->is_whole_segment()) return false;
  unlink(block);
  ++stats_.num_device_free;
  count_segment(segment, -1);
  released_.push_back(block->address);  // which queued work may still use
  delete block;
  return true;
}

void BlockPool::tell(PoolEvent::Action action, const Segment& segment, const void* address, size_t size,
                     const PoolNote& note) const {
  if (observer_) [[unlikely]]
    observer_({action, arena_.device(), reinterpret_cast<uintptr_t>(address), size, segment.stream,
               segment.group, note});
}

}  // namespace anynpu
