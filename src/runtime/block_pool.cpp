#include "runtime/block_pool.h"

#include <algorithm>
#include <bit>
#include <iomanip>
#include <sstream>

#include "base/error.h"
#include "runtime/device.h"
#include "runtime/stream.h"

namespace anynpu {
namespace {

constexpr size_t kUnit = 512;
constexpr size_t kSmallLimit = size_t{1} << 20;
constexpr size_t kSmallSegment = size_t{2} << 20;
constexpr size_t kLargeSegment = size_t{20} << 20;
constexpr size_t kOwnSegmentFrom = size_t{10} << 20;
constexpr size_t kSegmentUnit = size_t{2} << 20;

size_t round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

size_t block_size(size_t requested) {
  return round_up(requested, debug_memory() ? Arena::kAlignment : kUnit);
}

size_t segment_size(size_t size, MemoryKind kind) {
  if (debug_memory()) return size;  // the arena makes what follows the block fault
  if (kind == kSmallBlocks) return kSmallSegment;
  return size < kOwnSegmentFrom ? kLargeSegment : round_up(size, kSegmentUnit);
}

/// As torch prints it: two decimals in the largest binary unit.
std::string bytes_text(size_t bytes) {
  const char* units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  int unit = 0;
  for (; value >= 1024 && unit < 4; ++unit) value /= 1024;
  std::ostringstream text;
  text << std::fixed << std::setprecision(unit == 0 ? 0 : 2) << value << ' ' << units[unit];
  return text.str();
}

/// What is left of a block is kept as a block of its own from this size on.
size_t smallest_rest(MemoryKind kind) { return kind == kSmallBlocks ? kUnit : kSmallLimit + kUnit; }

/// Adds `amount` or, where it is negative, takes it away. An allocation and its free count about fifteen
/// times, so this has no branch and is always inlined: it would be half of their time otherwise.
[[gnu::always_inline]] inline void count(MemoryStats::PerKind& what, MemoryKind kind, int64_t amount) {
  for (MemoryKind each : {kAllMemory, kind}) {
    MemoryCounter& counter = what[each];
    counter.current += amount;
    counter.peak = std::max(counter.peak, counter.current);
    counter.allocated += std::max<int64_t>(amount, 0);
    counter.freed += std::max<int64_t>(-amount, 0);
  }
}

}  // namespace

struct BlockPool::Segment {
  BlockPool* pool;
  uint64_t stream;
  MemoryKind kind;
  Bins& bins;  ///< of that stream and kind
  size_t size;
  Block* first;
};

struct Block {
  BlockPool::Segment* segment;
  char* address;
  size_t size, requested = 0;
  enum State : uint8_t { kFree, kAllocated, kDeferred } state = kDeferred;  // free blocks stand in a bin
  Block *previous = nullptr, *next = nullptr;                               // neighbours in the segment
  Block *bin_previous = nullptr, *bin_next = nullptr;       // in the free list of the size class
  std::vector<std::shared_ptr<Stream>> other_streams = {};  // that use it beside the segment's own

  bool is_whole_segment() const { return previous == nullptr && next == nullptr; }
};

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

BlockPool::BlockPool(Arena& arena) : arena_(arena) {}

BlockPool::~BlockPool() {
  for (auto& [address, segment] : segments_)
    for (Block *block = segment->first, *next; block != nullptr; block = next) {
      next = block->next;
      delete block;
    }
}

// [docs:block-allocate]
Block* BlockPool::allocate(size_t requested, uint64_t stream) {
  if (requested == 0) return nullptr;
  std::lock_guard lock(mutex_);
  if (requested > MemoryBudget::instance().total()) raise_out_of_memory(requested);
  const size_t size = block_size(requested);
  const MemoryKind kind = size <= kSmallLimit ? kSmallBlocks : kLargeBlocks;
  if (!deferred_.empty()) collect_deferred();
  Block* block = bins(stream, kind).find(size);
  if (block == nullptr) block = new_segment_or_make_room(size, stream, kind);
  return give_out(block, size, requested);
}
// [/docs]

void BlockPool::free(Block* block) {
  if (block == nullptr || Device::forked()) return;
  std::vector<std::shared_ptr<Recording>> until;
  if (!block->other_streams.empty() && !Executor::stopped())
    for (const auto& stream : block->other_streams) until.push_back(stream->record());
  std::erase_if(until, [](const auto& point) { return point->done(); });

  std::lock_guard lock(mutex_);
  const MemoryKind kind = block->segment->kind;
  block->other_streams.clear();
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

void BlockPool::release_unused() {
  std::lock_guard lock(mutex_);
  collect_deferred();
  release_unused_locked();
}

MemoryStats BlockPool::stats() const {
  std::lock_guard lock(mutex_);
  return stats_;
}

void BlockPool::reset_peak_stats() {
  std::lock_guard lock(mutex_);
  for_each_counter([](MemoryCounter& counter) { counter.peak = counter.current; });
}

void BlockPool::reset_accumulated_stats() {
  std::lock_guard lock(mutex_);
  for_each_counter([](MemoryCounter& counter) { counter.allocated = counter.freed = 0; });
  stats_.num_alloc_retries = stats_.num_ooms = stats_.num_device_alloc = stats_.num_device_free = 0;
}

void BlockPool::set_fraction(double fraction) {
  require(fraction >= 0 && fraction <= 1, ErrorCode::kInvalidArgument, "memory fraction: ", fraction,
          " is not between 0 and 1");
  std::lock_guard lock(mutex_);
  fraction_ = fraction;
}

std::vector<BlockPool::SegmentInfo> BlockPool::snapshot() const {
  std::lock_guard lock(mutex_);
  std::vector<SegmentInfo> result;
  for (const auto& [address, segment] : segments_) {
    SegmentInfo& info = result.emplace_back(
        SegmentInfo{segment->first->address, segment->size, 0, segment->stream, segment->kind, {}});
    for (const Block* block = segment->first; block != nullptr; block = block->next) {
      const bool allocated = block->state == Block::kAllocated;
      info.pieces.push_back({block->address, block->size, block->requested, allocated});
      if (allocated) info.allocated += block->size;
    }
  }
  return result;
}

BlockPool::Bins& BlockPool::bins(uint64_t stream, MemoryKind kind) {
  auto& bins = bins_[stream * 2 + (kind == kLargeBlocks)];
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
Block* BlockPool::give_out(Block* block, size_t size, size_t requested) {
  const MemoryKind kind = block->segment->kind;
  unlink(block);
  if (const size_t rest = block->size - size; rest >= smallest_rest(kind)) {
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
  const auto bytes = static_cast<int64_t>(block->size);
  count(stats_.allocation, kind, 1);
  count(stats_.active, kind, 1);
  count(stats_.allocated_bytes, kind, bytes);
  count(stats_.active_bytes, kind, bytes);
  count(stats_.requested_bytes, kind, static_cast<int64_t>(requested));
  return block;
}

/// Merges a block that no work uses any more with its free neighbours and makes it available.
void BlockPool::take_back(Block* block) {
  const MemoryKind kind = block->segment->kind;
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
  if (debug_memory()) release_unused_locked();
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
Block* BlockPool::new_segment(size_t size, uint64_t stream, MemoryKind kind) {
  const size_t bytes = segment_size(size, kind);
  const auto limit = static_cast<size_t>(fraction_ * static_cast<double>(MemoryBudget::instance().total()));
  require(bytes + static_cast<size_t>(stats_.reserved_bytes[kAllMemory].current) <= limit,
          ErrorCode::kOutOfMemory, "device ", arena_.device(), " may reserve ", limit, " bytes");
  auto* address = static_cast<char*>(arena_.allocate(bytes));
  auto& segment = segments_[address];
  segment.reset(new Segment{this, stream, kind, bins(stream, kind), bytes, nullptr});
  segment->first = new_block(segment.get(), address, bytes);
  ++stats_.num_device_alloc;
  count(stats_.segment, kind, 1);
  count(stats_.reserved_bytes, kind, static_cast<int64_t>(bytes));
  link(segment->first);
  return segment->first;
}

Block* BlockPool::new_segment_or_make_room(size_t size, uint64_t stream, MemoryKind kind) {
  const auto try_once = [&]() -> Block* {
    try {
      return new_segment(size, stream, kind);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kOutOfMemory) throw;
      return nullptr;
    }
  };
  if (Block* block = try_once()) return block;
  ++stats_.num_alloc_retries;
  release_unused_locked();
  if (Block* block = try_once()) return block;
  raise_out_of_memory(size);
}

void BlockPool::raise_out_of_memory(size_t size) {
  ++stats_.num_ooms;
  const MemoryBudget& budget = MemoryBudget::instance();
  const int64_t allocated = stats_.allocated_bytes[kAllMemory].current;
  const int64_t reserved = stats_.reserved_bytes[kAllMemory].current;
  raise(ErrorCode::kOutOfMemory, "NPU out of memory. Tried to allocate ", bytes_text(size), ". Device ",
        arena_.device(), " has a total capacity of ", bytes_text(budget.total()), " of which ",
        bytes_text(budget.total() - budget.committed()), " is free (", bytes_text(allocated), " allocated, ",
        bytes_text(reserved - allocated), " reserved but unallocated; ", bytes_text(reserved),
        " reserved in all). The capacity is set by ANYNPU_MEMORY; a limit by set_per_process_memory_fraction "
        "is ",
        fraction_, " of it.");
}

/// Takes back the freed blocks whose other streams are done with them.
void BlockPool::collect_deferred() {
  std::erase_if(deferred_, [&](Deferred& deferred) {
    std::erase_if(deferred.until, [](const auto& point) { return point->done(); });
    if (deferred.until.empty()) take_back(deferred.block);
    return deferred.until.empty();
  });
}

void BlockPool::release_unused_locked() {
  std::erase_if(segments_, [&](auto& entry) {
    Segment& segment = *entry.second;
    Block* block = segment.first;
    if (block->state != Block::kFree || !block->is_whole_segment()) return false;
    unlink(block);
    arena_.free(block->address);
    delete block;
    ++stats_.num_device_free;
    count(stats_.segment, segment.kind, -1);
    count(stats_.reserved_bytes, segment.kind, -static_cast<int64_t>(segment.size));
    return true;
  });
}

template <class F>
void BlockPool::for_each_counter(F function) {
  for (auto* per_kind :
       {&stats_.allocation, &stats_.segment, &stats_.active, &stats_.inactive_split, &stats_.allocated_bytes,
        &stats_.reserved_bytes, &stats_.active_bytes, &stats_.inactive_split_bytes, &stats_.requested_bytes})
    for (MemoryCounter& counter : *per_kind) function(counter);
}

}  // namespace anynpu
