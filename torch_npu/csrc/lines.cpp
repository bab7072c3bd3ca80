#include "torch_npu/csrc/lines.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <bit>
#include <optional>
#include <string>
#include <utility>

#include "ops/reduce/reduction.h"
#include "torch_npu/csrc/dtypes.h"
#include "torch_npu/csrc/errors.h"
#include "torch_npu/csrc/native_op.h"

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

/// What the arguments of an overload are to its operator.
struct Signature {
  c10::SmallVector<size_t, 2> operands, outs;
  std::optional<size_t> dims, keep, dtype;
  std::optional<size_t> half_to_float;  ///< must be false
  std::optional<size_t> operand_dtype;  ///< must be that
  size_t arguments = 0;

  /// Nothing where the overload takes something else.
  static std::optional<Signature> of(const LineOp& op, const c10::FunctionSchema& schema);

 private:
  bool take(size_t i, const c10::Argument& argument);
};

bool Signature::take(size_t i, const c10::Argument& argument) {
  if (argument.type()->kind() == c10::TypeKind::TensorType) {
    const bool written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    if (written) outs.push_back(i);
    if (!argument.is_out()) operands.push_back(i);
    return true;
  }
  const std::pair<const char*, std::optional<size_t>*> named[] = {{"dim", &dims},
                                                                  {"keepdim", &keep},
                                                                  {"dtype", &dtype},
                                                                  {"half_to_float", &half_to_float},
                                                                  {"input_dtype", &operand_dtype}};
  for (const auto& [name, place] : named)
    if (argument.name() == name) {
      *place = i;
      return true;
    }
  return false;
}

std::optional<Signature> Signature::of(const LineOp& op, const c10::FunctionSchema& schema) {
  Signature signature;
  signature.arguments = schema.arguments().size();
  for (size_t i = 0; i < schema.arguments().size(); ++i)
    if (!signature.take(i, schema.arguments()[i])) return std::nullopt;
  const size_t results = op.formula.results;
  const bool fits = signature.operands.size() == static_cast<size_t>(op.operands) &&
                    schema.returns().size() == results &&
                    (signature.outs.empty() || signature.outs.size() == results) &&
                    (op.reduces() || signature.dims.has_value());
  return fits ? std::optional(std::move(signature)) : std::nullopt;
}

/// The kernel of one overload of ATen's.
class LineKernel {
 public:
  LineKernel(const LineOp& op, Signature signature) : op_(op), signature_(std::move(signature)) {}

  Results operator()(Arguments arguments, OpCounter& counter) const;

 private:
  bool takes(const Tensor& operand, const Tensor& first) const;
  std::optional<Dims> dims(Arguments arguments, int64_t count) const;
  std::optional<c10::ScalarType> common_type(Arguments arguments, const Tensor& operand) const;
  c10::ScalarType type_of_result(size_t i, c10::ScalarType common) const;
  std::optional<Tensors> results(Arguments arguments, const Tensor& operand, at::IntArrayRef sizes,
                                 c10::ScalarType common) const;
  void launch(at::ArrayRef<Tensor> results, Arguments arguments, Dims over, DType common,
              OpCounter& counter) const;

  const Tensor& operand(Arguments arguments, size_t i) const {
    return arguments[signature_.operands[i]].toTensor();
  }
  bool has(Arguments arguments, std::optional<size_t> argument) const {
    return argument && !arguments[*argument].isNone();
  }

  const LineOp& op_;
  const Signature signature_;
};

bool LineKernel::takes(const Tensor& operand, const Tensor& first) const {
  return operand.defined() && dtype_of(operand.scalar_type()) &&
         operand.scalar_type() == first.scalar_type() && operand.sizes() == first.sizes() &&
         operand.device() == first.device();
}

/// Without any, all; of an operator that does not reduce, the one.
std::optional<Dims> LineKernel::dims(Arguments arguments, int64_t count) const {
  Dims all;
  for (int64_t d = 0; d < count; ++d) all.set(static_cast<size_t>(d));
  if (!has(arguments, signature_.dims)) return all;
  const IValue& given = arguments[*signature_.dims];
  c10::SmallVector<int64_t, 5> list;
  if (given.isInt())
    list.push_back(given.toInt());
  else
    for (const int64_t dim : given.toIntList()) list.push_back(dim);
  if (list.empty()) {
    // PyTorch's any and all take such a list at its word.
    return op_.gives(0) == Holds::kTruth ? std::nullopt : std::optional(all);
  }
  Dims dims;
  for (const int64_t dim : list) {
    const int64_t least = std::max<int64_t>(count, 1);
    if (dim < -least || dim >= least) return std::nullopt;
    const auto at = static_cast<size_t>(dim < 0 ? dim + least : dim);
    if (dims[at]) return std::nullopt;
    dims.set(at);
  }
  return dims & all;
}

std::optional<c10::ScalarType> LineKernel::common_type(Arguments arguments, const Tensor& operand) const {
  if (has(arguments, signature_.half_to_float) && arguments[*signature_.half_to_float].toBool())
    return std::nullopt;
  const c10::ScalarType type = operand.scalar_type();
  if (signature_.operand_dtype && arguments[*signature_.operand_dtype].toScalarType() != type)
    return std::nullopt;
  if (has(arguments, signature_.dtype)) return arguments[*signature_.dtype].toScalarType();
  if (!op_.widens) return type;
  if (!signature_.outs.empty()) return arguments[signature_.outs[0]].toTensor().scalar_type();
  return c10::isIntegralType(type, /*includeBool=*/true) ? at::kLong : type;
}

c10::ScalarType LineKernel::type_of_result(size_t i, c10::ScalarType common) const {
  switch (op_.gives(i)) {
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
std::optional<Tensors> LineKernel::results(Arguments arguments, const Tensor& operand, at::IntArrayRef sizes,
                                           c10::ScalarType common) const {
  Tensors results;
  for (size_t i = 0; i < op_.formula.results; ++i) {
    const c10::ScalarType type = type_of_result(i, common);
    if (signature_.outs.empty()) {
      results.push_back(at::empty(sizes, operand.options().dtype(type)));
      continue;
    }
    const Tensor& out = arguments[signature_.outs[i]].toTensor();
    if (out.scalar_type() != type || out.device() != operand.device()) return std::nullopt;
    results.push_back(out);
  }
  if (signature_.outs.empty()) return results;
  for (const Tensor& out : results) at::native::resize_output(out, sizes);
  for (const Tensor& out : results) {
    if (at::has_internal_overlap(out) == at::MemOverlap::Yes) return std::nullopt;
    for (const size_t argument : signature_.operands)
      if (shares(out, arguments[argument].toTensor(), !op_.reduces())) return std::nullopt;
    for (const Tensor& other : results)
      if (&other != &out && shares(out, other, false)) return std::nullopt;
  }
  return results;
}

Results LineKernel::operator()(Arguments arguments, OpCounter& counter) const {
  const Tensor& x = operand(arguments, 0);
  if (x.dim() > static_cast<int64_t>(Dims().size())) return std::nullopt;
  for (size_t i = 0; i < signature_.operands.size(); ++i)
    if (!takes(operand(arguments, i), x)) return std::nullopt;
  const auto over = dims(arguments, x.dim());
  const auto type = common_type(arguments, x);
  if (!over || !type) return std::nullopt;
  const auto common = dtype_of(*type);
  if (!common || !op_.dtypes.contains(*common)) return std::nullopt;
  const bool keep = has(arguments, signature_.keep) && arguments[*signature_.keep].toBool();
  at::IntArrayRef sizes = x.sizes();
  std::vector<int64_t> reduced;
  if (op_.reduces()) {
    reduced = anynpu::ops::reduced_sizes({sizes.data(), sizes.size()}, *over, keep);
    sizes = reduced;
  }
  if (x.numel() == 0 && !op_.of_nothing) return std::nullopt;
  auto made = results(arguments, x, sizes, *type);
  if (!made) return std::nullopt;
  if (made->front().numel() != 0) launch(*made, arguments, *over, *common, counter);
  return Results(std::in_place, made->begin(), made->end());
}

void LineKernel::launch(at::ArrayRef<Tensor> results, Arguments arguments, Dims over, DType common,
                        OpCounter& counter) const {
  std::vector<View> views;
  views.reserve(results.size() + signature_.operands.size());
  for (const Tensor& result : results) views.push_back(view_of(result));
  for (size_t i = 0; i < signature_.operands.size(); ++i) views.push_back(view_of(operand(arguments, i)));
  if (!op_.reduces()) {
    const size_t dim = over.none() ? 0 : static_cast<size_t>(std::countr_zero(over.to_ullong()));
    return enqueue_native(npu_call([&] { return prepare(op_, common, std::move(views), dim); }),
                          results.front(), counter);
  }
  Temporaries temporaries(results.front());
  auto launches = npu_call([&] {
    const std::span<const View> made(views.data(), results.size());
    return prepare(anynpu::ops::Reduction{op_, common, made, views.back(), over}, temporaries.take());
  });
  enqueue_native(std::move(launches), results.front(), counter);
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
    auto signature = Signature::of(row, op.schema());
    if (!signature) continue;
    add_native(aten, c10::toString(op.operator_name()), {row.name}, LineKernel(row, std::move(*signature)));
    return true;
  }
  return false;
}

}  // namespace torch_npu
