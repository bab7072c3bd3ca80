#pragma once

#include "tile/interpret.h"
#include "tile/ir.h"

namespace anynpu::tile {

/// The least and the greatest value that an index can have.
struct Interval {
  int64_t least, greatest;
};

/// Of an index in a call: over all blocks and all turns of loops. Scalars may have any value.
class Bounds {
 public:
  Bounds(const Kernel& kernel, const Arguments& arguments);
  Interval of(const Index& index) const;

 private:
  void add_loops(const Body& body);

  const Arguments& arguments_;
  Interval block_;
  std::vector<Interval> counters_;
};

}  // namespace anynpu::tile
