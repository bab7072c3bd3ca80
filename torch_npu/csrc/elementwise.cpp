#include "torch_npu/csrc/elementwise.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/native/TypeProperties.h>

#include <algorithm>

#include "ops/promotion.h"
#include "torch_npu/csrc/alias.h"
#include "torch_npu/csrc/dtypes.h"
#include "torch_npu/csrc/errors.h"
#include "torch_npu/csrc/native_op.h"

namespace torch_npu {
namespace {

using anynpu::ops::Elementwise;
using anynpu::ops::Operand;
using anynpu::tile::DType;
using anynpu::tile::Literal;
using at::Tensor;

template <class T>
std::span<const T> span_of(at::ArrayRef<T> array) {
  return {array.data(), array.size()};
}

/// The element of a CPU tensor of one, in the type that is computed with.
Literal number_in(const Tensor& tensor, DType compute) {
  const c10::Scalar number = at::native::_local_scalar_dense_cpu(tensor);
  return anynpu::tile::visit(compute, [&]<class T>(std::type_identity<T>) -> Literal {
    if constexpr (std::is_integral_v<T>) return int64_t{static_cast<T>(number.toLong())};
    return number.toDouble();
  });
}

/// The common type of operands; nothing where one is of a type without kernels.
std::optional<c10::ScalarType> common_type(const Elementwise& op, at::ArrayRef<Tensor> operands) {
  at::native::ResultTypeState promoted = {};
  for (size_t i = 0; i < operands.size(); ++i) {
    const Tensor& tensor = operands[i];
    const auto dtype = tensor.defined() ? dtype_of(tensor.scalar_type()) : std::nullopt;
    if (!dtype || !op.accepts.contains(*dtype)) return std::nullopt;
    if (is_mask(op, i) || follows(op, i)) continue;
    if (!op.promotes && tensor.scalar_type() != operands[0].scalar_type()) return std::nullopt;
    promoted = at::native::update_result_type_state(tensor, promoted);
  }
  const c10::ScalarType type = at::native::result_type(promoted);
  const bool floats = op.gives_floats && c10::isIntegralType(type, /*includeBool=*/true);
  return floats ? c10::typeMetaToScalarType(c10::get_default_dtype()) : type;
}

/// Whether the row has kernels for the type: where numbers are among the operands, for those too.
bool has_kernels(const Elementwise& op, at::ArrayRef<Tensor> operands, DType common) {
  const bool number = std::any_of(operands.begin(), operands.end(), [](const Tensor& operand) {
    return operand.unsafeGetTensorImpl()->is_wrapped_number();
  });
  return op.dtypes.contains(common) && (!number || op.with_number.contains(common));
}

/// Numbers among the operands that their type does not hold are PyTorch's: whether it wraps them around or
/// refuses them depends on the operator.
bool holds_numbers(at::ArrayRef<Tensor> operands, DType common) {
  return std::all_of(operands.begin(), operands.end(), [&](const Tensor& operand) {
    return !operand.unsafeGetTensorImpl()->is_wrapped_number() ||
           in_range(at::native::_local_scalar_dense_cpu(operand), common);
  });
}

/// A value without dimensions that is converted to `common` without PyTorch's checks of its range having
/// something to say.
bool may_follow(const Tensor& tensor, DType common) {
  if (tensor.dim() != 0) return false;
  if (tensor.device().is_cpu())
    return literal_of(at::native::_local_scalar_dense_cpu(tensor), common).has_value() &&
           common != DType::kF16;
  const DType dtype = *dtype_of(tensor.scalar_type());
  const auto floats = anynpu::ops::kAllFloats;
  return dtype == common || (floats.contains(dtype) && floats.contains(common) && common != DType::kF16 &&
                             (dtype != DType::kF64 || common == DType::kF64));
}

/// What does not take part in promotion is as the operator needs it.
bool accepts_others(const Elementwise& op, at::ArrayRef<Tensor> operands, DType common) {
  for (size_t i = 0; i < operands.size(); ++i) {
    const Tensor& tensor = operands[i];
    if (is_mask(op, i) && (tensor.scalar_type() != at::kBool || tensor.device().is_cpu())) return false;
    if (follows(op, i) && !may_follow(tensor, common)) return false;
  }
  return true;
}

bool accepts_result(const Elementwise& op, const Tensor& result, c10::ScalarType type) {
  if (!result.defined() || !dtype_of(result.scalar_type())) return false;
  const bool casts = op.casts && c10::canCast(type, result.scalar_type());
  return (casts || result.scalar_type() == (op.compares ? at::kBool : type)) &&
         at::has_internal_overlap(result) != at::MemOverlap::Yes;
}

/// It owns new results and numbers, and borrows other tensors. Where some operands take no part in promotion,
/// the type of a new result comes from outside.
void build(at::TensorIterator& iterator, const Elementwise& op, const ElementwisePlan::Arguments& arguments,
           c10::ScalarType type) {
  at::TensorIteratorConfig config;
  if (arguments.results.empty()) config.add_owned_output(Tensor());
  for (const Tensor& result : arguments.results) config.add_output(result);
  for (const Tensor& operand : arguments.operands) {
    if (operand.is_cpu())
      config.add_owned_const_input(operand);
    else
      config.add_const_input(operand);
  }
  config.allow_cpu_scalars(true);
  if (op.masks != 0 || op.follows != 0) {
    config.check_all_same_dtype(false).declare_static_dtype(type);
  } else {
    config.promote_inputs_to_common_dtype(true).promote_integer_inputs_to_float(op.gives_floats);
    if (op.compares) {
      if (arguments.results.empty()) config.declare_static_dtype(at::kBool);
    } else {
      config.cast_common_dtype_to_outputs(true).enforce_safe_casting_to_output(true);
    }
  }
  iterator.build(config);
}

}  // namespace

bool ElementwisePlan::make(const Elementwise& op, const Arguments& arguments) {
  const auto type = common_type(op, arguments.operands);
  const auto common = type ? dtype_of(*type) : std::nullopt;
  if (!common || !has_kernels(op, arguments.operands, *common) ||
      !holds_numbers(arguments.operands, *common) || !accepts_others(op, arguments.operands, *common))
    return false;
  for (const Tensor& result : arguments.results)
    if (!accepts_result(op, result, *type)) return false;
  op_ = &op;
  choice_ = arguments.choice;
  common_ = *common;
  for (const c10::Scalar& number : arguments.numbers) {
    const auto literal = literal_of(number, *common);
    if (!literal) return false;
    numbers_.push_back(*literal);
  }
  build(iterator_, op, arguments, *type);
  return true;
}

void ElementwisePlan::launch(OpCounter& counter) {
  if (iterator_.numel() == 0) return counter.count_native();
  static constexpr int64_t kOne = 1, kNoStride = 0;
  const bool scalar = iterator_.ndim() == 0;
  c10::SmallVector<Operand, 6> operands;
  for (int i = 0; i < iterator_.ntensors(); ++i) {
    Operand operand = {.dtype = *dtype_of(iterator_.tensor(i).scalar_type())};
    if (i >= iterator_.noutputs() && iterator_.is_cpu_scalar(i)) {
      operand.number = number_in(iterator_.tensor(i), anynpu::ops::compute_type(common_));
    } else {
      check_memory(iterator_.tensor(i));
      operand.data = iterator_.data_ptr(i);
      operand.strides = scalar ? std::span(&kNoStride, 1) : span_of(iterator_.strides(i));
    }
    operands.push_back(operand);
  }
  const anynpu::ops::ElementwiseCall call = {
      .op = *op_,
      .choice = choice_,
      .common = common_,
      .sizes = scalar ? std::span(&kOne, 1) : span_of(iterator_.shape()),
      .operands = operands,
      .numbers = numbers_};
  enqueue_native(npu_call([&] { return prepare(call); }), result(), counter);
}

}  // namespace torch_npu
