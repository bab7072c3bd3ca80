#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/error.h"
#include "tile/interpret.h"

namespace anynpu::jit {

/// What compiled code is called with, in 64-bit words: the kernel's sizes; of each buffer its address and its
/// strides, counted in elements; the bits of its scalars; and the offsets of its scratch regions, which
/// Compiled::add_scratch() adds. In this order, each in the order of the kernel. One can be shared by the
/// threads that run a launch's blocks. Usual numbers of words take no allocation.
class PackedArguments {
 public:
  PackedArguments() = default;
  PackedArguments(const PackedArguments& other) : count_(other.count_), more_(other.more_) { take(other); }
  PackedArguments(PackedArguments&& other) noexcept : count_(other.count_), more_(std::move(other.more_)) {
    take(other);
  }
  PackedArguments& operator=(const PackedArguments&) = delete;

  void size(int64_t size) {
    require(size >= 0, ErrorCode::kInternal, "a kernel is given the size ", size, "; 0 or more is accepted");
    add(size);
  }
  void buffer(const void* data, std::span<const int64_t> strides) {
    add(static_cast<int64_t>(reinterpret_cast<uintptr_t>(data)));
    for (const int64_t stride : strides) add(stride);
  }
  void scalar(tile::DType dtype, const tile::Literal& value);
  void add(int64_t word) {
    if (count_ < inline_.size()) {
      inline_[count_] = word;
    } else {
      if (count_ == inline_.size()) more_.assign(inline_.begin(), inline_.end());
      more_.push_back(word);
    }
    ++count_;
  }

  const int64_t* words() const { return count_ <= inline_.size() ? inline_.data() : more_.data(); }
  size_t count() const { return count_; }

 private:
  /// Of the words within, those that there are.
  void take(const PackedArguments& other) {
    std::copy_n(other.inline_.begin(), std::min(count_, inline_.size()), inline_.begin());
  }

  size_t count_ = 0;
  std::array<int64_t, 48> inline_;
  std::vector<int64_t> more_;  ///< all of them, once they are too many
};

}  // namespace anynpu::jit
