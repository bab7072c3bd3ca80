#pragma once

#include "tile/ir.h"

namespace anynpu::tile {

/// Raises kInvalidArgument, naming the kernel, the instruction and what is wrong with it, unless the
/// interpreter defines what the kernel does: each value has one definition before its uses and in their
/// scope, with the type that its operation gives; indices name what is known where they stand; the grid and
/// the sizes of buffers are of constants and sizes.
void verify(const Kernel& kernel);

}  // namespace anynpu::tile
