// What a pool says of itself: counters, a snapshot, and why there is no memory.

#include <algorithm>
#include <iomanip>
#include <map>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "runtime/block_pool.h"
#include "runtime/block_pool_parts.h"

namespace anynpu {
namespace {

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

}  // namespace

template <class F>
void BlockPool::for_each_counter(F function) {
  for (auto* per_kind :
       {&stats_.allocation, &stats_.segment, &stats_.active, &stats_.inactive_split, &stats_.allocated_bytes,
        &stats_.reserved_bytes, &stats_.active_bytes, &stats_.inactive_split_bytes, &stats_.requested_bytes})
    for (MemoryCounter& counter : *per_kind) function(counter);
  for (auto& [group, per_kind] : stats_.group_reserved_bytes)
    for (MemoryCounter& counter : per_kind) function(counter);
  function(stats_.oversize_allocations);
  function(stats_.oversize_segments);
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

std::vector<BlockPool::SegmentInfo> BlockPool::snapshot() const {
  std::lock_guard lock(mutex_);
  std::vector<SegmentInfo> result;
  for (const auto& [address, segment] : segments_) {
    SegmentInfo& info = result.emplace_back(SegmentInfo{
        segment->first->address, segment->size, 0, 0, 0, segment->stream, segment->group, segment->kind, {}});
    for (const Block* block = segment->first; block != nullptr; block = block->next) {
      PieceState state = PieceState::kInactive;
      if (block->state == Block::kAllocated) {
        state = PieceState::kAllocated;
        info.allocated += block->size;
        info.requested += block->requested;
      } else if (block->state == Block::kDeferred) {
        state = PieceState::kAwaitingFree;
      }
      if (state != PieceState::kInactive) info.active += block->size;
      info.pieces.push_back({block->address, block->size, block->requested, state, block->note});
    }
  }
  return result;
}

void BlockPool::raise_out_of_memory(size_t size, uint64_t stream, uint64_t group, const PoolNote& note) {
  ++stats_.num_ooms;
  const MemoryBudget& budget = MemoryBudget::instance();
  const size_t free = budget.total() - budget.committed();
  if (observer_) observer_({PoolEvent::kOom, arena_.device(), free, size, stream, group, note});
  const int64_t allocated = stats_.allocated_bytes[kAllMemory].current;
  const int64_t reserved = stats_.reserved_bytes[kAllMemory].current;
  raise(ErrorCode::kOutOfMemory, "NPU out of memory. Tried to allocate ", bytes_text(size), ". Device ",
        arena_.device(), " has a total capacity of ", bytes_text(budget.total()), " of which ",
        bytes_text(free), " is free (", bytes_text(allocated), " allocated, ",
        bytes_text(reserved - allocated), " reserved but unallocated; ", bytes_text(reserved),
        " reserved in all)", largest_holders(),
        ". The capacity is set by ANYNPU_MEMORY; a limit by set_per_process_memory_fraction is ", fraction_,
        " of it.");
}

/// What of the memory allocated is held by the sizes that hold most of it.
std::string BlockPool::largest_holders() const {
  std::map<size_t, size_t> counts;
  for (const auto& [address, segment] : segments_)
    for (const Block* block = segment->first; block != nullptr; block = block->next)
      if (block->state == Block::kAllocated) ++counts[block->requested];
  std::vector<std::pair<size_t, size_t>> sizes(counts.begin(), counts.end());
  std::sort(sizes.begin(), sizes.end(),
            [](const auto& a, const auto& b) { return a.first * a.second > b.first * b.second; });
  constexpr size_t kShown = 5;
  std::string text;
  for (size_t i = 0; i < std::min(kShown, sizes.size()); ++i)
    text += concat(i == 0 ? ". Most is held by " : ", ", sizes[i].second, " x ", bytes_text(sizes[i].first));
  return text;
}

}  // namespace anynpu
