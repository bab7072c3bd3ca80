#include "ops/grid.h"

#include "base/error.h"

namespace anynpu::ops {

using tile::Builder;
using tile::Index;

Grid::Grid(Builder& builder, size_t dims, size_t parted) : counts_(dims, 1) {
  for (size_t d = 0; d < dims; ++d) sizes_.push_back(builder.size(concat("n", d)));
  Index rest = Index::block(), blocks = 1;
  for (size_t d = 0; d < dims; ++d) {
    const Index part = d < parted ? builder.size(concat("part", d)) : Index(1);
    parts_.push_back(part);
    const Index along = ceil_div(sizes_[d], part);  // blocks
    firsts_.push_back((d + 1 < dims ? rest % along : rest) * part);
    if (d < parted) counts_[d] = min(part, sizes_[d] - firsts_[d]);
    rest = rest / along;
    blocks = blocks * along;
  }
  builder.grid(blocks);
}

int64_t add_grid(jit::PackedArguments& arguments, std::span<const int64_t> sizes,
                 std::span<const int64_t> parts) {
  int64_t blocks = 1;
  for (size_t d = 0; d < sizes.size(); ++d) {
    const int64_t part = d < parts.size() ? parts[d] : 1;
    arguments.size(sizes[d]);
    blocks *= ceil_div(sizes[d], part);
  }
  for (const int64_t part : parts) arguments.size(part);
  return blocks;
}

}  // namespace anynpu::ops
