#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "jit/product_block.h"
#include "ops/iteration.h"
#include "ops/launch.h"
#include "tile/builder.h"

namespace anynpu::ops {

inline constexpr int64_t kRows = jit::kProductRows;
inline constexpr int64_t kOutputsOfBlock = 192;  ///< about, of a convolution's product
inline constexpr int64_t kRowStride =
    272;  ///< of a row of kDepth products' factors: rows do not meet in a cache

/// How many of `count` a block has, in multiples of `unit`: about `most`, or fewer, so that there are some
/// blocks to share among threads; there are `others` for each.
int64_t part_of(int64_t count, int64_t most, int64_t unit, int64_t others);

/// What a kernel of products is made for, beside the types and sides of its tensors.
struct ProductForm {
  DType sums;
  bool one_block;  ///< of kDepth products: all of them
};

/// The sums of a block, over all of `depth`: `copy` puts its part of the patches in place for some of it, and
/// `left` and `right` give rows and columns of the operands there.
struct Products {
  tile::Builder& builder;
  const ProductForm& form;
  int sums;  ///< a local buffer
  tile::Index rows, cols, depth;
  std::function<void(const tile::Index& first, const tile::Index& count)> copy;
  std::function<tile::Expr(const tile::Index& row, const tile::Index& rows, const tile::Index& first,
                           const tile::Index& count)>
      left;
  std::function<tile::Expr(const tile::Index& col, const tile::Index& cols, const tile::Index& first,
                           const tile::Index& count)>
      right;

  void add_up() const;

 private:
  void add(const tile::Index& first, const tile::Index& count) const;
};

/// Weights, groups x outputs x channels x three numbers of taps, as rows of (tap, channel), in the type of
/// sums, each apart from the next by an odd number of lines of a cache.
View packed(const View& weight, DType sums, const TakeMemory& take, std::vector<Launch>& launches);

}  // namespace anynpu::ops
