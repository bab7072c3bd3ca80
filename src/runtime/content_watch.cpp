#include "runtime/content_watch.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "runtime/block_pool.h"
#include "runtime/device.h"

namespace anynpu {
namespace {

uintptr_t number_of(const void* address) { return reinterpret_cast<uintptr_t>(address); }

/// How many watches there are of some of the memory at an address: of all memory that is as far apart as the
/// table is long. Most writes find 0, and need no lock.
class Granules {
 public:
  bool has_any(uintptr_t address) const { return at(address).load(std::memory_order_relaxed) != 0; }
  void add(uintptr_t begin, uintptr_t end, uint32_t amount) {
    for (uintptr_t granule = begin / kBytes; granule <= (end - 1) / kBytes; ++granule)
      at(granule * kBytes).fetch_add(amount, std::memory_order_relaxed);
  }

 private:
  static constexpr uintptr_t kBytes = uintptr_t{1} << 16, kCount = uintptr_t{1} << 20;

  static std::atomic<uint32_t>& at(uintptr_t address) {
    static std::array<std::atomic<uint32_t>, kCount> counts;  // pages of it come as they are used
    return counts[address / kBytes % kCount];
  }
};

}  // namespace

struct ContentWatch::Registry {
  std::mutex mutex;
  std::map<uintptr_t, std::shared_ptr<ContentWatch>> watches;  // by address; none overlap
  std::vector<std::pair<uintptr_t, uintptr_t>> excluded;
  std::map<uintptr_t, uintptr_t> excluded_blocks;  // until they are freed
  Granules granules;

  std::shared_ptr<ContentWatch> find(uintptr_t address) const {
    const auto after = watches.upper_bound(address);
    if (after == watches.begin()) return nullptr;
    const auto& watch = std::prev(after)->second;
    return address < watch->end_ ? watch : nullptr;
  }

  void add(const std::shared_ptr<ContentWatch>& watch) {
    watches.emplace(watch->begin_, watch);
    granules.add(watch->begin_, watch->end_, 1);
    count_.fetch_add(1, std::memory_order_relaxed);
  }

  /// False where it is gone already.
  bool remove(const ContentWatch& watch) {
    const auto found = watches.find(watch.begin_);
    if (found == watches.end() || found->second.get() != &watch) return false;
    found->second->ended_.store(true, std::memory_order_release);
    watches.erase(found);
    granules.add(watch.begin_, watch.end_, UINT32_MAX);  // one less
    count_.fetch_sub(1, std::memory_order_relaxed);
    return true;
  }
};

ContentWatch::Registry& ContentWatch::registry() {
  static auto* made = new Registry;  // outlives every thread
  return *made;
}

std::shared_ptr<ContentWatch> ContentWatch::begin(const Block* block, UniqueFunction ended) {
  const uintptr_t begin = number_of(BlockPool::address(block)), end = begin + BlockPool::size(block);
  std::shared_ptr<ContentWatch> watch(new ContentWatch(begin, end, std::move(ended)));
  {
    Registry& all = registry();
    const std::lock_guard lock(all.mutex);
    const auto meets = [&](const auto& range) { return range.first < end && begin < range.second; };
    if (std::any_of(all.excluded.begin(), all.excluded.end(), meets) ||
        std::any_of(all.excluded_blocks.begin(), all.excluded_blocks.end(), meets) ||
        all.watches.contains(begin))
      return nullptr;
    all.add(watch);
  }
  Device::after_work([weak = std::weak_ptr(watch)] {
    if (const auto known = weak.lock()) known->settled_.store(true, std::memory_order_release);
  });
  return watch;
}

void ContentWatch::stop() {
  const std::lock_guard lock(registry().mutex);
  (void)registry().remove(*this);
}

ContentWatch::Ended ContentWatch::end(Ended watches) {
  const std::lock_guard lock(registry().mutex);
  std::erase_if(watches, [](const auto& watch) { return !registry().remove(*watch); });
  return watches;
}

void ContentWatch::call_back(const Ended& watches) {
  for (const auto& watch : watches)
    if (watch->on_end_) watch->on_end_();
}

ContentWatch::Ended ContentWatch::end_of(const Writes& writes) {
  Ended found;
  Registry& all = registry();
  if (writes.are_anything()) {
    const std::lock_guard lock(all.mutex);
    for (const auto& [begin, watch] : all.watches) found.push_back(watch);
  }
  for (const void* address : writes.addresses()) {
    if (!all.granules.has_any(number_of(address))) continue;
    const std::lock_guard lock(all.mutex);
    if (auto watch = all.find(number_of(address))) found.push_back(std::move(watch));
  }
  return found.empty() ? found : end(std::move(found));
}

void ContentWatch::end_freed(const void* address) {
  void* const addresses[] = {const_cast<void*>(address)};
  call_back(end_of(Writes(addresses)));
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  if (all.excluded_blocks.erase(number_of(address)) != 0) count_.fetch_sub(1, std::memory_order_relaxed);
}

void ContentWatch::exclude(const void* address, size_t size) { exclude(address, size, false); }
void ContentWatch::exclude_block(const void* address, size_t size) { exclude(address, size, true); }

void ContentWatch::exclude(const void* address, size_t size, bool until_freed) {
  const uintptr_t begin = number_of(address), end = begin + size;
  Ended ended;
  {
    Registry& all = registry();
    const std::lock_guard lock(all.mutex);
    const std::pair range(begin, end);
    if (until_freed) {
      if (all.excluded_blocks.insert(range).second) count_.fetch_add(1, std::memory_order_relaxed);
    } else if (std::find(all.excluded.begin(), all.excluded.end(), range) == all.excluded.end()) {
      all.excluded.push_back(range);
    }
    for (const auto& [first, watch] : all.watches)
      if (first < end && begin < watch->end_) ended.push_back(watch);
  }
  call_back(ContentWatch::end(std::move(ended)));
}

}  // namespace anynpu
