#pragma once

#include <pybind11/pybind11.h>

namespace torch_npu {

/// The functions of torch_npu._C about memory.
void bind_memory(pybind11::module& m);

}  // namespace torch_npu
