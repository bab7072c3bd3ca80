#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "ops/iteration.h"
#include "ops/launch.h"

namespace anynpu::ops {

/// An operator that finds elements by positions in one dimension, which a tensor of indices gives. Sums have
/// the order of the indices, for any number of threads.
struct IndexingOp {
  std::string_view name, doc;  ///< `doc`: what it computes
  /// indexed[..., index[i], ...] += values[i], else values[i] = indexed[..., index[i], ...]: i is a place in
  /// all of index's dimensions, of which one is replaced.
  bool adds = false;
  bool skips = false;  ///< there is a position that calls leave out
};

std::span<const IndexingOp> indexing_ops();
const IndexingOp& indexing_op(std::string_view name);

/// One call. All views have one rank, 1 at least. `index`, of i32 or i64, has elements, and the sizes of
/// `values`; `indexed` has at least its sizes, but in `dim`. What is read has the type of the result, which
/// may be any of that many bytes; what is added is converted to the result's, a type that tile IR adds.
struct IndexingCall {
  const IndexingOp& op;
  size_t dim = 0;
  View indexed, index, values;
  int64_t skipped = -1;
  bool from_zero = false;  ///< all positions that an index may name are 0 first
};

/// The call's kernel with its arguments. Running it raises kInvalidArgument, naming the operator, the index
/// and the accepted ones, where an index is out of range; what the others say is done.
Launch prepare(const IndexingCall& call);

}  // namespace anynpu::ops
