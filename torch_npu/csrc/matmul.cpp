#include "ops/cube/matmul.h"

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <array>
#include <memory>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "torch_npu/csrc/dtypes.h"
#include "torch_npu/csrc/errors.h"
#include "torch_npu/csrc/kernel_call.h"
#include "torch_npu/csrc/native_op.h"
#include "torch_npu/csrc/packed_weights.h"

namespace torch_npu {
namespace {

using anynpu::ops::Matmul;
using at::Tensor;

bool is_computed(const Tensor& left, const Tensor& right) {
  const auto dtype = dtype_of(left.scalar_type());
  return dtype && anynpu::ops::kProductTypes.contains(*dtype) && left.scalar_type() == right.scalar_type() &&
         left.device() == right.device();
}

/// What is added to a product: `beta` times a tensor that is broadcast to it, and the factor of the product.
struct Added {
  Tensor tensor;
  c10::Scalar beta, alpha;
};

/// `number` as a factor of a product of such matrices; nothing where PyTorch is to refuse it.
std::optional<double> factor(const c10::Scalar& number, const Tensor& matrix) {
  const auto literal = literal_of(number, *dtype_of(matrix.scalar_type()));
  if (!literal) return std::nullopt;
  return std::visit([](auto value) { return static_cast<double>(value); }, *literal);
}

/// Whether there is left @ right of two matrices, or batches of them.
bool fit(int64_t rank, const Tensor& left, const Tensor& right) {
  return left.dim() == rank && right.dim() == rank && left.size(-1) == right.size(-2) &&
         (rank == 2 || left.size(0) == right.size(0));
}

/// Enqueues a product, of right as it is, or packed.
void enqueue_product(Matmul call, const Tensor& right, const Tensor& result, OpCounter& counter) {
  std::shared_ptr<const PackedWeight> packed;  // until the product is enqueued
  if (right.dim() == 2)
    packed = packed_weight(right, call.left.sizes[0], current_runtime_stream(result.device()));
  if (packed != nullptr) call.packed = packed->view;
  Temporaries temporaries(result);
  enqueue_native(npu_call([&] { return prepare(call, temporaries.take()); }), result, counter);
}

/// Of two tensors of `rank` dimensions: matrices, or batches of them. Nothing where PyTorch is to refuse
/// them.
Results product(int64_t rank, const Tensor& left, const Tensor& right, const Tensor* out,
                const std::optional<Added>& added, OpCounter& counter) {
  if (!is_computed(left, right) || !fit(rank, left, right)) return std::nullopt;
  c10::SmallVector<int64_t, 3> sizes(left.sizes().begin(), left.sizes().end());
  sizes.back() = right.size(-1);
  std::vector<Tensor> operands = {left, right};
  std::optional<double> beta, alpha;
  if (added) {
    const Tensor& tensor = added->tensor;
    beta = factor(added->beta, left);
    alpha = factor(added->alpha, left);
    if (!beta || !alpha || !is_computed(left, tensor) || !at::is_expandable_to(tensor.sizes(), sizes))
      return std::nullopt;
    const bool is_out = out != nullptr && out->is_same(tensor);
    if (!is_out) operands.push_back(tensor);
  }
  if (out != nullptr && !takes_result(*out, sizes, left.scalar_type(), operands)) return std::nullopt;
  const Tensor result = out != nullptr ? *out : at::empty(sizes, left.options());
  Matmul call = {view_of(left), view_of(right), view_of(result)};
  if (added) {
    call.added = view_of(added->tensor);
    call.beta = *beta;
    call.alpha = *alpha;
  }
  enqueue_product(std::move(call), right, result, counter);
  return {{result}};
}

/// (self, mat2[, out]): of bytes, whose sums are i32.
Results of_bytes(Arguments arguments, OpCounter& counter) {
  const Tensor &left = arguments[0].toTensor(), &right = arguments[1].toTensor();
  const Tensor* out = arguments.size() > 2 ? &arguments[2].toTensor() : nullptr;
  if (left.scalar_type() != c10::ScalarType::Char || right.scalar_type() != c10::ScalarType::Char ||
      left.device() != right.device() || !fit(2, left, right))
    return std::nullopt;
  const std::array<int64_t, 2> sizes = {left.size(0), right.size(1)};
  if (out != nullptr && !takes_result(*out, sizes, c10::ScalarType::Int, {left, right})) return std::nullopt;
  const Tensor result = out != nullptr ? *out : at::empty(sizes, left.options().dtype(at::kInt));
  enqueue_product({view_of(left), view_of(right), view_of(result)}, right, result, counter);
  return {{result}};
}

/// (left, right, *[, out])
template <int64_t rank>
Results of_two(Arguments arguments, OpCounter& counter) {
  const Tensor* out = arguments.size() > 2 ? &arguments[2].toTensor() : nullptr;
  return product(rank, arguments[0].toTensor(), arguments[1].toTensor(), out, std::nullopt, counter);
}

enum class Writes : uint8_t { kNew, kSelf, kOut };

/// (self, left, right, *, beta, alpha[, out])
template <int64_t rank, Writes writes>
Results of_three(Arguments arguments, OpCounter& counter) {
  const Tensor& self = arguments[0].toTensor();
  const Tensor* out = writes == Writes::kSelf  ? &self
                      : writes == Writes::kOut ? &arguments[5].toTensor()
                                               : nullptr;
  const Added added = {self, arguments[3].toScalar(), arguments[4].toScalar()};
  return product(rank, arguments[1].toTensor(), arguments[2].toTensor(), out, added, counter);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, aten) {
  const auto add = [&](const char* name, NativeKernel kernel) {
    add_native(aten, name, {"Gemm"}, std::move(kernel));
  };
  add("mm", of_two<2>);
  add("mm.out", of_two<2>);
  add("_int_mm", of_bytes);
  add("_int_mm.out", of_bytes);
  add("bmm", of_two<3>);
  add("bmm.out", of_two<3>);
  add("addmm", of_three<2, Writes::kNew>);
  add("addmm_", of_three<2, Writes::kSelf>);
  add("addmm.out", of_three<2, Writes::kOut>);
  add("baddbmm", of_three<3, Writes::kNew>);
  add("baddbmm_", of_three<3, Writes::kSelf>);
  add("baddbmm.out", of_three<3, Writes::kOut>);
}

}  // namespace torch_npu
