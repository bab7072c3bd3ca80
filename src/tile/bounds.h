#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tile/ir.h"

namespace anynpu::tile {

/// The least and the greatest value that an index can have.
struct Interval {
  int64_t least, greatest;
};

/// Of an index in a call with these sizes, which must outlive it: over all blocks and all turns of loops.
/// Scalars may have any value.
class Bounds {
 public:
  Bounds(const Kernel& kernel, std::span<const int64_t> sizes);
  Interval of(const Index& index) const;

 private:
  void add_loops(const Body& body);

  const std::span<const int64_t> sizes_;
  Interval block_;
  std::vector<Interval> counters_;
};

}  // namespace anynpu::tile
