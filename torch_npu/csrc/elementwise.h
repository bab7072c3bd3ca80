#pragma once

#include <ATen/TensorIterator.h>
#include <c10/util/MaybeOwned.h>
#include <torch/library.h>

#include <optional>

#include "ops/elementwise.h"
#include "torch_npu/csrc/counters.h"

namespace torch_npu {

/// A call of an elementwise operator of src/ops: shapes, strides and types as every such operator of PyTorch
/// has them, by TensorIterator, which calls whose tensors all lie alike do without.
class ElementwisePlan {
 public:
  /// Borrowed where the caller has it: to count a reference to a tensor that Python holds takes the GIL.
  using Operand = c10::MaybeOwned<at::Tensor>;
  struct Arguments {
    c10::SmallVector<Operand, 6> operands;  ///< numbers too, as CPU tensors without dimensions
    c10::SmallVector<Operand, 4> results;   ///< to write into; none: one new tensor
    c10::SmallVector<c10::Scalar, 2> numbers;
    size_t choice = 0;
  };

  /// Makes a new plan that of a call; false where there is no kernel for such arguments. What PyTorch refuses
  /// raises its errors. Tensors on npu among the arguments must live until the launch.
  bool make(const anynpu::ops::Elementwise& op, const Arguments& arguments);

  /// A new tensor, where none was given.
  const at::Tensor& result(size_t i) const {
    return iterator_ ? iterator_->tensor(static_cast<int>(i)) : result_;
  }
  /// Enqueues it on the current stream, as the operator that `counter` counts.
  void launch(OpCounter& counter);

 private:
  void add(const at::Tensor& tensor);
  void launch(at::IntArrayRef sizes, at::ArrayRef<anynpu::ops::Operand> operands, c10::Device device,
              OpCounter& counter) const;

  const anynpu::ops::Elementwise* op_ = nullptr;
  size_t choice_ = 0;
  anynpu::tile::DType common_ = {};
  c10::SmallVector<anynpu::tile::Literal, 2> numbers_;
  std::optional<at::TensorIterator>
      iterator_;  ///< where tensors do not lie alike; else there is what follows
  at::Tensor result_;
  c10::Device device_ = c10::DeviceType::PrivateUse1;
  int64_t elements_ = 0;
  c10::SmallVector<anynpu::ops::Operand, 6> operands_;
};

/// Registers the kernel of src/ops that serves `op`, an overload of an operator of ATen's for tensors or for
/// lists of them (_foreach_); false where there is none. For what a kernel has no types for, it calls the
/// fallback.
bool register_elementwise(torch::Library& aten, const c10::OperatorHandle& op);

}  // namespace torch_npu
