#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ops/operand.h"

namespace anynpu::ops {

/// A tensor as its user describes it: the outermost dimension first, strides in elements and not negative.
struct View {
  DType dtype = DType::kF32;
  void* data = nullptr;
  std::vector<int64_t> sizes, strides;

  int64_t elements() const;
  std::string text() const;  ///< type and sizes, for errors
  /// Bytes from the first element to the end of the last one; 0 where there is none.
  int64_t span() const;
  /// Certainly more than one index has the same element.
  bool overlaps_itself() const;
  /// Certainly some element is an element of `other` too: both have elements, at known addresses, and no
  /// gaps.
  bool overlaps(const View& other) const;
  /// The same elements in the same order.
  bool same_as(const View& other) const;
  /// Repeated to `to`, which broadcast() allows.
  View expanded(std::span<const int64_t> to) const;
  /// Dimensions [first, last) as one. Nothing where they have no one stride.
  std::optional<View> merged(size_t first, size_t last) const;
};

/// In contiguous memory.
View contiguous(DType dtype, void* data, std::vector<int64_t> sizes);

/// Gives so many bytes of device memory, which stay a call's own until its launches are done.
using TakeMemory = std::function<void*(int64_t bytes)>;
/// In contiguous memory of its own.
View temporary(const TakeMemory& take, DType dtype, std::vector<int64_t> sizes);

/// The sizes that `a` and `b` are broadcast to; nothing where they differ in a dimension and neither is 1.
std::optional<std::vector<int64_t>> broadcast(std::span<const int64_t> a, std::span<const int64_t> b);

/// The dimensions of a call over tensors of the same sizes, none of them 0: as few as describe all of them,
/// the innermost first, which is where the first tensor has its smallest stride. One at least.
class Iteration {
 public:
  /// With `along`, that dimension is left out, and the last stride of each tensor is the one along it.
  explicit Iteration(std::span<const View> views, std::optional<size_t> along = std::nullopt);

  std::span<const int64_t> sizes() const { return {numbers_.data(), dims_}; }
  /// Of each tensor; valid for the life of this.
  const std::vector<Operand>& operands() const { return operands_; }

 private:
  size_t dims_ = 0;
  std::vector<int64_t> numbers_;  // room for sizes, then for strides, in bytes, of each tensor
  std::vector<Operand> operands_;
};

}  // namespace anynpu::ops
