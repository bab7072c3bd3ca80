#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/SmallVector.h>
#include <torch/library.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ops/iteration.h"
#include "ops/launch.h"
#include "torch_npu/csrc/counters.h"

namespace torch_npu {

using Arguments = at::ArrayRef<c10::IValue>;
/// What a call returns; nothing where there is no kernel for such arguments.
using Results = std::optional<c10::SmallVector<c10::IValue, 3>>;
using NativeKernel = std::function<Results(Arguments, OpCounter&)>;

/// Makes `kernel` that of ATen's operator `name`, perhaps with its overload's name, on npu; calls that it
/// gives nothing for go to the fallback as they came.
void add_native(torch::Library& aten, const std::string& name, NativeKernel kernel);

/// Enqueues launches on the current stream of the device of `on`, as tasks of that operator.
void enqueue_native(std::vector<anynpu::ops::Launch> launches, const at::Tensor& on, OpCounter& counter);
void enqueue_native(anynpu::ops::Launch launch, const at::Tensor& on, OpCounter& counter);

/// A tensor on npu for the planners of src/ops, with elements of its own type, which they have, or of another
/// one. It has an address even where it has no elements.
anynpu::ops::View view_of(const at::Tensor& tensor);
anynpu::ops::View view_of(const at::Tensor& tensor, anynpu::tile::DType dtype);

/// Device memory that a call uses besides its tensors: given back in the order of the stream.
class Temporaries {
 public:
  explicit Temporaries(const at::Tensor& like) : options_(like.options().dtype(at::kByte)) {}
  anynpu::ops::TakeMemory take();

 private:
  const at::TensorOptions options_;
  std::vector<at::Tensor> tensors_;
};

/// Whether `out` takes a result of those sizes and of that type as it is: it has them, each element once, and
/// no memory of the operands.
bool takes_result(const at::Tensor& out, at::IntArrayRef sizes, c10::ScalarType type,
                  at::ArrayRef<at::Tensor> operands);

}  // namespace torch_npu
