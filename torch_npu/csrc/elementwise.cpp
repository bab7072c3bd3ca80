#include "torch_npu/csrc/elementwise.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/native/TypeProperties.h>

#include <algorithm>

#include "ops/promotion.h"
#include "torch_npu/csrc/alias.h"
#include "torch_npu/csrc/dtypes.h"
#include "torch_npu/csrc/errors.h"
#include "torch_npu/csrc/factories.h"
#include "torch_npu/csrc/native_op.h"

namespace torch_npu {
namespace {

using anynpu::ops::Elementwise;
using anynpu::tile::DType;
using anynpu::tile::Literal;
using at::Tensor;
using Given = at::ArrayRef<ElementwisePlan::Operand>;

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
std::optional<c10::ScalarType> common_type(const Elementwise& op, Given operands) {
  at::native::ResultTypeState promoted = {};
  for (size_t i = 0; i < operands.size(); ++i) {
    const Tensor& tensor = *operands[i];
    const auto dtype = tensor.defined() ? dtype_of(tensor.scalar_type()) : std::nullopt;
    if (!dtype || !op.accepts.contains(*dtype)) return std::nullopt;
    if (is_mask(op, i) || follows(op, i)) continue;
    if (!op.promotes && tensor.scalar_type() != operands[0]->scalar_type()) return std::nullopt;
    promoted = at::native::update_result_type_state(tensor, promoted);
  }
  const c10::ScalarType type = at::native::result_type(promoted);
  const bool floats = op.gives_floats && c10::isIntegralType(type, /*includeBool=*/true);
  return floats ? c10::typeMetaToScalarType(c10::get_default_dtype()) : type;
}

/// Whether the row has kernels for the type: where numbers are among the operands, for those too.
bool has_kernels(const Elementwise& op, Given operands, DType common) {
  const bool number = std::any_of(operands.begin(), operands.end(), [](const auto& operand) {
    return operand->unsafeGetTensorImpl()->is_wrapped_number();
  });
  return op.dtypes.contains(common) && (!number || op.with_number.contains(common));
}

/// Numbers among the operands that their type does not hold are PyTorch's: whether it wraps them around or
/// refuses them depends on the operator.
bool holds_numbers(Given operands, DType common) {
  return std::all_of(operands.begin(), operands.end(), [&](const auto& operand) {
    return !operand->unsafeGetTensorImpl()->is_wrapped_number() ||
           in_range(at::native::_local_scalar_dense_cpu(*operand), common);
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
bool accepts_others(const Elementwise& op, Given operands, DType common) {
  for (size_t i = 0; i < operands.size(); ++i) {
    const Tensor& tensor = *operands[i];
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
  for (const auto& result : arguments.results) config.add_output(*result);
  for (const auto& operand : arguments.operands) {
    if (operand->is_cpu())
      config.add_owned_const_input(*operand);
    else
      config.add_const_input(*operand);
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

/// Whether TensorIterator, which orders dimensions by their strides, gives a new result the strides of a
/// tensor whose elements lie side by side: where they are contiguous, or no two of them tie.
bool keeps_strides(const Tensor& tensor) {
  bool contiguous = true, distinct = true;
  int64_t elements = 1;
  for (int64_t d = tensor.dim(); d-- > 0;) {
    contiguous &= tensor.stride(d) == elements;
    distinct &= tensor.size(d) > 1;
    elements *= tensor.size(d);
  }
  return elements != 0 && (contiguous || distinct);
}

/// The first tensor with dimensions, where all others have its sizes and strides and its elements lie side by
/// side; nothing where they do not, where a result has a part of an operand's memory, or where a new result
/// would lie otherwise.
const Tensor* alike(const ElementwisePlan::Arguments& arguments, c10::Device device) {
  const Tensor* first = nullptr;
  bool has_element = false;
  const auto is_alike = [&](const ElementwisePlan::Operand& tensor) {
    if (first == nullptr) first = &*tensor;
    return tensor->sizes() == first->sizes() && tensor->strides() == first->strides() &&
           tensor->device() == device;
  };
  const auto is_element = [&](const ElementwisePlan::Operand& tensor) {
    return tensor->dim() == 0 && (tensor->is_cpu() || tensor->device() == device);
  };
  for (const auto& operand : arguments.operands) {
    if (is_element(operand))
      has_element = true;
    else if (!is_alike(operand))
      return nullptr;
  }
  if (first == nullptr || !first->is_non_overlapping_and_dense()) return nullptr;
  if (has_element && arguments.results.empty() && !keeps_strides(*first)) return nullptr;
  for (const auto& result : arguments.results) {
    if (!is_alike(result)) return nullptr;
    for (const auto& operand : arguments.operands) {
      const auto overlap = at::get_overlap_status(*result, *operand);
      if (overlap != at::MemOverlapStatus::No && overlap != at::MemOverlapStatus::Full) return nullptr;
    }
  }
  return first;
}

/// Strides in bytes of elements side by side, and of one that stays, by the elements' size.
std::span<const int64_t> stride_of(size_t bytes) {
  static constexpr int64_t kBytes[] = {0, 1, 2, 3, 4, 5, 6, 7, 8};
  return {&kBytes[bytes], 1};
}

}  // namespace

bool ElementwisePlan::make(const Elementwise& op, const Arguments& arguments) {
  const auto type = common_type(op, arguments.operands);
  const auto common = type ? dtype_of(*type) : std::nullopt;
  if (!common || !has_kernels(op, arguments.operands, *common) ||
      !holds_numbers(arguments.operands, *common) || !accepts_others(op, arguments.operands, *common))
    return false;
  for (const auto& result : arguments.results)
    if (!accepts_result(op, *result, *type)) return false;
  op_ = &op;
  choice_ = arguments.choice;
  common_ = *common;
  for (const c10::Scalar& number : arguments.numbers) {
    const auto literal = literal_of(number, *common);
    if (!literal) return false;
    numbers_.push_back(*literal);
  }
  const auto on = std::find_if(arguments.operands.begin(), arguments.operands.end(),
                               [](const Operand& operand) { return !operand->is_cpu(); });
  const Tensor* like = on == arguments.operands.end() ? nullptr : alike(arguments, (*on)->device());
  if (like == nullptr) {
    build(iterator_.emplace(), op, arguments, *type);
  } else {
    device_ = like->device();
    elements_ = like->numel();
    if (arguments.results.empty()) {
      result_ = empty_alike(*like, op.compares ? at::kBool : *type);
      add(result_);
    }
    for (const Operand& result : arguments.results) add(*result);
    for (const Operand& operand : arguments.operands) add(*operand);
  }
  return true;
}

/// One of a call whose tensors lie alike.
void ElementwisePlan::add(const Tensor& tensor) {
  anynpu::ops::Operand operand = {.dtype = *dtype_of(tensor.scalar_type())};
  if (tensor.is_cpu()) {
    operand.number = number_in(tensor, anynpu::ops::compute_type(common_));
  } else {
    check_memory(tensor);
    operand.data = const_cast<void*>(tensor.const_data_ptr());
    operand.strides = stride_of(tensor.dim() == 0 || elements_ == 1 ? 0 : tensor.element_size());
  }
  operands_.push_back(operand);
}

void ElementwisePlan::launch(OpCounter& counter) {
  if (!iterator_) return launch({&elements_, 1}, operands_, device_, counter);
  const bool scalar = iterator_->ndim() == 0;
  c10::SmallVector<anynpu::ops::Operand, 6> operands;
  for (int i = 0; i < iterator_->ntensors(); ++i) {
    anynpu::ops::Operand operand = {.dtype = *dtype_of(iterator_->tensor(i).scalar_type())};
    if (i >= iterator_->noutputs() && iterator_->is_cpu_scalar(i)) {
      operand.number = number_in(iterator_->tensor(i), anynpu::ops::compute_type(common_));
    } else if (iterator_->numel() != 0) {
      check_memory(iterator_->tensor(i));
      operand.data = iterator_->data_ptr(i);
      operand.strides = scalar ? stride_of(0) : span_of(iterator_->strides(i));
    }
    operands.push_back(operand);
  }
  const int64_t one = 1;
  launch(scalar ? at::IntArrayRef(one) : iterator_->shape(), operands, iterator_->tensor(0).device(),
         counter);
}

void ElementwisePlan::launch(at::IntArrayRef sizes, at::ArrayRef<anynpu::ops::Operand> operands,
                             c10::Device device, OpCounter& counter) const {
  if (c10::multiply_integers(sizes) == 0) return counter.count_native();
  const anynpu::ops::ElementwiseCall call = {.op = *op_,
                                             .choice = choice_,
                                             .common = common_,
                                             .sizes = span_of(sizes),
                                             .operands = span_of(operands),
                                             .numbers = numbers_};
  enqueue_native(npu_call([&] { return prepare(call); }), device, counter);
}

}  // namespace torch_npu
