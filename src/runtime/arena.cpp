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

namespace anynpu {
namespace {

Option memory_option("ANYNPU_MEMORY", "",
                     "bytes of memory that all devices together may use (suffixes K, M, G); default: three "
                     "quarters of what the process may use");
Option debug_option("ANYNPU_DEBUG_MEMORY", "0",
                    "1: freed and out-of-bounds device memory faults; slow, and memory is never reused");

/// The address range of a device: enough that fragmentation by pages does not matter.
constexpr size_t kReservedPerBudget = 4;
constexpr size_t kMostReserved = size_t{1} << 56;  // more than any process has

size_t round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

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

Arena::Arena(int device) : device_(device) {
  const size_t budget = MemoryBudget::instance().total();
  errno = ENOMEM;  // where nothing is tried
  for (size_t factor = kReservedPerBudget; factor != 0; factor /= 2) {
    if (budget > kMostReserved / factor) continue;
    const size_t size = round_up(budget * factor, kHugePage) + kHugePage;
    void* base = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) continue;  // an address space limit: try with less
    madvise(base, size, MADV_DONTFORK);
    madvise(base, size, MADV_DONTDUMP);
    base_ = static_cast<char*>(base);
    reserved_ = size;
    free_.emplace(base_, reserved_);
    return;
  }
  raise(ErrorCode::kOutOfMemory, "device ", device, ": cannot reserve ", budget,
        " bytes of address space, the size of ANYNPU_MEMORY: ", std::strerror(errno));
}

Arena::~Arena() { munmap(base_, reserved_); }

void* Arena::allocate(size_t size) {
  require(size != 0, ErrorCode::kInvalidArgument, "device memory: size is 0; 1 or more is accepted");
  MemoryBudget& budget = MemoryBudget::instance();
  const size_t bytes = size <= budget.total() ? round_up(size, kPage) : size;
  const auto fail = [&](const char* why) {
    raise(ErrorCode::kOutOfMemory, "device ", device_, " out of memory: tried to allocate ", size, " bytes; ",
          budget.committed(), " of ", budget.total(), " bytes are in use by all devices of the process (",
          why, ")");
  };
  if (!budget.reserve(bytes)) fail("the budget is spent");

  std::lock_guard lock(mutex_);
  const size_t span = bytes + (debug_memory() ? kPage : 0);
  char* begin = take_free(span, bytes >= kHugePage ? kHugePage : kPage);
  if (begin == nullptr || mprotect(begin, bytes, PROT_READ | PROT_WRITE) != 0) {
    if (begin != nullptr) give_back(begin, span);
    budget.release(bytes);
    fail(begin == nullptr ? "no address range is free" : "the system refused");
  }
  if (bytes >= kHugePage) madvise(begin, bytes, MADV_HUGEPAGE);
  committed_ += bytes;
  // In debug mode the range ends, up to its alignment, where the page that faults begins.
  char* address = debug_memory() ? begin + bytes - round_up(size, kAlignment) : begin;
  live_.emplace(address, debug_memory() ? round_up(size, kAlignment) : bytes);
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
  std::lock_guard lock(mutex_);
  const auto found = retired_.find(static_cast<char*>(address));
  char* begin = page_of(found->first);
  const size_t bytes = round_up(found->second, kPage);
  retired_.erase(found);
  // Mapping afresh drops the pages and makes the range fault in one call. It cannot fail for want of memory,
  // and where the kernel refuses to split the mapping, dropping the pages is what counts.
  if (mmap(begin, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) ==
      MAP_FAILED)
    madvise(begin, bytes, MADV_DONTNEED);
  madvise(begin, bytes, MADV_DONTFORK);
  madvise(begin, bytes, MADV_DONTDUMP);
  if (!debug_memory()) give_back(begin, bytes);
  committed_ -= bytes;
  MemoryBudget::instance().release(bytes);
}

std::optional<Arena::Range> Arena::find(const void* address) const {
  std::lock_guard lock(mutex_);
  auto after = live_.upper_bound(static_cast<char*>(const_cast<void*>(address)));
  if (after == live_.begin()) return std::nullopt;
  const auto [begin, size] = *std::prev(after);
  if (address >= begin + size) return std::nullopt;
  return Range{begin, size};
}

size_t Arena::committed() const {
  std::lock_guard lock(mutex_);
  return committed_;
}

/// The first free range that fits, or null.
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
  return nullptr;
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
