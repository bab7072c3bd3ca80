#pragma once

#include <functional>
#include <memory>

#include "jit/jit.h"

namespace anynpu::tile {

/// Compiles a kernel, or finds it compiled.
using CompileStep = std::function<std::shared_ptr<const jit::Compiled>(const Kernel&)>;

/// Does what `kernel` does by kernels of one instruction each, over the same grid: results are stored to
/// memory of their own, and loaded where they are operands; loops turn here. Raises kInternal where the turns
/// of a loop follow from data or the block, kOutOfMemory where a value or a local buffer has too many
/// elements (the extents of tiles that follow from data are without a bound), and what the kernels raise.
void run_unfused(const Kernel& kernel, const Arguments& arguments, const CompileStep& compile);

}  // namespace anynpu::tile
