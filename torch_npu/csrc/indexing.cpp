#include "ops/indexing.h"

#include <ATen/WrapDimUtils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <optional>
#include <utility>
#include <vector>

#include "ops/copy.h"
#include "torch_npu/csrc/dtypes.h"
#include "torch_npu/csrc/errors.h"
#include "torch_npu/csrc/native_op.h"

namespace torch_npu {
namespace {

using anynpu::ops::IndexingCall;
using anynpu::ops::IndexingOp;
using anynpu::tile::DType;
using at::Tensor;

/// With one dimension at least.
Tensor lifted(const Tensor& tensor) { return tensor.dim() == 0 ? tensor.view({1}) : tensor; }

/// One index for all elements of a slice of `dim`, as an index of those sizes.
Tensor spread(const Tensor& index, int64_t dim, at::IntArrayRef sizes) {
  std::vector<int64_t> shape(sizes.size(), 1);
  shape[static_cast<size_t>(dim)] = index.numel();
  return index.reshape(shape).expand(sizes);
}

/// Whether PyTorch takes elements of that type to be moved, and kernels of ours move them.
bool moves(const Tensor& tensor) {
  return dtype_of(tensor.scalar_type()) || tensor.scalar_type() == at::kComplexFloat;
}

bool are_indices(const Tensor& index, const Tensor& of) {
  return (index.scalar_type() == at::kLong || index.scalar_type() == at::kInt) &&
         index.device() == of.device();
}

/// No kernel looks at such indices, and PyTorch refuses some.
bool selects_of_nothing(const Tensor& index, const Tensor& from) {
  return from.numel() == 0 && index.numel() != 0;
}

/// Whether each of `sizes` but that of `dim` is at most the tensor's.
bool fits(at::IntArrayRef sizes, const Tensor& tensor, std::optional<int64_t> dim = std::nullopt) {
  if (static_cast<int64_t>(sizes.size()) != tensor.dim()) return false;
  for (int64_t d = 0; d < tensor.dim(); ++d)
    if (d != dim && sizes[static_cast<size_t>(d)] > tensor.size(d)) return false;
  return true;
}

/// Tensors of one rank, the last two of one shape.
void launch(const IndexingOp& op, int64_t dim, const Tensor& indexed, const Tensor& index,
            const Tensor& values, OpCounter& counter, int64_t skipped = -1) {
  if (index.numel() == 0) return;
  const auto type = [&](const Tensor& tensor) {
    return op.adds ? *dtype_of(tensor.scalar_type()) : anynpu::ops::bits_of(tensor.element_size());
  };
  const IndexingCall call = {op,
                             static_cast<size_t>(dim),
                             view_of(indexed, type(indexed)),
                             view_of(index, *dtype_of(index.scalar_type())),
                             view_of(values, type(values)),
                             skipped};
  enqueue_native(npu_call([&] { return prepare(call); }), indexed, counter);
}

/// What an operator without out= gives: a new tensor of those sizes. Nothing where `out` does not take it as
/// it is.
std::optional<Tensor> result_of(const Tensor* out, at::IntArrayRef sizes, const Tensor& like,
                                at::ArrayRef<Tensor> operands) {
  if (out == nullptr) return at::empty(sizes, like.options());
  return takes_result(*out, sizes, like.scalar_type(), operands) ? std::optional(*out) : std::nullopt;
}

Results selected(const Tensor& self, int64_t dim, const Tensor& index, const Tensor* out,
                 OpCounter& counter) {
  static const IndexingOp& op = anynpu::ops::indexing_op("IndexSelect");
  if (!are_indices(index, self) || index.dim() > 1 || self.dim() == 0 || !moves(self)) return std::nullopt;
  dim = at::maybe_wrap_dim(dim, self.dim());
  if (selects_of_nothing(index, self)) return std::nullopt;
  c10::SmallVector<int64_t, 6> sizes(self.sizes().begin(), self.sizes().end());
  sizes[static_cast<size_t>(dim)] = index.numel();
  const auto result = result_of(out, sizes, self, {self, index});
  if (!result) return std::nullopt;
  launch(op, dim, self, spread(index, dim, sizes), *result, counter);
  return {{*result}};
}

Results gathered(const Tensor& self, int64_t dim, const Tensor& index, const Tensor* out,
                 OpCounter& counter) {
  static const IndexingOp& op = anynpu::ops::indexing_op("Gather");
  if (!are_indices(index, self) || !moves(self)) return std::nullopt;
  dim = at::maybe_wrap_dim(dim, self.dim());
  const Tensor from = lifted(self), at_index = lifted(index);
  if (index.numel() != 0 && !fits(at_index.sizes(), from, dim)) return std::nullopt;
  const auto result = result_of(out, index.sizes(), self, {self, index});
  if (!result) return std::nullopt;
  launch(op, dim, from, at_index, lifted(*result), counter);
  return {{*result}};
}

/// Adds to `result`, which holds what is added to. Halves are summed in f32, and rounded once.
void add_to(const IndexingOp& op, const Tensor& result, int64_t dim, const Tensor& index,
            const Tensor& source, OpCounter& counter, int64_t skipped = -1) {
  const bool halves = at::isReducedFloatingType(result.scalar_type());
  const Tensor sums = halves ? result.to(at::kFloat) : result;
  launch(op, dim, sums, index, source, counter, skipped);
  if (halves) const_cast<Tensor&>(result).copy_(sums);
}

bool are_added(const Tensor& self, const Tensor& source) {
  const auto type = dtype_of(self.scalar_type());
  return type && anynpu::ops::kAllNumbers.contains(*type) && self.scalar_type() == source.scalar_type() &&
         self.device() == source.device();
}

/// Where sums go: `out`, which takes what `self` holds first; `self` itself; or a new tensor.
std::optional<Tensor> start_of(const Tensor& self, const Tensor* out, at::ArrayRef<Tensor> operands) {
  auto result = result_of(out, self.sizes(), self, operands);
  if (!result || result->is_same(self)) return result;
  if (out != nullptr && !takes_result(*out, self.sizes(), self.scalar_type(), {self})) return std::nullopt;
  result->copy_(self);
  return result;
}

Results scattered(const Tensor& self, int64_t dim, const Tensor& index, const Tensor& source,
                  const Tensor* out, OpCounter& counter) {
  static const IndexingOp& op = anynpu::ops::indexing_op("ScatterAdd");
  if (!are_indices(index, self) || !are_added(self, source)) return std::nullopt;
  dim = at::maybe_wrap_dim(dim, self.dim());
  const Tensor at_index = lifted(index), added = lifted(source);
  if (index.numel() != 0 && (!fits(at_index.sizes(), lifted(self), dim) || !fits(at_index.sizes(), added)))
    return std::nullopt;
  const auto result = start_of(self, out, {index, source});
  if (!result) return std::nullopt;
  if (index.numel() != 0)
    add_to(op, lifted(*result), dim, at_index,
           added.as_strided(at_index.sizes(), added.strides(), added.storage_offset()), counter);
  return {{*result}};
}

Results index_added(const Tensor& self, int64_t dim, const Tensor& index, const Tensor& source,
                    const c10::Scalar& alpha, const Tensor* out, OpCounter& counter) {
  static const IndexingOp& op = anynpu::ops::indexing_op("IndexAdd");
  if (!are_indices(index, self) || !are_added(self, source) || index.dim() != 1 || self.dim() == 0 ||
      self.dim() != source.dim() || !alpha.equal(1))
    return std::nullopt;
  dim = at::maybe_wrap_dim(dim, self.dim());
  for (int64_t d = 0; d < self.dim(); ++d)
    if (source.size(d) != (d == dim ? index.numel() : self.size(d))) return std::nullopt;
  const auto result = start_of(self, out, {index, source});
  if (!result) return std::nullopt;
  add_to(op, *result, dim, spread(index, dim, source.sizes()), source, counter);
  return {{*result}};
}

/// embedding(weight, indices, padding_idx, scale_grad_by_freq, sparse)
Results embedding(Arguments arguments, OpCounter& counter) {
  static const IndexingOp& op = anynpu::ops::indexing_op("Embedding");
  const Tensor &weight = arguments[0].toTensor(), &indices = arguments[1].toTensor();
  if (weight.dim() != 2 || !are_indices(indices, weight) || !moves(weight) ||
      selects_of_nothing(indices, weight))
    return std::nullopt;
  std::vector<int64_t> sizes(indices.sizes().begin(), indices.sizes().end());
  sizes.push_back(weight.size(1));
  const Tensor result = at::empty(sizes, weight.options()),
               rows = result.view({indices.numel(), weight.size(1)});
  launch(op, 0, weight, spread(indices.reshape({-1}), 0, rows.sizes()), rows, counter);
  return {{result}};
}

/// embedding_dense_backward(grad_output, indices, num_weights, padding_idx, scale_grad_by_freq)
Results embedding_backward(Arguments arguments, OpCounter& counter) {
  static const IndexingOp& op = anynpu::ops::indexing_op("EmbeddingDenseBackward");
  const Tensor &grad = arguments[0].toTensor(), &indices = arguments[1].toTensor();
  if (!are_indices(indices, grad) || !are_added(grad, grad) || grad.dim() != indices.dim() + 1 ||
      grad.sizes().slice(0, static_cast<size_t>(indices.dim())) != indices.sizes() || arguments[4].toBool())
    return std::nullopt;
  const Tensor rows = grad.reshape({indices.numel(), grad.size(-1)});
  const Tensor result = at::zeros({arguments[2].toInt(), grad.size(-1)}, grad.options());
  add_to(op, result, 0, spread(indices.reshape({-1}), 0, rows.sizes()), rows, counter, arguments[3].toInt());
  return {{result}};
}

const Tensor* last_of(Arguments arguments) { return &arguments.back().toTensor(); }

Results index_select(Arguments a, OpCounter& counter) {
  return selected(a[0].toTensor(), a[1].toInt(), a[2].toTensor(), nullptr, counter);
}
Results index_select_out(Arguments a, OpCounter& counter) {
  return selected(a[0].toTensor(), a[1].toInt(), a[2].toTensor(), last_of(a), counter);
}
Results gather(Arguments a, OpCounter& counter) {
  return gathered(a[0].toTensor(), a[1].toInt(), a[2].toTensor(), nullptr, counter);
}
Results gather_out(Arguments a, OpCounter& counter) {
  return gathered(a[0].toTensor(), a[1].toInt(), a[2].toTensor(), last_of(a), counter);
}
Results scatter_add(Arguments a, OpCounter& counter) {
  return scattered(a[0].toTensor(), a[1].toInt(), a[2].toTensor(), a[3].toTensor(), nullptr, counter);
}
Results scatter_add_in_place(Arguments a, OpCounter& counter) {
  return scattered(a[0].toTensor(), a[1].toInt(), a[2].toTensor(), a[3].toTensor(), &a[0].toTensor(),
                   counter);
}
Results scatter_add_out(Arguments a, OpCounter& counter) {
  return scattered(a[0].toTensor(), a[1].toInt(), a[2].toTensor(), a[3].toTensor(), last_of(a), counter);
}
Results index_add(Arguments a, OpCounter& counter) {
  return index_added(a[0].toTensor(), a[1].toInt(), a[2].toTensor(), a[3].toTensor(), a[4].toScalar(),
                     nullptr, counter);
}
Results index_add_in_place(Arguments a, OpCounter& counter) {
  return index_added(a[0].toTensor(), a[1].toInt(), a[2].toTensor(), a[3].toTensor(), a[4].toScalar(),
                     &a[0].toTensor(), counter);
}
Results index_add_out(Arguments a, OpCounter& counter) {
  return index_added(a[0].toTensor(), a[1].toInt(), a[2].toTensor(), a[3].toTensor(), a[4].toScalar(),
                     last_of(a), counter);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  add_native(m, "embedding", {"Embedding"}, embedding);
  add_native(m, "embedding_dense_backward", {"EmbeddingDenseBackward"}, embedding_backward);
  add_native(m, "gather", {"Gather"}, gather);
  add_native(m, "gather.out", {"Gather"}, gather_out);
  add_native(m, "index_add", {"IndexAdd"}, index_add);
  add_native(m, "index_add.out", {"IndexAdd"}, index_add_out);
  add_native(m, "index_add_", {"IndexAdd"}, index_add_in_place);
  add_native(m, "index_select", {"IndexSelect"}, index_select);
  add_native(m, "index_select.out", {"IndexSelect"}, index_select_out);
  add_native(m, "scatter_add", {"ScatterAdd"}, scatter_add);
  add_native(m, "scatter_add.out", {"ScatterAdd"}, scatter_add_out);
  add_native(m, "scatter_add_", {"ScatterAdd"}, scatter_add_in_place);
}

}  // namespace
}  // namespace torch_npu
