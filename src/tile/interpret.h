#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "tile/ir.h"

namespace anynpu::tile {

/// A tensor that a kernel is called with: its first element and its strides, counted in elements. Those that
/// the kernel knows are the same there.
struct BufferArgument {
  void* data;
  std::vector<int64_t> strides;
};

/// What a kernel is called with, each list in the order of the kernel's.
struct Arguments {
  std::vector<int64_t> sizes;
  std::vector<BufferArgument> buffers;
  std::vector<Literal> scalars;
};

/// Raises kInvalidArgument unless the arguments fit the kernel.
void check_arguments(const Kernel& kernel, const Arguments& arguments);

/// The number of blocks in the grid, in a call with these sizes.
int64_t blocks_of(const Kernel& kernel, std::span<const int64_t> sizes);

/// A position that a kernel computed from data, and that its buffer does not have. Others were done.
struct Fault {
  int buffer = -1;  ///< -1: none
  int dimension = 0;
  int64_t position = 0;
};
[[noreturn]] void raise_fault(const Kernel& kernel, const Arguments& arguments, const Fault& fault);

/// Runs blocks [first, last): slowly, and as the definition of what the kernel does. Extents below 0 count as
/// 0. Raises kInvalidArgument where a position is out of the range of its buffer.
void interpret(const Kernel& kernel, const Arguments& arguments, int64_t first, int64_t last);
void interpret(const Kernel& kernel, const Arguments& arguments);

}  // namespace anynpu::tile
