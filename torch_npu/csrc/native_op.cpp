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
#include "torch_npu/csrc/kernel_call.h"

namespace torch_npu {
namespace {

class NativeOp : public c10::OperatorKernel {
 public:
  NativeOp(NativeKernel kernel, const std::string& name)
      : kernel_(std::move(kernel)), counter_(op_counter(name)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    const size_t count = op.schema().arguments().size();
    auto results = kernel_(torch::jit::last(*stack, count), counter_);
    if (!results) return fallback(op, keys, stack);
    torch::jit::drop(*stack, count);
    for (c10::IValue& result : *results) torch::jit::push(*stack, std::move(result));
  }

 private:
  const NativeKernel kernel_;
  OpCounter& counter_;
};

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

void add_native(torch::Library& aten, const std::string& name, Rows rows, torch::CppFunction function) {
  const std::string full = full_name(name);
  served().push_back({full, std::move(rows)});
  aten.impl(full.c_str(), std::move(function));
}

void add_native(torch::Library& aten, const std::string& name, Rows rows, NativeKernel kernel) {
  auto op = std::make_unique<NativeOp>(std::move(kernel), full_name(name));
  add_native(aten, name, std::move(rows), torch::CppFunction::makeFromBoxedFunctor(std::move(op)));
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
                  at::get_overlap_status(out, operand) == at::MemOverlapStatus::No;
         });
}

}  // namespace torch_npu
