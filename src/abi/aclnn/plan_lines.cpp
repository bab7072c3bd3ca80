#include "abi/aclnn/plans.h"
#include "abi/aclnn/shapes.h"
#include "abi/aclnn/status.h"
#include "ops/lines.h"
#include "ops/promotion.h"

namespace anynpu::aclnn {
namespace {

using ops::LineOp;
using ops::View;
using tile::DType;

DType compute_type(std::span<const View> operands) {
  DType common = operands.front().dtype;
  for (const View& operand : operands) common = ops::promoted(common, operand.dtype);
  return ops::compute_type(common);
}

/// `op` on the lines along dimension `dim` of tensors of one shape, the results first. A tensor that has one
/// element for a line has stride 0 along it.
ops::Launch line_launch(const LineOp& op, std::span<const View> views, size_t dim,
                        std::span<const double> numbers = {}) {
  const ops::Iteration across(views, dim);
  const std::vector<tile::Literal> literals(numbers.begin(), numbers.end());
  return prepare(ops::LineCall{op, compute_type(views.subspan(op.formula.results)), across.sizes(),
                               views.front().sizes[dim], across.operands(), literals});
}

size_t wrapped(const Bound& argument, size_t dims) {
  const int64_t dim = std::get<int64_t>(argument.value);
  const auto count = static_cast<int64_t>(std::max<size_t>(dims, 1));
  check(dim >= -count && dim < count, argument.name, " is ", dim, "; ", -count, " to ", count - 1,
        " are accepted");
  return static_cast<size_t>(dim < 0 ? dim + count : dim);
}

const float kOne = 1, kZero = 0;

/// The operands of layer normalization as matrices: what is normalized is a row. Tensors that do not lie so
/// are copied, before or after.
class Matrices {
 public:
  Matrices(const Bound& input, const Bound& shape, Workspace& workspace) : workspace_(workspace) {
    const auto& sizes = input.view().sizes;
    const auto& normalized = std::get<std::vector<int64_t>>(shape.value);
    const bool fits = !normalized.empty() && normalized.size() <= sizes.size() &&
                      std::equal(normalized.rbegin(), normalized.rend(), sizes.rbegin());
    check(fits, shape.name, " is ", Listed{normalized}, "; one or more of the last sizes of ", input.name,
          ", ", Listed{sizes}, ", are accepted");
    split_ = sizes.size() - normalized.size();
    sizes_ = sizes;
    normalized_ = normalized;
    for (size_t d = 0; d < sizes.size(); ++d) (d < split_ ? rows_ : cols_) *= sizes[d];
  }

  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  Launches& launches() { return launches_; }

  View whole(const Bound& tensor) {
    check_type(tensor, ops::kAllFloats);
    check_shape(tensor, sizes_);
    return matrix(tensor, split_);
  }
  /// One element for each column; `otherwise` for all where it is absent.
  View of_columns(const Bound& tensor, const float& otherwise) {
    if (!tensor.given()) return {DType::kF32, const_cast<float*>(&otherwise), {rows_, cols_}, {0, 0}};
    check_type(tensor, ops::kAllFloats);
    check_shape(tensor, normalized_);
    const View column = matrix(tensor, 0);
    return {column.dtype, column.data, {rows_, cols_}, {0, column.strides[1]}};
  }
  /// One element for each row: in the workspace where it is absent.
  View of_rows(const Bound& tensor) {
    if (!tensor.given()) return {DType::kF32, take(DType::kF32, rows_), {rows_, cols_}, {1, 0}};
    check_type(tensor, ops::kAllFloats);
    std::vector<int64_t> sizes = sizes_;
    std::fill(sizes.begin() + static_cast<ptrdiff_t>(split_), sizes.end(), 1);
    check_shape(tensor, sizes);
    const View row = matrix(tensor, split_);
    return {row.dtype, row.data, {rows_, cols_}, {row.strides[0], 0}};
  }
  /// One element for each column, which nobody asked for.
  View unused_columns() { return {DType::kF32, take(DType::kF32, cols_), {rows_, cols_}, {0, 1}}; }

  Launches finish() {
    for (ops::Launch& after : after_) launches_.push_back(std::move(after));
    return std::move(launches_);
  }

 private:
  void* take(DType dtype, int64_t elements) {
    return workspace_.take(elements * static_cast<int64_t>(tile::size_of(dtype)));
  }

  /// The dimensions before `split` as one, and the others as another.
  static std::optional<View> two_dimensional(const View& view, size_t split) {
    const auto inner = view.merged(split, view.sizes.size());
    return inner ? inner->merged(0, split) : std::nullopt;
  }

  View matrix(const Bound& tensor, size_t split) {
    const View& view = tensor.view();
    if (auto made = two_dimensional(view, split)) return *made;
    const View other = ops::contiguous(view.dtype, take(view.dtype, view.elements()), view.sizes);
    if (tensor.written)
      after_.push_back(copied(view, other));
    else
      launches_.push_back(copied(other, view));
    return *two_dimensional(other, split);
  }

  Workspace& workspace_;
  size_t split_ = 0;  // the first dimension that is normalized
  std::vector<int64_t> sizes_, normalized_;
  int64_t rows_ = 1, cols_ = 1;
  Launches launches_, after_;
};

}  // namespace

Launches plan_along(const Call& call, Workspace&) {
  const LineOp& op = ops::line_op(call.op.name);
  const Bound& result = call.arguments.back();
  const auto& sizes = call[0].view().sizes;
  std::vector<View> views = {result.view()};
  for (const Bound& argument : call.arguments) {
    if (!argument.is_tensor) continue;
    check_type(argument, ops::kAllFloats);
    check_shape(argument, sizes);
    if (!argument.written) views.push_back(argument.view());
  }
  const size_t dim = wrapped(call[static_cast<size_t>(op.operands)], sizes.size());
  if (result.view().elements() == 0) return {};
  if (sizes.empty())
    for (View& view : views) view = view.expanded(std::vector<int64_t>{1});
  return {line_launch(op, views, dim)};
}

Launches plan_layer_norm(const Call& call, Workspace& workspace) {
  static const LineOp& op = ops::line_op("LayerNorm");
  Matrices matrices(call[0], call[1], workspace);
  const View x = matrices.whole(call[0]);
  const View weight = matrices.of_columns(call[2], kOne), bias = matrices.of_columns(call[3], kZero);
  const View y = matrices.whole(call[5]), mean = matrices.of_rows(call[6]),
             factor = matrices.of_rows(call[7]);
  if (matrices.rows() == 0 || matrices.cols() == 0) return {};
  const std::vector<View> views = {y, mean, factor, x, weight, bias};
  matrices.launches().push_back(line_launch(op, views, 1, std::vector{std::get<double>(call[4].value)}));
  return matrices.finish();
}

Launches plan_layer_norm_backward(const Call& call, Workspace& workspace) {
  static const LineOp &op = ops::line_op("LayerNormBackward"),
                      &affine = ops::line_op("LayerNormBackwardAffine");
  const auto& mask = std::get<std::vector<bool>>(call[7].value);
  check(mask.size() == 3, call[7].name, " has ", mask.size(), " values; 3 are accepted");
  for (size_t i = 0; i < 3; ++i)
    abi::check(!mask[i] || call[8 + i].given(), ACLNN_ERR_PARAM_NULLPTR, call[8 + i].name, " is null, but ",
               call[7].name, "[", i, "] is true");
  Matrices matrices(call[1], call[2], workspace);
  const View grad = matrices.whole(call[0]), x = matrices.whole(call[1]);
  const View mean = matrices.of_rows(call[3]), factor = matrices.of_rows(call[4]);
  const View weight = matrices.of_columns(call[5], kOne);
  if (matrices.cols() == 0) return {};
  if (mask[0]) {
    const std::vector<View> views = {matrices.whole(call[8]), grad, x, weight, mean, factor};
    if (matrices.rows() != 0) matrices.launches().push_back(line_launch(op, views, 1));
  }
  if (mask[1] || mask[2]) {
    const auto of = [&](size_t i) {
      return mask[i] ? matrices.of_columns(call[8 + i], kZero) : matrices.unused_columns();
    };
    const std::vector<View> views = {of(1), of(2), grad, x, mean, factor};
    matrices.launches().push_back(line_launch(affine, views, 0));
  }
  return matrices.finish();
}

}  // namespace anynpu::aclnn
