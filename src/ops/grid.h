#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "jit/arguments.h"
#include "tile/builder.h"

namespace anynpu::ops {

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t round_up(int64_t a, int64_t to) { return ceil_div(a, to) * to; }

/// How a kernel's blocks divide the dimensions of a call, the innermost first. Of each of the first
/// dimensions, which are parted, a block has so many places as the call says, or what is left; of the others
/// one.
class Grid {
 public:
  /// Adds to the kernel that is built its sizes n0, n1, ..., of the dimensions, and part0, ..., of the parted
  /// ones; and says what its blocks are.
  Grid(tile::Builder& builder, size_t dims, size_t parted);

  size_t dims() const { return sizes_.size(); }
  const tile::Index& size(size_t dim) const { return sizes_[dim]; }
  const tile::Index& first(size_t dim) const { return firsts_[dim]; }  ///< of the block's places
  const tile::Index& count(size_t dim) const { return counts_[dim]; }  ///< of the block's places
  const tile::Index& most(size_t dim) const { return parts_[dim]; }  ///< of any block's places: a size, or 1

 private:
  std::vector<tile::Index> sizes_, firsts_, counts_, parts_;
};

/// Adds the sizes of such a kernel to its arguments: of all dimensions, none of them 0, and the parts of the
/// parted ones. Returns how many blocks they make.
int64_t add_grid(jit::PackedArguments& arguments, std::span<const int64_t> sizes,
                 std::span<const int64_t> parts);

}  // namespace anynpu::ops
