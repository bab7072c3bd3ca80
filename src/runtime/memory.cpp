#include "runtime/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>

#include "base/error.h"
#include "base/fork.h"
#include "base/parallel.h"
#include "runtime/device.h"

namespace anynpu {
namespace {

/// From this size on a copy or fill is shared between threads; below, handing it over costs more.
constexpr size_t kRange = size_t{1} << 19;  // bytes that are worth a thread

struct PinnedRange {
  const char* begin = nullptr;
  size_t size = 0;
  bool registered = false;  // the caller's, which register_host() pinned
};

struct PinnedMemory {
  std::mutex mutex;
  std::map<const char*, PinnedRange> ranges;  // by begin

  /// The range that holds `address`; an empty one when none does.
  PinnedRange find(const void* address) {
    std::lock_guard lock(mutex);
    auto after = ranges.upper_bound(static_cast<const char*>(address));
    if (after == ranges.begin()) return {};
    const PinnedRange range = std::prev(after)->second;
    return address < range.begin + range.size ? range : PinnedRange();
  }

  /// Removes the range of that kind that starts at `address`, and returns its size.
  size_t take(const void* address, bool registered, const char* name, const char* what, const char* source) {
    const auto changing = change_memory();
    std::lock_guard lock(mutex);
    const auto found = ranges.find(static_cast<const char*>(address));
    require(found != ranges.end() && found->second.registered == registered, ErrorCode::kInvalidArgument,
            name, " (", address, ") is not the start of a ", what, "; what ", source, " is accepted");
    const size_t size = found->second.size;
    ranges.erase(found);
    return size;
  }
};

PinnedMemory& pinned() {
  static auto* memory = [] {
    auto* made = new PinnedMemory;
    hold_in_forks(made->mutex);
    return made;
  }();
  return *memory;
}

/// Made when the library is loaded, so that no fork can find it half made.
[[maybe_unused]] PinnedMemory& made_at_load = pinned();

/// Held shared by whoever checks ranges and enqueues work on them.
std::shared_mutex& memory_in_use() {
  static constinit std::shared_mutex mutex;
  return mutex;
}

void check_place(const char* name, const void* address, bool on_device, CopyKind kind) {
  constexpr const char* kKinds[] = {"host to host", "host to device", "device to host", "device to device"};
  if (kind == CopyKind::kDefault) return;
  const bool is_device = Device::of(address) != nullptr;
  if (!is_device && pinned().find(address).registered) return;  // it is both
  require(on_device == is_device, ErrorCode::kInvalidArgument, name, " (", address, ") is ",
          is_device ? "device" : "host", " memory, but the kind is ", kKinds[static_cast<int>(kind)]);
}

}  // namespace

MemoryPlace place_of(const void* address) {
  if (Device::of(address) != nullptr) return MemoryPlace::kDevice;
  return find_pinned(address) != nullptr ? MemoryPlace::kPinnedHost : MemoryPlace::kHost;
}

void* allocate_pinned(size_t size) {
  require(size != 0, ErrorCode::kInvalidArgument, "pinned host memory: size is 0; 1 or more is accepted");
  // A mapping of its own per allocation: a pinned range shares no page with other host memory.
  void* address = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  require(address != MAP_FAILED, ErrorCode::kOutOfMemory, "pinned host memory: the system has no ", size,
          " bytes");
  std::lock_guard lock(pinned().mutex);
  pinned().ranges.emplace(static_cast<const char*>(address),
                          PinnedRange{static_cast<const char*>(address), size, false});
  return address;
}

void free_pinned(void* address) {
  const size_t size = pinned().take(address, false, "hostPtr", "pinned allocation", "aclrtMallocHost gave");
  Device::after_work([address, size] { munmap(address, size); });
}

namespace {

/// True where every page of the range is mapped; an address that is none has no page.
bool is_mapped(const char* begin, size_t size) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t first = reinterpret_cast<uintptr_t>(begin) / page * page;
  uintptr_t end = 0;
  if (__builtin_add_overflow(reinterpret_cast<uintptr_t>(begin), size, &end)) return false;
  return msync(reinterpret_cast<void*>(first), end - first, MS_ASYNC) == 0;  // starts no writing
}

}  // namespace

void register_host(void* address, size_t size) {
  auto* begin = static_cast<const char*>(address);
  require(size != 0 && is_mapped(begin, size) && Device::meeting(begin, begin + size) == nullptr,
          ErrorCode::kInvalidArgument, "registering ", size, " bytes at ", address,
          ": host memory that is mapped, 1 byte or more, is accepted");
  std::lock_guard lock(pinned().mutex);
  auto& ranges = pinned().ranges;
  const auto next = ranges.lower_bound(begin);
  const bool overlaps =
      (next != ranges.end() && next->first < begin + size) ||
      (next != ranges.begin() && std::prev(next)->first + std::prev(next)->second.size > begin);
  require(!overlaps, ErrorCode::kInvalidArgument, "registering ", size, " bytes at ", address,
          ": a part is pinned or registered already");
  ranges.emplace(begin, PinnedRange{begin, size, true});
}

void unregister_host(void* address) {
  pinned().take(address, true, "ptr", "registered range", "aclrtHostRegister was given");
}

void* find_pinned(const void* address) { return const_cast<char*>(pinned().find(address).begin); }

void check_range(const char* name, const void* address, size_t bytes) {
  if (bytes == 0) return;
  require(address != nullptr, ErrorCode::kInvalidArgument, name, " is null; ", bytes,
          " bytes were asked for");
  Device* device = Device::of(address);
  if (device == nullptr) {
    const auto [begin, size, registered] = pinned().find(address);
    const size_t rest = begin != nullptr ? begin + size - static_cast<const char*>(address) : bytes;
    require(bytes <= rest, ErrorCode::kInvalidArgument, name, " (", address, "): ", bytes,
            " bytes were asked for, but its pinned allocation ends after ", rest);
    return;
  }
  const size_t rest = device->arena().live_bytes(address, bytes);
  require(rest != 0, ErrorCode::kInvalidArgument, name, " (", address,
          ") lies in no live allocation of device ", device->index());
  require(bytes <= rest, ErrorCode::kInvalidArgument, name, " (", address, "): ", bytes,
          " bytes were asked for, but its allocation on device ", device->index(), " ends after ", rest);
}

std::shared_lock<std::shared_mutex> hold_memory() {
  // In a fork nothing is enqueued, and the threads that held the mutex do not exist.
  return Device::forked() ? std::shared_lock<std::shared_mutex>() : std::shared_lock(memory_in_use());
}

std::unique_lock<std::shared_mutex> change_memory() {
  return Device::forked() ? std::unique_lock<std::shared_mutex>() : std::unique_lock(memory_in_use());
}

namespace {

/// The bytes from the first to the last of the rows.
size_t span_of(const RowCopy& copy, size_t pitch) {
  return copy.width == 0 || copy.rows == 0 ? 0 : (copy.rows - 1) * pitch + copy.width;
}

/// True where a row to write and a row to read share bytes. Both ascend, so one walk over them tells.
bool rows_overlap(const RowCopy& copy) {
  const auto to = reinterpret_cast<uintptr_t>(copy.to), from = reinterpret_cast<uintptr_t>(copy.from);
  if (to >= from + span_of(copy, copy.from_pitch) || from >= to + span_of(copy, copy.to_pitch)) return false;
  for (size_t i = 0, j = 0; i < copy.rows && j < copy.rows;) {
    const uintptr_t written = to + i * copy.to_pitch, read = from + j * copy.from_pitch;
    if (written < read + copy.width && read < written + copy.width) return true;
    (written < read) ? ++i : ++j;
  }
  return false;
}

}  // namespace

void check_copy(const RowCopy& copy, CopyKind kind) {
  const size_t to_span = span_of(copy, copy.to_pitch), from_span = span_of(copy, copy.from_pitch);
  if (to_span == 0) return;
  check_range("dst", copy.to, to_span);
  check_range("src", copy.from, from_span);
  const bool onto_itself = copy.to == copy.from && (copy.rows == 1 || copy.to_pitch == copy.from_pitch);
  require(onto_itself || !rows_overlap(copy), ErrorCode::kInvalidArgument, "dst (", copy.to, ") and src (",
          copy.from, ") overlap: ", to_span,
          " bytes were asked for; disjoint ranges, and dst = src, are accepted");
  check_place("dst", copy.to, kind == CopyKind::kHostToDevice || kind == CopyKind::kDeviceToDevice, kind);
  check_place("src", copy.from, kind == CopyKind::kDeviceToHost || kind == CopyKind::kDeviceToDevice, kind);
  const Device *target = Device::of(copy.to), *source = Device::of(copy.from);
  if (target == nullptr || source == nullptr || target == source) return;
  require(target->reaches(*source) || source->reaches(*target), ErrorCode::kInvalidArgument,
          "dst lies on device ", target->index(), " and src on device ", source->index(),
          ", but neither was let reach the memory of the other (aclrtDeviceEnablePeerAccess)");
}

void copy_async(void* to, const void* from, size_t bytes, Stream& stream) {
  if (bytes == 0) return;
  const TaskLabel label("copy", TaskKind::kCopy, bytes);
  void* const written[] = {to};
  stream.launch(
      lane_for(static_cast<double>(bytes)),
      [=] {
        parallel_ranges(bytes, kRange, [&](size_t begin, size_t end) {
          std::memcpy(static_cast<char*>(to) + begin, static_cast<const char*>(from) + begin, end - begin);
        });
      },
      Writes(written));
}

void copy_async(const RowCopy& copy, Stream& stream) {
  if (copy.width == 0 || copy.rows == 0) return;
  if (copy.rows == 1 || (copy.width == copy.to_pitch && copy.width == copy.from_pitch))
    return copy_async(copy.to, copy.from, copy.rows * copy.width, stream);
  // What a row costs beside its bytes: two lines of memory.
  constexpr size_t kRow = 128;
  const TaskLabel label("copy", TaskKind::kCopy, copy.rows * copy.width);
  const size_t work = copy.rows * (copy.width + kRow);
  void* const written[] = {copy.to};
  stream.launch(
      lane_for(static_cast<double>(work)),
      [copy] {
        parallel_ranges(copy.rows, kRange / (copy.width + kRow), [&](size_t begin, size_t end) {
          for (size_t row = begin; row < end; ++row)
            std::memcpy(static_cast<char*>(copy.to) + row * copy.to_pitch,
                        static_cast<const char*>(copy.from) + row * copy.from_pitch, copy.width);
        });
      },
      Writes(written));
}

void fill_async(void* to, uint8_t value, size_t bytes, Stream& stream) {
  if (bytes == 0) return;
  const TaskLabel label("fill", TaskKind::kFill, bytes);
  void* const written[] = {to};
  stream.launch(
      lane_for(static_cast<double>(bytes)),
      [=] {
        parallel_ranges(bytes, kRange, [&](size_t begin, size_t end) {
          std::memset(static_cast<char*>(to) + begin, value, end - begin);
        });
      },
      Writes(written));
}

void prefetch_async(const void* from, size_t bytes, Stream& stream) {
  stream.launch(
      Lane::kShort,
      [=] {
        constexpr size_t kCacheLine = 64;
        for (size_t at = 0; at < bytes; at += kCacheLine)
          __builtin_prefetch(static_cast<const char*>(from) + at);
      },
      Writes::nothing());
}

}  // namespace anynpu
