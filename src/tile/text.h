#pragma once

#include <string>
#include <string_view>

#include "tile/ir.h"

namespace anynpu::tile {

/// What names in the text form are made of.
constexpr bool is_of_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.';
}

/// The text form of a verified kernel, which parse() reads back as the same one. Sizes are in the order of
/// the text, or else are listed after the kernel's name in their own order.
std::string print(const Kernel& kernel);

/// Kernels from text, verified. Raises kInvalidArgument with line and column.
std::vector<Kernel> parse(std::string_view text);

}  // namespace anynpu::tile
