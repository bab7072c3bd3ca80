#pragma once

#include <ATen/TensorIterator.h>
#include <torch/library.h>

#include <optional>

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

  /// Nothing where there is no kernel for such arguments. What PyTorch refuses raises its errors.
  static std::optional<ElementwisePlan> make(const anynpu::ops::Elementwise& op, const Arguments& arguments);

  const at::Tensor& result() const { return iterator_.tensor(0); }
  /// Enqueues it on the current stream, as the operator that `counter` counts.
  void launch(OpCounter& counter);

 private:
  ElementwisePlan(const anynpu::ops::Elementwise& op, size_t choice, anynpu::tile::DType common)
      : op_(&op), choice_(choice), common_(common) {}

  const anynpu::ops::Elementwise* op_;
  size_t choice_;
  anynpu::tile::DType common_;
  c10::SmallVector<anynpu::tile::Literal, 2> numbers_;
  at::TensorIterator iterator_;
};

/// Registers the kernel of src/ops that serves `op`, an overload of an operator of ATen's for tensors or for
/// lists of them (_foreach_); false where there is none. For what a kernel has no types for, it calls the
/// fallback.
bool register_elementwise(torch::Library& aten, const c10::OperatorHandle& op);

}  // namespace torch_npu
