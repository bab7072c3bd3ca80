#include "torch_npu/csrc/lines.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/native/Resize.h>

#include <algorithm>
#include <bit>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ops/reduce/reduction.h"
#include "torch_npu/csrc/dtypes.h"
#include "torch_npu/csrc/errors.h"
#include "torch_npu/csrc/factories.h"
#include "torch_npu/csrc/native_op.h"
#include "torch_npu/csrc/typed_kernel.h"

namespace torch_npu {
namespace {

using anynpu::ops::Dims;
using anynpu::ops::Holds;
using anynpu::ops::LineOp;
using anynpu::ops::View;
using anynpu::tile::DType;
using at::Tensor;
using c10::IValue;
using Tensors = c10::SmallVector<Tensor, 2>;

/// What an argument of an overload is to its operator.
enum class Role : uint8_t {
  kOperand,
  kResult,
  kOperandAndResult,
  kDims,
  kKeep,
  kDType,
  kHalfToFloat,   ///< must be false
  kOperandDType,  ///< must be that
};

/// What a call gives its operator. Tensors are borrowed: to count a reference to one that Python holds takes
/// the GIL.
struct Given {
  c10::SmallVector<const Tensor*, 2> operands, results;
  std::optional<c10::SmallVector<int64_t, 5>> dims;
  bool keep = false, half_to_float = false;
  std::optional<c10::ScalarType> dtype, operand_dtype;

  void add(Role role, const Tensor& tensor) {
    if (role != Role::kResult) operands.push_back(&tensor);
    if (role != Role::kOperand) results.push_back(&tensor);
  }
  void add(Role /*dims*/, int64_t dim) { dims.emplace(1, dim); }
  void add(Role /*dims*/, at::IntArrayRef list) { dims.emplace(list.begin(), list.end()); }
  void add(Role /*dims*/, at::OptionalIntArrayRef list) {
    if (list) dims.emplace(list->begin(), list->end());
  }
  void add(Role role, bool flag) { (role == Role::kKeep ? keep : half_to_float) = flag; }
  void add(Role role, c10::ScalarType type) { (role == Role::kDType ? dtype : operand_dtype) = type; }
  template <class T>
  void add(Role role, const std::optional<T>& given) {
    if (given) add(role, *given);
  }
  void add(Role role, const IValue& value) {
    if (value.isNone()) return;
    if (value.isTensor()) return add(role, value.toTensor());
    if (value.isBool()) return add(role, value.toBool());
    if (value.isIntList()) return add(role, at::IntArrayRef(value.toDimVector()));
    role == Role::kDims ? add(role, value.toInt()) : add(role, value.toScalarType());
  }
};

/// The roles of an overload's arguments; nothing where it takes something else than the operator.
std::optional<std::vector<Role>> roles_of(const LineOp& op, const c10::FunctionSchema& schema) {
  static const std::unordered_map<std::string_view, Role> named = {{"dim", Role::kDims},
                                                                   {"keepdim", Role::kKeep},
                                                                   {"dtype", Role::kDType},
                                                                   {"half_to_float", Role::kHalfToFloat},
                                                                   {"input_dtype", Role::kOperandDType}};
  std::vector<Role> roles;
  for (const c10::Argument& argument : schema.arguments()) {
    if (argument.type()->kind() == c10::TypeKind::TensorType) {
      const bool written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
      roles.push_back(argument.is_out() ? Role::kResult : written ? Role::kOperandAndResult : Role::kOperand);
    } else if (const auto role = named.find(argument.name()); role != named.end()) {
      roles.push_back(role->second);
    } else {
      return std::nullopt;
    }
  }
  const auto count = [&](std::initializer_list<Role> some) {
    return static_cast<size_t>(
        std::ranges::count_if(roles, [&](Role role) { return std::ranges::count(some, role) != 0; }));
  };
  const size_t results = op.formula.results, outs = count({Role::kResult, Role::kOperandAndResult});
  const bool fits = count({Role::kOperand, Role::kOperandAndResult}) == static_cast<size_t>(op.operands) &&
                    schema.returns().size() == results && (outs == 0 || outs == results) &&
                    (op.reduces() || count({Role::kDims}) == 1);
  return fits ? std::optional(std::move(roles)) : std::nullopt;
}

/// A call of an operator of lines: its results, and what they are computed from.
class LinePlan {
 public:
  /// Makes a new plan that of a call; false where there is no kernel for it. The call's tensors must live
  /// until the launch.
  bool make(const LineOp& op, const Given& given);

  void launch(OpCounter& counter) const;
  const Tensor& result(size_t i) const { return results_[i]; }
  Results results() const { return Results(std::in_place, results_.begin(), results_.end()); }

 private:
  bool make_results(const Given& given, at::IntArrayRef sizes, c10::ScalarType common);

  const LineOp* op_ = nullptr;
  DType common_ = {};
  Dims over_;
  Tensors results_;
  c10::SmallVector<const Tensor*, 2> operands_;
};

/// The kernel of one overload of ATen's.
class LineKernel {
 public:
  LineKernel(const LineOp& op, std::vector<Role> roles) : op_(op), roles_(std::move(roles)) {}

  using Plan = LinePlan;
  template <class... Parameters>
  bool plan(Plan& plan, const Parameters&... arguments) const {
    Given given;
    auto role = roles_.begin();
    (given.add(*role++, arguments), ...);
    return plan.make(op_, given);
  }

  Results operator()(Arguments arguments, OpCounter& counter) const {
    Given given;
    for (size_t i = 0; i < arguments.size(); ++i) given.add(roles_[i], arguments[i]);
    LinePlan plan;
    if (!plan.make(op_, given)) return std::nullopt;
    plan.launch(counter);
    return plan.results();
  }

 private:
  const LineOp& op_;
  const std::vector<Role> roles_;
};

bool takes(const Tensor& operand, const Tensor& first) {
  return operand.defined() && dtype_of(operand.scalar_type()) &&
         operand.scalar_type() == first.scalar_type() && operand.sizes() == first.sizes() &&
         operand.device() == first.device();
}

/// Without any, all; of an operator that does not reduce, the one.
std::optional<Dims> dims_of(const LineOp& op, const Given& given, int64_t count) {
  Dims all;
  for (int64_t d = 0; d < count; ++d) all.set(static_cast<size_t>(d));
  if (!given.dims) return all;
  if (given.dims->empty()) {
    // PyTorch's any and all take such a list at its word.
    return op.gives(0) == Holds::kTruth ? std::nullopt : std::optional(all);
  }
  Dims dims;
  for (const int64_t dim : *given.dims) {
    const int64_t least = std::max<int64_t>(count, 1);
    if (dim < -least || dim >= least) return std::nullopt;
    const auto at = static_cast<size_t>(dim < 0 ? dim + least : dim);
    if (dims[at]) return std::nullopt;
    dims.set(at);
  }
  return dims & all;
}

std::optional<c10::ScalarType> common_type(const LineOp& op, const Given& given) {
  const c10::ScalarType type = given.operands[0]->scalar_type();
  if (given.half_to_float || (given.operand_dtype && *given.operand_dtype != type)) return std::nullopt;
  if (given.dtype) return given.dtype;
  if (!op.widens) return type;
  if (!given.results.empty()) return given.results[0]->scalar_type();
  return c10::isIntegralType(type, /*includeBool=*/true) ? at::kLong : type;
}

/// Whether PyTorch gives the operand itself: as the running value of a tensor without dimensions.
bool is_copy(const LineOp& op, const Tensor& x) { return !op.reduces() && op.widens && x.dim() == 0; }

c10::ScalarType type_of_result(const LineOp& op, size_t i, c10::ScalarType common) {
  switch (op.gives(i)) {
    case Holds::kPosition:
      return at::kLong;
    case Holds::kTruth:
      return common == at::kByte ? at::kByte : at::kBool;  // as PyTorch has it for u8
    default:
      return common;
  }
}

/// Whether a result may have elements of `other`; with `same`, other ones than those of the same indices.
bool shares(const Tensor& result, const Tensor& other, bool same) {
  if (!result.is_alias_of(other)) return false;
  const auto overlap = at::get_overlap_status(result, other);
  return overlap != at::MemOverlapStatus::No && !(same && overlap == at::MemOverlapStatus::Full);
}

/// Those that are given, with the sizes that they should have, or new ones.
bool LinePlan::make_results(const Given& given, at::IntArrayRef sizes, c10::ScalarType common) {
  const Tensor& operand = *given.operands[0];
  for (size_t i = 0; i < op_->formula.results; ++i) {
    const c10::ScalarType type = type_of_result(*op_, i, common);
    if (given.results.empty()) {
      results_.push_back(empty_contiguous(sizes, type, operand.device()));
      continue;
    }
    const Tensor& out = *given.results[i];
    if (out.scalar_type() != type || out.device() != operand.device()) return false;
    results_.push_back(out);
  }
  if (given.results.empty()) return true;
  for (const Tensor& out : results_) at::native::resize_output(out, sizes);
  for (const Tensor& out : results_) {
    if (at::has_internal_overlap(out) == at::MemOverlap::Yes) return false;
    for (const Tensor* other : given.operands)
      if (shares(out, *other, !op_->reduces())) return false;
    for (const Tensor& other : results_)
      if (&other != &out && shares(out, other, false)) return false;
  }
  return true;
}

bool LinePlan::make(const LineOp& op, const Given& given) {
  const Tensor& x = *given.operands[0];
  if (x.dim() > static_cast<int64_t>(Dims().size())) return false;
  for (const Tensor* operand : given.operands)
    if (!takes(*operand, x)) return false;
  const auto over = dims_of(op, given, x.dim());
  const auto type = common_type(op, given);
  if (!over || !type || is_copy(op, x)) return false;
  const auto common = dtype_of(*type);
  if (!common || !op.dtypes.contains(*common) || (x.numel() == 0 && !op.of_nothing)) return false;
  op_ = &op;
  common_ = *common;
  over_ = *over;
  operands_ = given.operands;
  if (!op.reduces()) return make_results(given, x.sizes(), *type);
  return make_results(
      given, anynpu::ops::reduced_sizes({x.sizes().data(), x.sizes().size()}, over_, given.keep), *type);
}

void LinePlan::launch(OpCounter& counter) const {
  const Tensor& first = results_.front();
  if (first.numel() == 0) return;
  std::vector<View> views;
  views.reserve(results_.size() + operands_.size());
  for (const Tensor& result : results_) views.push_back(view_of(result));
  for (const Tensor* operand : operands_) views.push_back(view_of(*operand));
  if (!op_->reduces()) {
    const size_t dim = over_.none() ? 0 : static_cast<size_t>(std::countr_zero(over_.to_ullong()));
    return enqueue_native(npu_call([&] { return prepare(*op_, common_, std::move(views), dim); }), first,
                          counter);
  }
  Temporaries temporaries(first);
  auto launches = npu_call([&] {
    const std::span<const View> made(views.data(), results_.size());
    return prepare(anynpu::ops::Reduction{*op_, common_, made, views.back(), over_}, temporaries.take());
  });
  enqueue_native(std::move(launches), first, counter);
}

}  // namespace

bool register_lines(torch::Library& aten, const c10::OperatorHandle& op) {
  if (!op.hasKernelForDispatchKey(c10::DispatchKey::CPU)) return false;
  const std::string_view base = std::string_view(op.operator_name().name).substr(sizeof("aten::") - 1);
  const auto names = [&](const LineOp& row) {
    const auto is_named = [&](std::string_view name) {
      return base == name || (base.ends_with('_') && base.substr(0, base.size() - 1) == name);
    };
    return std::any_of(row.aten.begin(), row.aten.end(), is_named);
  };
  for (const LineOp& row : anynpu::ops::line_ops()) {
    if (!names(row)) continue;
    auto roles = roles_of(row, op.schema());
    if (!roles) continue;
    using T = const Tensor&;
    using Ints = at::OptionalIntArrayRef;
    using Type = std::optional<c10::ScalarType>;
    add_typed<Tensor(T), Tensor(T, Type), Tensor(T, int64_t, bool), Tensor(T, int64_t, Type),
              Tensor(T, int64_t, bool, Type), Tensor(T, std::optional<int64_t>, bool),
              Tensor(T, at::IntArrayRef, bool), Tensor(T, Ints, bool), Tensor(T, Ints, bool, Type),
              Tensor(T, T, int64_t, c10::ScalarType), std::tuple<Tensor, Tensor>(T, int64_t, bool)>(
        aten, op, {row.name}, LineKernel(row, std::move(*roles)));
    return true;
  }
  return false;
}

}  // namespace torch_npu
