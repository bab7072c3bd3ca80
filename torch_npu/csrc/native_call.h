#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "ops/iteration.h"
#include "ops/launch.h"
#include "torch_npu/csrc/counters.h"

namespace torch_npu {

/// A tensor on npu, whose type of elements kernels of our own have, for the planners of src/ops. It has an
/// address even where it has no elements.
anynpu::ops::View view_of(const at::Tensor& tensor);

/// Device memory that a call uses besides its tensors: given back in the order of the stream.
class Temporaries {
 public:
  explicit Temporaries(const at::Tensor& like) : options_(like.options().dtype(at::kByte)) {}
  anynpu::ops::TakeMemory take();

 private:
  const at::TensorOptions options_;
  std::vector<at::Tensor> tensors_;
};

/// Enqueues launches on the current stream of the device of `on`, as tasks of that operator.
void enqueue_native(std::vector<anynpu::ops::Launch> launches, const at::Tensor& on, OpCounter& counter);

}  // namespace torch_npu
