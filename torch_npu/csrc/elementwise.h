#pragma once

#include <ATen/TensorIterator.h>
#include <torch/library.h>

#include "ops/elementwise.h"
#include "torch_npu/csrc/counters.h"

namespace torch_npu {

/// A call of an elementwise operator of src/ops: shapes, strides and types as every such operator of PyTorch
/// has them, by TensorIterator.
class ElementwisePlan {
 public:
  struct Arguments {
    c10::SmallVector<at::Tensor, 6> operands;  ///< numbers too, as CPU tensors without dimensions
    c10::SmallVector<at::Tensor, 4> results;   ///< to write into; none: one new tensor
    c10::SmallVector<c10::Scalar, 2> numbers;
    size_t choice = 0;
  };

  /// Makes a new plan that of a call; false where there is no kernel for such arguments. What PyTorch refuses
  /// raises its errors. Tensors on npu among the arguments must live until the launch.
  bool make(const anynpu::ops::Elementwise& op, const Arguments& arguments);

  const at::Tensor& result() const { return iterator_.tensor(0); }
  /// Enqueues it on the current stream, as the operator that `counter` counts.
  void launch(OpCounter& counter);

 private:
  const anynpu::ops::Elementwise* op_ = nullptr;
  size_t choice_ = 0;
  anynpu::tile::DType common_ = {};
  c10::SmallVector<anynpu::tile::Literal, 2> numbers_;
  at::TensorIterator iterator_;
};

/// Registers the kernel of src/ops that serves `op`, an overload of an operator of ATen's for tensors or for
/// lists of them (_foreach_); false where there is none. For what a kernel has no types for, it calls the
/// fallback.
bool register_elementwise(torch::Library& aten, const c10::OperatorHandle& op);

}  // namespace torch_npu
