#include <ATen/WrapDimUtils.h>
#include <ATen/native/TypeProperties.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <optional>
#include <utility>
#include <vector>

#include "torch_npu/csrc/copy.h"
#include "torch_npu/csrc/dtypes.h"
#include "torch_npu/csrc/kernel_call.h"
#include "torch_npu/csrc/native_op.h"

namespace torch_npu {
namespace {

using at::Tensor;

/// What was once the only empty tensor, and still goes with tensors of any shape.
bool is_skipped(const Tensor& tensor) { return tensor.dim() == 1 && tensor.size(0) == 0; }

/// The one that all have, else contiguous.
at::MemoryFormat common_format(const std::vector<Tensor>& tensors) {
  const at::MemoryFormat format = tensors.front().suggest_memory_format();
  for (const Tensor& tensor : tensors)
    if (tensor.suggest_memory_format() != format) return at::MemoryFormat::Contiguous;
  return format;
}

/// The sizes of tensors one after another along `dim`. Nothing where they do not fit, or there are none.
std::optional<std::vector<int64_t>> sizes_of(const std::vector<Tensor>& tensors, int64_t given_dim) {
  std::optional<std::vector<int64_t>> sizes;
  int64_t dim = 0;
  for (const Tensor& tensor : tensors) {
    const auto type = tensor.scalar_type();
    const bool moved = dtype_of(type) || type == at::kComplexFloat || type == at::kComplexDouble;
    if (!moved || tensor.dim() == 0 || tensor.device() != tensors.front().device()) return std::nullopt;
    if (is_skipped(tensor)) continue;
    if (!sizes) {
      dim = at::maybe_wrap_dim(given_dim, tensor.dim());
      sizes = tensor.sizes().vec();
      (*sizes)[static_cast<size_t>(dim)] = 0;
    }
    if (static_cast<size_t>(tensor.dim()) != sizes->size()) return std::nullopt;
    for (size_t d = 0; d < sizes->size(); ++d)
      if (static_cast<int64_t>(d) == dim)
        (*sizes)[d] += tensor.size(dim);
      else if ((*sizes)[d] != tensor.size(static_cast<int64_t>(d)))
        return std::nullopt;
  }
  return sizes;
}

Results cat(const std::vector<Tensor>& tensors, int64_t dim, const Tensor* out, OpCounter& counter) {
  if (tensors.empty()) return std::nullopt;
  const auto sizes = sizes_of(tensors, dim);
  if (!sizes) return std::nullopt;
  const c10::ScalarType type = at::native::result_type(tensors);
  if (out != nullptr && !takes_result(*out, *sizes, type, tensors)) return std::nullopt;
  const Tensor result =
      out != nullptr ? *out
                     : at::empty(*sizes, tensors.front().options().dtype(type), common_format(tensors));
  counter.count_native();
  dim = at::maybe_wrap_dim(dim, result.dim());
  int64_t first = 0;
  for (const Tensor& tensor : tensors) {
    if (is_skipped(tensor)) continue;
    const int64_t size = tensor.size(dim);
    if (tensor.numel() != 0)
      enqueue_copy(tensor, result.narrow(dim, first, size), current_runtime_stream(result.device()));
    first += size;
  }
  return {{result}};
}

Results cat_new(Arguments arguments, OpCounter& counter) {
  return cat(arguments[0].toTensorVector(), arguments[1].toInt(), nullptr, counter);
}
Results cat_out(Arguments arguments, OpCounter& counter) {
  return cat(arguments[0].toTensorVector(), arguments[1].toInt(), &arguments[2].toTensor(), counter);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  add_native(m, "cat", {"Copy"}, cat_new);
  add_native(m, "cat.out", {"Copy"}, cat_out);
}

}  // namespace
}  // namespace torch_npu
