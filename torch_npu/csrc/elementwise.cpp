#include "torch_npu/csrc/elementwise.h"

#include <ATen/TensorIterator.h>
#include <ATen/native/TypeProperties.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "ops/elementwise.h"
#include "torch_npu/csrc/counters.h"
#include "torch_npu/csrc/dtypes.h"
#include "torch_npu/csrc/fallback.h"
#include "torch_npu/csrc/kernel_call.h"

namespace torch_npu {
namespace {

using anynpu::ops::Elementwise;
using anynpu::ops::Operand;
using anynpu::tile::DType;
using anynpu::tile::Literal;
using at::Tensor;
using c10::IValue;
using torch::jit::Stack;

/// What the arguments of an overload are to its operator.
struct Signature {
  c10::SmallVector<size_t, 4> operands, numbers;  ///< their arguments, in the order of the operator's
  std::optional<size_t> choice, out;
  size_t arguments = 0;

  /// Nothing where the overload takes something else.
  static std::optional<Signature> of(const Elementwise& op, const c10::FunctionSchema& schema);
};

std::optional<Signature> Signature::of(const Elementwise& op, const c10::FunctionSchema& schema) {
  Signature signature;
  signature.arguments = schema.arguments().size();
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    const bool written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    const size_t number = signature.numbers.size();
    if (argument.type()->kind() == c10::TypeKind::TensorType) {
      if (written) signature.out = i;
      if (!argument.is_out()) signature.operands.push_back(i);
    } else if (number < op.numbers.size() && argument.name() == op.numbers[number].name) {
      signature.numbers.push_back(i);
    } else if (op.choice && argument.name() == op.choice->name) {
      signature.choice = i;
    } else {
      return std::nullopt;
    }
  }
  const bool fits = signature.operands.size() == static_cast<size_t>(op.operands) &&
                    signature.numbers.size() == op.numbers.size() &&
                    signature.choice.has_value() == op.choice.has_value() && schema.returns().size() == 1;
  return fits ? std::optional(std::move(signature)) : std::nullopt;
}

template <class T>
std::span<const T> span_of(at::ArrayRef<T> array) {
  return {array.data(), array.size()};
}

/// `number` in the type that is computed with. Nothing where PyTorch refuses that, or warns.
std::optional<Literal> literal_of(const c10::Scalar& number, DType common) {
  const DType compute = anynpu::ops::compute_type(common);
  if (number.isBoolean() != (common == DType::kBool) || number.isComplex()) return std::nullopt;
  if (!anynpu::tile::kBits.contains(compute)) return Literal(number.toDouble());
  if (number.isFloatingPoint()) return std::nullopt;
  const int64_t integer = number.toLong();
  const bool fits = anynpu::tile::visit(compute, [&]<class T>(std::type_identity<T>) {
    if constexpr (!std::is_integral_v<T>)
      return false;
    else
      return static_cast<int64_t>(static_cast<T>(integer)) == integer;
  });
  return fits ? std::optional(Literal(integer)) : std::nullopt;
}

/// One overload of ATen's as a kernel.
class ElementwiseKernel : public c10::OperatorKernel {
 public:
  ElementwiseKernel(const Elementwise& op, Signature signature, const std::string& name)
      : op_(op), signature_(std::move(signature)), counter_(op_counter(name)) {}

  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, Stack* stack) {
    if (auto result = compute(torch::jit::last(*stack, signature_.arguments))) {
      torch::jit::drop(*stack, signature_.arguments);
      torch::jit::push(*stack, std::move(*result));
    } else {
      fallback(handle, keys, stack);
    }
  }

 private:
  /// Nothing where there is no kernel for such arguments.
  std::optional<Tensor> compute(at::ArrayRef<IValue> arguments) const;
  at::TensorIterator iterator(at::ArrayRef<IValue> arguments, const Tensor& out,
                              std::optional<c10::ScalarType> type) const;
  std::optional<size_t> chosen(at::ArrayRef<IValue> arguments) const;
  void launch(at::TensorIterator& iterator, DType common, size_t choice, at::ArrayRef<Literal> numbers) const;

  const Tensor& operand(at::ArrayRef<IValue> arguments, size_t i) const {
    return arguments[signature_.operands[i]].toTensor();
  }

  const Elementwise& op_;
  const Signature signature_;
  OpCounter& counter_;
};

std::optional<size_t> ElementwiseKernel::chosen(at::ArrayRef<IValue> arguments) const {
  if (!signature_.choice) return 0;
  const auto& values = op_.choice->values;
  const auto found = std::find(values.begin(), values.end(), arguments[*signature_.choice].toStringView());
  if (found == values.end()) return std::nullopt;
  return static_cast<size_t>(found - values.begin());
}

/// Shapes, strides and types as every elementwise operator of PyTorch has them. With masks the type of the
/// result comes from outside, as they take no part in it.
at::TensorIterator ElementwiseKernel::iterator(at::ArrayRef<IValue> arguments, const Tensor& out,
                                               std::optional<c10::ScalarType> type) const {
  at::TensorIteratorConfig config;
  config.add_output(out);
  for (size_t i = 0; i < signature_.operands.size(); ++i) config.add_const_input(operand(arguments, i));
  config.allow_cpu_scalars(true);
  if (type) {
    config.check_all_same_dtype(false).declare_static_dtype(*type);
  } else {
    config.promote_inputs_to_common_dtype(true);
    if (op_.compares) {
      if (!out.defined()) config.declare_static_dtype(at::kBool);
    } else {
      config.cast_common_dtype_to_outputs(true).enforce_safe_casting_to_output(true);
    }
  }
  return config.build();
}

std::optional<Tensor> ElementwiseKernel::compute(at::ArrayRef<IValue> arguments) const {
  const auto choice = chosen(arguments);
  at::native::ResultTypeState promoted = {};
  for (size_t i = 0; i < signature_.operands.size(); ++i) {
    const Tensor& tensor = operand(arguments, i);
    const auto dtype = tensor.defined() ? dtype_of(tensor.scalar_type()) : std::nullopt;
    if (!dtype) return std::nullopt;
    if (!is_mask(op_, i)) {
      if (!op_.dtypes.contains(*dtype)) return std::nullopt;
      promoted = at::native::update_result_type_state(tensor, promoted);
    } else if (tensor.scalar_type() != at::kBool || tensor.device().is_cpu()) {
      return std::nullopt;
    }
  }
  const c10::ScalarType type = at::native::result_type(promoted);
  const auto common = dtype_of(type);
  if (!choice || !common || !op_.dtypes.contains(*common)) return std::nullopt;
  const Tensor out = signature_.out ? arguments[*signature_.out].toTensor() : Tensor();
  if (out.defined() && (!dtype_of(out.scalar_type()) || (!op_.casts && out.scalar_type() != type)))
    return std::nullopt;
  c10::SmallVector<Literal, 2> numbers;
  for (const size_t argument : signature_.numbers) {
    const auto number = literal_of(arguments[argument].toScalar(), *common);
    if (!number) return std::nullopt;
    numbers.push_back(*number);
  }
  auto elements = iterator(arguments, out, op_.masks != 0 ? std::optional(type) : std::nullopt);
  if (elements.numel() != 0) launch(elements, *common, *choice, numbers);
  return out.defined() ? out : elements.output();
}

/// The element of a CPU tensor of one, in the type that is computed with.
Literal number_in(const Tensor& tensor, DType compute) {
  const c10::Scalar number = at::native::_local_scalar_dense_cpu(tensor);
  return anynpu::tile::visit(compute, [&]<class T>(std::type_identity<T>) -> Literal {
    if constexpr (std::is_integral_v<T>) return int64_t{static_cast<T>(number.toLong())};
    return number.toDouble();
  });
}

void ElementwiseKernel::launch(at::TensorIterator& iterator, DType common, size_t choice,
                               at::ArrayRef<Literal> numbers) const {
  static constexpr int64_t kOne = 1, kNoStride = 0;
  c10::SmallVector<Operand, 4> operands;
  const bool scalar = iterator.ndim() == 0;
  for (int i = 0; i < iterator.ntensors(); ++i) {
    Operand operand = {.dtype = *dtype_of(iterator.tensor(i).scalar_type())};
    if (i > 0 && iterator.is_cpu_scalar(i)) {
      operand.number = number_in(iterator.tensor(i), anynpu::ops::compute_type(common));
    } else {
      operand.data = iterator.data_ptr(i);
      operand.strides = scalar ? std::span(&kNoStride, 1) : span_of(iterator.strides(i));
    }
    operands.push_back(operand);
  }
  const anynpu::ops::ElementwiseCall call = {
      .op = op_,
      .choice = choice,
      .common = common,
      .sizes = scalar ? std::span(&kOne, 1) : span_of(iterator.shape()),
      .operands = operands,
      .numbers = span_of(numbers)};
  anynpu::Stream& stream = current_runtime_stream(iterator.tensor(0).device());
  const anynpu::TaskLabel label(counter_.name.c_str());
  counter_.count_native();
  npu_call([&] {
    anynpu::ops::enqueue(stream, prepare(call), threads_for(anynpu::Lane::kParallel, stream.device()));
  });
}

}  // namespace

bool register_elementwise(torch::Library& aten, const c10::OperatorHandle& op) {
  static const auto rows = [] {
    std::unordered_map<std::string, const Elementwise*> made;
    for (const Elementwise& row : anynpu::ops::elementwise_ops()) {
      made.emplace(anynpu::concat("aten::", row.aten), &row);
      made.emplace(anynpu::concat("aten::", row.aten, "_"), &row);  // in place
    }
    return made;
  }();
  const auto row = rows.find(op.operator_name().name);
  if (row == rows.end() || !op.hasKernelForDispatchKey(c10::DispatchKey::CPU)) return false;
  auto signature = Signature::of(*row->second, op.schema());
  if (!signature) return false;
  const std::string name = c10::toString(op.operator_name());
  aten.impl(name.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<ElementwiseKernel>(
                              *row->second, std::move(*signature), name)));
  return true;
}

}  // namespace torch_npu
