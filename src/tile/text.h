#pragma once

#include <string>
#include <string_view>

#include "tile/ir.h"

namespace anynpu::tile {

/// The text form, which parse() reads back as the same kernel.
std::string print(const Kernel& kernel);

/// Kernels from text, verified. Raises kInvalidArgument with line and column.
std::vector<Kernel> parse(std::string_view text);

}  // namespace anynpu::tile
