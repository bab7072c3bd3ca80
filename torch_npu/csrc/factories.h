#pragma once

#include <ATen/core/Tensor.h>

namespace torch_npu {

/// A tensor without values, on the device of `like`, that lies as operators of elements let results lie of
/// operands that all lie as `like` does, which has its elements side by side.
at::Tensor empty_alike(const at::Tensor& like, c10::ScalarType dtype);

/// A contiguous tensor without values.
at::Tensor empty_contiguous(at::IntArrayRef sizes, c10::ScalarType dtype, c10::Device device);

}  // namespace torch_npu
