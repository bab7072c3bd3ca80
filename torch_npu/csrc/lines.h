#pragma once

#include <torch/library.h>

namespace torch_npu {

/// Registers the kernel of a row of ops::line_ops() that serves `op`, an overload of an operator of ATen's;
/// false where there is none. For what a kernel has no types for, it calls the fallback.
bool register_lines(torch::Library& aten, const c10::OperatorHandle& op);

}  // namespace torch_npu
