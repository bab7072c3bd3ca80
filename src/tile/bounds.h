#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "tile/ir.h"

namespace anynpu::tile {

/// The least and the greatest value that an index can have.
struct Interval {
  int64_t least, greatest;
};

/// Of indices of a kernel, over all blocks and all turns of loops: steps that follow from the kernel, made
/// once, and quick to run for the sizes of a call. Scalars may have any value.
class Bounds {
 public:
  explicit Bounds(const Kernel& kernel);

  /// Adds steps for an index. Returns which interval is its own.
  size_t add(const Index& index);

  size_t count() const { return steps_.size(); }  ///< of intervals
  /// Fills `intervals`, of which there are count(), for a call with these sizes.
  void evaluate(std::span<const int64_t> sizes, std::span<Interval> intervals) const;

 private:
  /// A leaf's number, or the intervals that an operation combines: of a block that of the grid, of a counter
  /// those of the loop's first and last value.
  struct Step {
    Index::Kind kind;
    int64_t value = 0;
    size_t left = 0, right = 0;
  };
  void add_loops(const Body& body);
  size_t append(Step step);

  std::vector<Step> steps_;
  std::vector<std::pair<Index, size_t>> known_;  // indices that have steps
  size_t block_ = 0;
  std::vector<size_t> counters_;
};

}  // namespace anynpu::tile
