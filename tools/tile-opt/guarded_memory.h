#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <utility>

namespace anynpu::tile {

/// Memory between two pages that fault: one byte past the chosen edge faults at once, also in compiled code,
/// which no sanitizer looks into. On the other side, up to the page's end, intact() sees what was written.
class GuardedMemory {
 public:
  /// Which edge lies against a page that faults.
  enum class Edge : uint8_t { kStart, kEnd };

  GuardedMemory() = default;
  /// Zeros. Raises std::bad_alloc where the system gives no memory.
  GuardedMemory(size_t size, Edge edge) : size_(size), edge_(edge) {
    const size_t page = page_size();
    pages_ = (size + page - 1) / page * page;
    void* const reserved =
        mmap(nullptr, pages_ + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (reserved == MAP_FAILED) throw std::bad_alloc();
    begin_ = static_cast<std::byte*>(reserved) + page;
    if (pages_ != 0 && mprotect(begin_, pages_, PROT_READ | PROT_WRITE) != 0) {
      munmap(reserved, pages_ + 2 * page);
      throw std::bad_alloc();
    }
    std::fill(begin_, data(), kBeside);
    std::fill(data() + size_, begin_ + pages_, kBeside);
  }
  GuardedMemory(const GuardedMemory& other) {
    if (other.begin_ == nullptr) return;
    *this = GuardedMemory(other.size_, other.edge_);
    if (size_ != 0) std::memcpy(data(), other.data(), size_);
  }
  GuardedMemory(GuardedMemory&& other) noexcept { swap(other); }
  GuardedMemory& operator=(GuardedMemory other) noexcept {
    swap(other);
    return *this;
  }
  ~GuardedMemory() {
    if (begin_ != nullptr) munmap(begin_ - page_size(), pages_ + 2 * page_size());
  }

  std::byte* data() { return begin_ + offset(); }
  const std::byte* data() const { return begin_ + offset(); }
  size_t size() const { return size_; }

  /// Whether nothing was written beside it, in the pages that it lies in.
  bool intact() const {
    const auto untouched = [](std::byte byte) { return byte == kBeside; };
    const std::byte* const begin = begin_;
    return std::all_of(begin, data(), untouched) && std::all_of(data() + size_, begin + pages_, untouched);
  }

 private:
  static constexpr std::byte kBeside{0xa5};
  static size_t page_size() {
    static const auto size = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    return size;
  }
  size_t offset() const { return edge_ == Edge::kEnd ? pages_ - size_ : 0; }
  void swap(GuardedMemory& other) {
    std::swap(begin_, other.begin_);
    std::swap(size_, other.size_);
    std::swap(pages_, other.pages_);
    std::swap(edge_, other.edge_);
  }

  std::byte* begin_ = nullptr;  ///< of the pages between those that fault
  size_t size_ = 0, pages_ = 0;
  Edge edge_ = Edge::kStart;
};

/// Whether a byte can be read: the system says it, without a signal.
inline bool readable(const std::byte* byte) {
  int ends[2];
  if (pipe(ends) != 0) throw std::bad_alloc();
  const bool read = write(ends[1], byte, 1) == 1;
  close(ends[0]);
  close(ends[1]);
  return read;
}

}  // namespace anynpu::tile
