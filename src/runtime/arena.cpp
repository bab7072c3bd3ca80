#include "runtime/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>

#include "base/error.h"
#include "base/fork.h"
#include "base/options.h"
#include "runtime/physical_memory.h"

namespace anynpu {
namespace {

Option memory_option("ANYNPU_MEMORY", "",
                     "bytes of memory that all devices together may use (suffixes K, M, G); default: three "
                     "quarters of what the process may use");
Option debug_option("ANYNPU_DEBUG_MEMORY", "0",
                    "1: freed and out-of-bounds device memory faults; slow, and memory is never reused");

/// The first address space of a device: enough that fragmentation by pages does not matter.
constexpr size_t kReservedPerBudget = 4;
constexpr size_t kMovedAtOnce = size_t{64} << 20;  // by share()
constexpr size_t kMostReserved = size_t{1} << 56;  // more than any process has

size_t round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

/// Neither a fork nor a core dump has the range.
void keep_private(void* begin, size_t size) {
  madvise(begin, size, MADV_DONTFORK);
  madvise(begin, size, MADV_DONTDUMP);
}

/// Puts the pages of a file that start at `offset` where `begin` is, with what is there now; pages of zeros
/// take no memory. False, and errno, when the system refuses.
bool move_pages(char* begin, size_t bytes, int file, size_t offset) {
  void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, static_cast<off_t>(offset));
  if (mapped == MAP_FAILED) return false;
  auto* copy = static_cast<char*>(mapped);
  for (size_t at = 0; at < bytes; at += Arena::kPage) {
    const char* page = begin + at;
    const bool zeros = page[0] == 0 && std::memcmp(page, page + 1, Arena::kPage - 1) == 0;
    if (!zeros) std::memcpy(copy + at, page, Arena::kPage);
  }
  if (mremap(copy, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, begin) != MAP_FAILED) return true;
  munmap(copy, bytes);
  return false;
}

char* page_of(char* address) { return address - reinterpret_cast<uintptr_t>(address) % Arena::kPage; }

/// The smallest of the machine's memory and the limits of every cgroup above the process.
size_t memory_of_process() {
  size_t bytes = std::numeric_limits<size_t>::max();
  std::ifstream meminfo("/proc/meminfo");
  for (std::string key, unit; meminfo >> key;) {
    size_t kibibytes = 0;
    if (key == "MemTotal:" && meminfo >> kibibytes >> unit) {
      bytes = kibibytes << 10;
      break;
    }
  }
  const auto lower_to = [&](const std::string& file) {
    std::ifstream limit(file);
    if (size_t value = 0; limit >> value) bytes = std::min(bytes, value);  // "max" does not parse: no limit
  };
  lower_to("/sys/fs/cgroup/memory/memory.limit_in_bytes");
  lower_to("/sys/fs/cgroup/memory.max");
  std::ifstream cgroup("/proc/self/cgroup");
  for (std::string line; std::getline(cgroup, line);) {
    if (line.rfind("0::", 0) != 0) continue;
    for (std::string path = line.substr(3); path.size() > 1; path.resize(path.rfind('/')))
      lower_to("/sys/fs/cgroup" + path + "/memory.max");
  }
  return bytes;
}

size_t budget_total() {
  if (!memory_option.text().empty()) return static_cast<size_t>(memory_option.integer(1 << 20));
  return memory_of_process() / 4 * 3;
}

}  // namespace

MemoryBudget::MemoryBudget() : total_(budget_total()) {}

MemoryBudget& MemoryBudget::instance() {
  static constinit std::atomic<MemoryBudget*> budget = nullptr;
  return made_once(budget, [] { return new MemoryBudget; });
}

size_t MemoryBudget::committed() const {
  std::lock_guard lock(mutex_);
  return committed_;
}

bool MemoryBudget::reserve(size_t bytes) {
  std::lock_guard lock(mutex_);
  if (bytes > total_ - committed_) return false;
  committed_ += bytes;
  return true;
}

void MemoryBudget::release(size_t bytes) {
  std::lock_guard lock(mutex_);
  committed_ -= bytes;
}

bool debug_memory() {
  static const bool debug = debug_option.flag();
  return debug;
}

void raise_out_of_memory(int device, size_t size, const char* why) {
  const MemoryBudget& budget = MemoryBudget::instance();
  raise(ErrorCode::kOutOfMemory, "device ", device, " out of memory: tried to allocate ", size, " bytes; ",
        budget.committed(), " of ", budget.total(), " bytes are in use by all devices of the process (", why,
        ")");
}

Arena::Arena(int device) : device_(device) {
  const size_t budget = MemoryBudget::instance().total();
  errno = ENOMEM;                                                     // where nothing is tried
  for (size_t factor = kReservedPerBudget; factor != 0; factor /= 2)  // less under a limit of address space
    if (budget <= kMostReserved / factor && grow(round_up(budget * factor, kHugePage) + kHugePage)) return;
  raise(ErrorCode::kOutOfMemory, "device ", device, ": cannot reserve ", budget,
        " bytes of address space, the size of ANYNPU_MEMORY: ", std::strerror(errno));
}

Arena::~Arena() {
  for (const Range& span : spans_)
    if (span.size != 0) munmap(span.begin, span.size);
}

void* Arena::allocate(size_t size) {
  require(size != 0, ErrorCode::kInvalidArgument, "device memory: size is 0; 1 or more is accepted");
  MemoryBudget& budget = MemoryBudget::instance();
  const size_t bytes = size <= budget.total() ? round_up(size, kPage) : size;
  if (!budget.reserve(bytes)) raise_out_of_memory(device_, size, "the budget is spent");

  std::lock_guard lock(mutex_);
  const size_t span = bytes + (debug_memory() ? kPage : 0);
  char* begin = take_free(span, bytes >= kHugePage ? kHugePage : kPage);
  if (begin == nullptr || mprotect(begin, bytes, PROT_READ | PROT_WRITE) != 0) {
    if (begin != nullptr) give_back(begin, span);
    budget.release(bytes);
    raise_out_of_memory(device_, size, begin == nullptr ? "no address range is free" : "the system refused");
  }
  if (bytes >= kHugePage) madvise(begin, bytes, MADV_HUGEPAGE);
  committed_ += bytes;
  // In debug mode the range ends, up to its alignment, where the page that faults begins.
  char* address = debug_memory() ? begin + bytes - round_up(size, kAlignment) : begin;
  live_.emplace(address, Live{debug_memory() ? round_up(size, kAlignment) : bytes, nullptr});
  return address;
}

void Arena::free(void* address) {
  retire(address);
  give_back_retired(address);
}

void Arena::retire(void* address) {
  std::lock_guard lock(mutex_);
  const auto found = live_.find(static_cast<char*>(address));
  require(found != live_.end(), ErrorCode::kInvalidArgument, "device memory: ", address,
          " is not the start of an allocation of device ", device_);
  retired_.insert(live_.extract(found));
}

void Arena::give_back_retired(void* address) {
  std::vector<std::shared_ptr<PhysicalMemory>> gone;  // where this was the last owner: without the lock
  std::lock_guard lock(mutex_);
  const auto found = retired_.find(static_cast<char*>(address));
  char* begin = page_of(found->first);
  const size_t bytes = round_up(found->second.size, kPage);
  const bool mapped = found->second.memory != nullptr;
  gone.push_back(std::move(found->second.memory));
  retired_.erase(found);
  // Mapping afresh drops the pages and makes the range fault in one call. It cannot fail for want of memory,
  // and where the kernel refuses to split the mapping, dropping the pages is what counts.
  if (mmap(begin, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) ==
      MAP_FAILED)
    madvise(begin, bytes, MADV_DONTNEED);
  keep_private(begin, bytes);
  if (mapped) return;  // the addresses stay reserved
  size_t own = bytes;
  for (auto it = shared_.lower_bound(begin); it != shared_.end() && it->first < begin + bytes;
       it = shared_.erase(it)) {
    own -= it->second->size();
    gone.push_back(std::move(it->second));
  }
  if (!debug_memory()) give_back(begin, bytes);
  committed_ -= own;
  MemoryBudget::instance().release(own);
}

void* Arena::reserve(size_t size, size_t alignment) {
  std::lock_guard lock(mutex_);
  char* begin = size <= kMostReserved && alignment <= kMostReserved ? take_free(size, alignment) : nullptr;
  require(begin != nullptr, ErrorCode::kOutOfMemory, "device ", device_, ": no range of ", size,
          " bytes of address space, aligned to ", alignment, ", is free");
  return begin;
}

void Arena::release(void* address, size_t size) {
  std::lock_guard lock(mutex_);
  if (!debug_memory()) give_back(static_cast<char*>(address), size);
}

bool Arena::map(void* address, size_t size, std::shared_ptr<PhysicalMemory> memory, size_t offset) {
  auto* begin = static_cast<char*>(address);
  const auto overlaps = [&](const LiveRanges& ranges) {
    const auto next = ranges.lower_bound(begin);
    if (next != ranges.end() && next->first < begin + size) return true;
    return next != ranges.begin() && std::prev(next)->first + std::prev(next)->second.size > begin;
  };
  std::lock_guard lock(mutex_);
  require(!overlaps(live_), ErrorCode::kInvalidArgument, "device memory: in the ", size, " bytes at ",
          address, " of device ", device_, " memory is mapped already");
  if (overlaps(retired_)) return false;
  if (mmap(begin, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memory->file(),
           static_cast<off_t>(offset)) == MAP_FAILED)
    raise_out_of_memory(device_, size, "the system refused");
  keep_private(begin, size);
  if (size >= kHugePage) madvise(begin, size, MADV_HUGEPAGE);
  live_.emplace(begin, Live{size, std::move(memory)});
  return true;
}

Arena::LiveRanges::const_iterator Arena::find(const LiveRanges& ranges, const void* address) {
  const auto after = ranges.upper_bound(static_cast<char*>(const_cast<void*>(address)));
  if (after == ranges.begin()) return ranges.end();
  const auto found = std::prev(after);
  return address < found->first + found->second.size ? found : ranges.end();
}

Arena::Range Arena::pages_to_share(const void* address, size_t size) const {
  const auto fail = [&](const auto&... why) {
    raise(ErrorCode::kInvalidArgument, "sharing ", size, " bytes at ", address, " of device ", device_, ": ",
          why...);
  };
  auto* begin = static_cast<char*>(const_cast<void*>(address));
  const auto found = find(live_, address);
  if (found == live_.end()) fail("they lie in no live allocation");
  const auto& [start, live] = *found;
  if (live.memory != nullptr) fail("they are mapped physical memory, which is shared as such");
  const auto before = static_cast<size_t>(begin - start);
  if (size == 0 || size > live.size - before) fail("1 to ", live.size - before, " are accepted there");
  const auto end_of_page = [](const char* end) {
    return end + (kPage - reinterpret_cast<uintptr_t>(end) % kPage) % kPage;
  };
  const char* end = begin + size;
  const bool whole_pages = (begin == start || begin == page_of(begin)) &&
                           (end == end_of_page(end) || end_of_page(end) == end_of_page(start + live.size));
  if (!whole_pages)
    fail("what else lies in its pages would be shared with it; accepted are multiples of ", kPage,
         " and the start and end of the allocation");
  const Range pages = {page_of(begin), static_cast<size_t>(end_of_page(end) - page_of(begin))};
  const auto next = shared_.lower_bound(pages.begin);
  const bool same = next != shared_.end() && next->first == pages.begin && next->second->size() == pages.size;
  const bool overlaps =
      (next != shared_.end() && next->first < pages.begin + pages.size) ||
      (next != shared_.begin() && std::prev(next)->first + std::prev(next)->second->size() > pages.begin);
  if (overlaps && !same) fail("a part was shared already, with another beginning or end");
  return pages;
}

std::shared_ptr<PhysicalMemory> Arena::shared(const void* address, size_t size) const {
  std::lock_guard lock(mutex_);
  const auto found = shared_.find(pages_to_share(address, size).begin);
  return found != shared_.end() ? found->second : nullptr;
}

std::shared_ptr<PhysicalMemory> Arena::share(const void* address, size_t size) {
  std::lock_guard lock(mutex_);
  const auto [begin, bytes] = pages_to_share(address, size);
  if (const auto found = shared_.find(begin); found != shared_.end()) return found->second;
  auto memory = PhysicalMemory::replace(device_, bytes);
  // Part by part, so that there is never much twice. What is moved already when a part fails holds what it
  // held, and is moved again the next time.
  for (size_t at = 0; at < bytes; at += kMovedAtOnce)
    if (!move_pages(begin + at, std::min(kMovedAtOnce, bytes - at), memory->file(), at))
      raise_out_of_memory(device_, bytes, std::strerror(errno));
  keep_private(begin, bytes);
  if (bytes >= kHugePage) madvise(begin, bytes, MADV_HUGEPAGE);
  memory->take_over();
  committed_ -= bytes;
  shared_.emplace(begin, memory);
  return memory;
}

std::optional<uint64_t> Arena::load(const void* address) const {
  std::lock_guard lock(mutex_);
  if (find(live_, address) == live_.end() && find(retired_, address) == retired_.end()) return std::nullopt;
  return std::atomic_ref(*static_cast<uint64_t*>(const_cast<void*>(address))).load();
}

std::optional<Arena::Range> Arena::find(const void* address) const {
  std::lock_guard lock(mutex_);
  const auto found = find(live_, address);
  if (found == live_.end()) return std::nullopt;
  return Range{found->first, found->second.size};
}

size_t Arena::live_bytes(const void* address, size_t enough) const {
  std::lock_guard lock(mutex_);
  auto range = find(live_, address);
  if (range == live_.end()) return 0;
  const auto bytes = [&] { return range->first + range->second.size - static_cast<const char*>(address); };
  for (auto next = std::next(range);
       static_cast<size_t>(bytes()) < enough && range->second.memory != nullptr && next != live_.end() &&
       next->second.memory != nullptr && next->first == range->first + range->second.size;
       ++next)
    range = next;
  return static_cast<size_t>(bytes());
}

std::vector<void*> Arena::live_in(const void* begin, size_t size) const {
  std::vector<void*> starts;
  auto* first = static_cast<char*>(const_cast<void*>(begin));
  std::lock_guard lock(mutex_);
  for (auto it = live_.lower_bound(first); it != live_.end() && it->first < first + size; ++it)
    starts.push_back(it->first);
  return starts;
}

size_t Arena::committed() const {
  std::lock_guard lock(mutex_);
  return committed_;
}

/// Adds address space in which `size` bytes fit; false, and errno, where the system has none.
bool Arena::grow(size_t size) {
  const size_t spans = span_count_.load(std::memory_order_relaxed);
  if (spans == spans_.size()) return false;
  size_t so_far = 0;
  for (size_t i = 0; i < spans; ++i) so_far += spans_[i].size;
  const auto map_addresses = [](size_t bytes) {
    return mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  };
  void* base = so_far > size ? map_addresses(so_far) : MAP_FAILED;
  if (base != MAP_FAILED) {
    size = so_far;
  } else {
    base = map_addresses(size);
    if (base == MAP_FAILED) return false;
  }
  keep_private(base, size);
  spans_[spans] = {static_cast<char*>(base), size};
  span_count_.store(spans + 1, std::memory_order_release);
  give_back(static_cast<char*>(base), size);
  return true;
}

/// The first free range that fits, of new address space where need be, or null.
char* Arena::take_free(size_t size, size_t alignment) {
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    const auto [begin, length] = *it;
    const auto address = reinterpret_cast<uintptr_t>(begin);
    const size_t skip = round_up(address, alignment) - address;
    if (skip > length || length - skip < size) continue;
    free_.erase(it);
    if (skip != 0) free_.emplace(begin, skip);
    if (length - skip > size) free_.emplace(begin + skip + size, length - skip - size);
    return begin + skip;
  }
  return grow(round_up(size + alignment, kHugePage)) ? take_free(size, alignment) : nullptr;
}

void Arena::give_back(char* begin, size_t size) {
  auto next = free_.lower_bound(begin);
  if (next != free_.end() && begin + size == next->first) {
    size += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == begin) {
      before->second += size;
      return;
    }
  }
  free_.emplace(begin, size);
}

}  // namespace anynpu
