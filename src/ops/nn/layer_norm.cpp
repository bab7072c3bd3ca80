#include "ops/nn/layer_norm.h"

#include <cstdint>
#include <span>
#include <utility>

#include "ops/copy.h"
#include "ops/lines.h"
#include "ops/promotion.h"

namespace anynpu::ops {
namespace {

const float kOne = 1, kZero = 0;

/// The tensors of a call as matrices: what is normalized is a row. Those that do not lie so are copied,
/// before or after.
class Matrices {
 public:
  Matrices(const View& x, size_t split, const TakeMemory& take) : take_(take), split_(split) {
    for (size_t d = 0; d < x.sizes.size(); ++d) (d < split ? rows_ : cols_) *= x.sizes[d];
  }

  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }

  View whole(const View& tensor) { return matrix(tensor, split_, false); }
  View result(const View& tensor) { return matrix(tensor, split_, true); }
  /// One element for each column; the number for all where it is absent.
  View of_columns(const std::optional<View>& tensor, const float& otherwise) {
    if (!tensor) return {DType::kF32, const_cast<float*>(&otherwise), {rows_, cols_}, {0, 0}};
    return in_columns(matrix(*tensor, 0, false));
  }
  View result_of_columns(const std::optional<View>& tensor) {
    return in_columns(tensor ? matrix(*tensor, 0, true) : unused(cols_));
  }
  /// One element for each row.
  View of_rows(const View& tensor) { return in_rows(matrix(tensor, split_, false)); }
  View result_of_rows(const std::optional<View>& tensor) {
    return in_rows(tensor ? matrix(*tensor, split_, true) : unused(rows_));
  }

  /// The results first. `op` is of rows where `dim` is 1, of columns where it is 0.
  void launch(const LineOp& op, std::span<const View> views, size_t dim,
              std::span<const double> numbers = {}) {
    const DType common = promoted(views.subspan(op.formula.results));
    launches_.push_back(prepare(op, common, {views.begin(), views.end()}, dim, numbers));
  }
  std::vector<Launch> finish() {
    for (Launch& after : after_) launches_.push_back(std::move(after));
    return std::move(launches_);
  }

 private:
  View in_columns(const View& column) const {
    return {column.dtype, column.data, {rows_, cols_}, {0, column.strides.back()}};
  }
  View in_rows(const View& row) const {
    return {row.dtype, row.data, {rows_, cols_}, {row.strides.front(), 0}};
  }
  /// A result that nobody asked for.
  View unused(int64_t elements) const {
    return {DType::kF32, take_(elements * static_cast<int64_t>(sizeof(float))), {elements}, {1}};
  }

  /// The dimensions before `split` as one, and the others as another.
  static std::optional<View> two_dimensional(const View& view, size_t split) {
    const auto inner = view.merged(split, view.sizes.size());
    return inner ? inner->merged(0, split) : std::nullopt;
  }

  View matrix(const View& view, size_t split, bool written) {
    if (auto made = two_dimensional(view, split)) return *made;
    const View other = temporary(take_, view.dtype, view.sizes);
    if (written)
      after_.push_back(prepare_copy(view, other));
    else
      launches_.push_back(prepare_copy(other, view));
    return *two_dimensional(other, split);
  }

  const TakeMemory& take_;
  const size_t split_;  // the first dimension that is normalized
  int64_t rows_ = 1, cols_ = 1;
  std::vector<Launch> launches_, after_;
};

}  // namespace

std::vector<Launch> prepare(const LayerNorm& call, const TakeMemory& take) {
  static const LineOp& op = line_op("LayerNorm");
  Matrices matrices(call.x, call.split, take);
  if (matrices.rows() == 0 || matrices.cols() == 0) return {};
  const View views[] = {
      matrices.result(call.y), matrices.result_of_rows(call.mean),     matrices.result_of_rows(call.factor),
      matrices.whole(call.x),  matrices.of_columns(call.weight, kOne), matrices.of_columns(call.bias, kZero)};
  matrices.launch(op, views, 1, std::span(&call.eps, 1));
  return matrices.finish();
}

std::vector<Launch> prepare(const LayerNormBackward& call, const TakeMemory& take) {
  static const LineOp &op = line_op("LayerNormBackward"), &affine = line_op("LayerNormBackwardAffine");
  Matrices matrices(call.x, call.split, take);
  if (matrices.cols() == 0) return {};
  const View grad = matrices.whole(call.grad), x = matrices.whole(call.x), mean = matrices.of_rows(call.mean),
             factor = matrices.of_rows(call.factor);
  if (call.of_x && matrices.rows() != 0) {
    const View weight = matrices.of_columns(call.weight, kOne);
    const View views[] = {matrices.result(*call.of_x), grad, x, weight, mean, factor};
    matrices.launch(op, views, 1);
  }
  if (call.of_weight || call.of_bias) {
    const View of_weight = matrices.result_of_columns(call.of_weight),
               of_bias = matrices.result_of_columns(call.of_bias);
    const View views[] = {of_weight, of_bias, grad, x, mean, factor};
    matrices.launch(affine, views, 0);
  }
  return matrices.finish();
}

}  // namespace anynpu::ops
