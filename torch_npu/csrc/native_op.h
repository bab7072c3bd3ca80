#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/SmallVector.h>
#include <torch/library.h>

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ops/iteration.h"
#include "ops/launch.h"
#include "tile/builder.h"
#include "torch_npu/csrc/counters.h"

namespace torch_npu {

using Arguments = at::ArrayRef<c10::IValue>;
/// What a call returns; nothing where there is no kernel for such arguments.
using Results = std::optional<c10::SmallVector<c10::IValue, 3>>;
using NativeKernel = std::function<Results(Arguments, OpCounter&)>;

/// Names of rows of src/ops.
using Rows = std::vector<std::string_view>;

/// Makes `kernel`, which launches kernels of these rows, that of ATen's operator `name`, perhaps with its
/// overload's name, on npu; calls that it gives nothing for go to the fallback as they came. It sees plain
/// memory only: of tensors in a format, those that the operator writes become plain, and others are exchanged
/// for what plain_of() gives. With `in_formats` calls with such tensors go there first, as they came.
void add_native(torch::Library& aten, const std::string& name, Rows rows, NativeKernel kernel,
                NativeKernel in_formats = nullptr);

/// The same of a function that counts its calls, and calls the fallback, itself.
void add_native(torch::Library& aten, const std::string& name, Rows rows, torch::CppFunction function);

/// An in_formats for kernels of elements: where all tensors with dimensions are of one format and of the same
/// sizes, and floats or bools, `kernel` computes with their blocks, padding included.
NativeKernel by_blocks(NativeKernel kernel, const c10::FunctionSchema& schema);

/// What add_native() makes of such kernels, for functions that leave calls with tensors in a format to it.
using BoxedKernel = std::function<void(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack*)>;
BoxedKernel boxed(const std::string& name, NativeKernel kernel, NativeKernel in_formats);

/// The operators of ATen that kernels of rows serve, with their overloads' names.
struct Served {
  std::string op;
  Rows rows;
};
std::vector<Served>& served();

/// add_native() of a function with the operator's own arguments, which serves all calls.
template <class Function>
void add_whole(torch::Library& aten, const char* name, Rows rows, Function* function) {
  aten.impl(name, function);
  served().push_back({std::string("aten::") + name, std::move(rows)});
}

/// Enqueues launches on the device's current stream, as tasks of that operator.
void enqueue_native(anynpu::ops::Launch launch, c10::Device device, OpCounter& counter);
void enqueue_native(anynpu::ops::Launch launch, const at::Tensor& on, OpCounter& counter);
void enqueue_native(std::vector<anynpu::ops::Launch> launches, const at::Tensor& on, OpCounter& counter);

/// A tensor on npu for the planners of src/ops, with elements of its own type, which they have, or of another
/// one. It has an address even where it has no elements.
anynpu::ops::View view_of(const at::Tensor& tensor);
anynpu::ops::View view_of(const at::Tensor& tensor, anynpu::tile::DType dtype);

/// Whether `number` is in the range of elements of that type; negative ones are in that of u8, as in PyTorch.
/// Of halves some operators of PyTorch take greater ones too, and others refuse them.
bool in_range(const c10::Scalar& number, anynpu::tile::DType common);
/// `number` in the type that such elements are computed in; nothing where PyTorch may refuse the conversion,
/// or warn.
std::optional<anynpu::tile::Literal> literal_of(const c10::Scalar& number, anynpu::tile::DType common);

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
