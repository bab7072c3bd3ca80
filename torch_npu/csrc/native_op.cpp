#include "torch_npu/csrc/native_op.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/ops/empty.h>
#include <c10/util/overflows.h>

#include <algorithm>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "ops/operand.h"
#include "torch_npu/csrc/alias.h"
#include "torch_npu/csrc/dtypes.h"
#include "torch_npu/csrc/fallback.h"
#include "torch_npu/csrc/fallback_rules.h"
#include "torch_npu/csrc/formats.h"
#include "torch_npu/csrc/kernel_call.h"

namespace torch_npu {
namespace {

bool is_of_format(const c10::IValue& value) {
  if (value.isTensor()) return is_formatted(value.toTensor());
  if (!value.isTensorList() && !value.isOptionalTensorList()) return false;
  const auto members = value.toListRef();
  return std::any_of(members.begin(), members.end(), is_of_format);
}

/// Calls `function` for a tensor, or for each one of a list, and puts what it gives in its place.
template <class Function>
void replace_tensors(c10::IValue& value, const Function& function) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) value = function(value.toTensor());
  } else if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(function(tensor));
    value = std::move(list);
  } else if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const auto& tensor : value.toOptionalTensorVector())
      list.push_back(tensor && tensor->defined() ? std::optional(function(*tensor)) : tensor);
    value = std::move(list);
  }
}

class NativeOp : public c10::OperatorKernel {
 public:
  NativeOp(NativeKernel kernel, NativeKernel in_formats, const std::string& name)
      : kernel_(std::move(kernel)), in_formats_(std::move(in_formats)), counter_(op_counter(name)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    const size_t count = op.schema().arguments().size();
    const Arguments arguments = torch::jit::last(*stack, count);
    Results results;
    if (std::any_of(arguments.begin(), arguments.end(), is_of_format)) [[unlikely]] {
      if (in_formats_) results = in_formats_(arguments, counter_);
      if (!results) results = with_plain(op, *stack, count);
    } else {
      results = kernel_(arguments, counter_);
    }
    if (!results) return fallback_of_call(op, keys, stack);
    torch::jit::drop(*stack, count);
    for (c10::IValue& result : *results) torch::jit::push(*stack, std::move(result));
  }

 private:
  Results with_plain(const c10::OperatorHandle& op, torch::jit::Stack& stack, size_t count) {
    const uint64_t written = plan_of(op).written;
    const auto each = [&](bool writes, const auto& function) {
      for (size_t i = 0; i < count; ++i)
        if (c10::IValue& value = torch::jit::peek(stack, i, count);
            static_cast<bool>(written >> i & 1) == writes && is_of_format(value))
          replace_tensors(value, function);
    };
    // Those that are written first: others may have the same storage.
    each(true, [&](const at::Tensor& tensor) {
      make_plain(tensor, counter_);
      return tensor;
    });
    each(false, [&](const at::Tensor& tensor) { return plain_of(tensor, counter_); });
    return kernel_(torch::jit::last(stack, count), counter_);
  }

  const NativeKernel kernel_, in_formats_;
  OpCounter& counter_;
};

bool is_written(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

std::string full_name(const std::string& name) { return name.starts_with("aten::") ? name : "aten::" + name; }

template <class T>
bool holds(const c10::Scalar& number) {
  return number.isFloatingPoint() ? !c10::overflows<T>(number.toDouble())
                                  : !c10::overflows<T>(number.toLong());
}

}  // namespace

std::vector<Served>& served() {
  static auto* all = new std::vector<Served>;
  return *all;
}

BoxedKernel boxed(const std::string& name, NativeKernel kernel, NativeKernel in_formats) {
  auto op = std::make_shared<NativeOp>(std::move(kernel), std::move(in_formats), full_name(name));
  return [op](const c10::OperatorHandle& handle, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    (*op)(handle, keys, stack);
  };
}

void add_native(torch::Library& aten, const std::string& name, Rows rows, torch::CppFunction function) {
  const std::string full = full_name(name);
  served().push_back({full, std::move(rows)});
  aten.impl(full.c_str(), std::move(function));
}

void add_native(torch::Library& aten, const std::string& name, Rows rows, NativeKernel kernel,
                NativeKernel in_formats) {
  auto op = std::make_unique<NativeOp>(std::move(kernel), std::move(in_formats), full_name(name));
  add_native(aten, name, std::move(rows), torch::CppFunction::makeFromBoxedFunctor(std::move(op)));
}

NativeKernel by_blocks(NativeKernel kernel, const c10::FunctionSchema& schema) {
  std::vector<bool> written;
  for (const c10::Argument& argument : schema.arguments()) written.push_back(is_written(argument));
  return [kernel = std::move(kernel), written](Arguments arguments, OpCounter& counter) -> Results {
    const at::Tensor* first = nullptr;
    for (size_t i = 0; i < arguments.size(); ++i) {
      const c10::IValue& value = arguments[i];
      if (value.isTensorList() || value.isOptionalTensorList()) return std::nullopt;
      if (!value.isTensor() || !value.toTensor().defined()) continue;
      const at::Tensor& tensor = value.toTensor();
      if (tensor.dim() == 0 && !written[i] && !is_formatted(tensor)) continue;
      if (!is_whole(tensor) || !(tensor.is_floating_point() || tensor.scalar_type() == at::kBool))
        return std::nullopt;
      if (first == nullptr) first = &tensor;
      if (tensor.sizes() != first->sizes() || format_of(tensor) != format_of(*first) ||
          tensor.device() != first->device())
        return std::nullopt;
    }
    if (first == nullptr) return std::nullopt;
    c10::SmallVector<c10::IValue, 6> blocks(arguments.begin(), arguments.end());
    for (size_t i = 0; i < blocks.size(); ++i)
      if (is_of_format(blocks[i]))
        blocks[i] =
            written[i] ? blocks_to_write(arguments[i].toTensor()) : blocks_of(arguments[i].toTensor());
    Results results = kernel(blocks, counter);
    if (!results) return results;
    for (c10::IValue& result : *results) {
      const auto given = std::find_if(blocks.begin(), blocks.end(), [&](const c10::IValue& value) {
        return value.isTensor() && value.toTensor().is_same(result.toTensor());
      });
      result = given == blocks.end() ? from_blocks(*format_of(*first), first->sizes(), result.toTensor())
                                     : arguments[static_cast<size_t>(given - blocks.begin())];
    }
    return results;
  };
}

void enqueue_native(anynpu::ops::Launch launch, const at::Tensor& on, OpCounter& counter) {
  enqueue_native(std::move(launch), on.device(), counter);
}

void enqueue_native(anynpu::ops::Launch launch, c10::Device device, OpCounter& counter) {
  anynpu::Stream& stream = current_runtime_stream(device);
  const anynpu::TaskLabel label(counter.name.c_str());
  counter.count_native();
  launch_kernel(stream, std::move(launch));
}

void enqueue_native(std::vector<anynpu::ops::Launch> launches, const at::Tensor& on, OpCounter& counter) {
  for (anynpu::ops::Launch& launch : launches) enqueue_native(std::move(launch), on, counter);
}

anynpu::ops::View view_of(const at::Tensor& tensor) {
  return view_of(tensor, *dtype_of(tensor.scalar_type()));
}

anynpu::ops::View view_of(const at::Tensor& tensor, anynpu::tile::DType dtype) {
  check_memory(tensor);
  return {dtype,
          const_cast<void*>(tensor.const_data_ptr()),
          {tensor.sizes().begin(), tensor.sizes().end()},
          {tensor.strides().begin(), tensor.strides().end()}};
}

bool in_range(const c10::Scalar& number, anynpu::tile::DType common) {
  using anynpu::tile::DType;
  if (number.isComplex() || number.type() == c10::ScalarType::UInt64) return false;  // kernels take no such
  if (common == DType::kF16) return holds<at::Half>(number);
  if (common == DType::kBF16) return holds<at::BFloat16>(number);
  return anynpu::tile::visit(anynpu::ops::compute_type(common), [&]<class T>(std::type_identity<T>) {
    if constexpr (!std::is_arithmetic_v<T>)
      return false;  // no type to compute with
    else
      return holds<T>(number);
  });
}

std::optional<anynpu::tile::Literal> literal_of(const c10::Scalar& number, anynpu::tile::DType common) {
  using anynpu::tile::DType;
  using anynpu::tile::Literal;
  const DType compute = anynpu::ops::compute_type(common);
  const bool floats = !anynpu::tile::kBits.contains(compute);
  if (number.isBoolean() != (common == DType::kBool) || (number.isFloatingPoint() && !floats) ||
      !in_range(number, common))
    return std::nullopt;
  return anynpu::tile::visit(compute, [&]<class T>(std::type_identity<T>) -> Literal {
    if constexpr (std::is_integral_v<T>) return int64_t{static_cast<T>(number.toLong())};
    return number.toDouble();
  });
}

anynpu::ops::TakeMemory Temporaries::take() {
  return [this](int64_t bytes) { return tensors_.emplace_back(at::empty({bytes}, options_)).data_ptr(); };
}

bool takes_result(const at::Tensor& out, at::IntArrayRef sizes, c10::ScalarType type,
                  at::ArrayRef<at::Tensor> operands) {
  return out.sizes() == sizes && out.scalar_type() == type &&
         at::has_internal_overlap(out) == at::MemOverlap::No &&
         std::all_of(operands.begin(), operands.end(), [&](const at::Tensor& operand) {
           return operand.device() == out.device() &&
                  (!out.is_alias_of(operand) ||
                   at::get_overlap_status(out, operand) == at::MemOverlapStatus::No);
         });
}

}  // namespace torch_npu
