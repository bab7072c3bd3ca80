#include "ops/nn/layer_norm.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <initializer_list>
#include <optional>
#include <utility>

#include "torch_npu/csrc/dtypes.h"
#include "torch_npu/csrc/errors.h"
#include "torch_npu/csrc/native_op.h"

namespace torch_npu {
namespace {

using anynpu::ops::View;
using at::Tensor;

bool computed(const Tensor& tensor, const Tensor& beside) {
  const auto dtype = dtype_of(tensor.scalar_type());
  return dtype && anynpu::ops::kAllFloats.contains(*dtype) && tensor.device() == beside.device();
}

/// The first dimension that is normalized. Nothing where `normalized` are not the last sizes of `x`, or where
/// that has no elements.
std::optional<size_t> split_of(const Tensor& x, at::IntArrayRef normalized) {
  const auto split = x.dim() - static_cast<int64_t>(normalized.size());
  if (normalized.empty() || split < 0 || x.numel() == 0 ||
      x.sizes().slice(static_cast<size_t>(split)) != normalized)
    return std::nullopt;
  return static_cast<size_t>(split);
}

/// A weight or bias; not defined where it is not given.
Tensor parameter(const c10::IValue& given) { return given.isNone() ? Tensor() : given.toTensor(); }

/// Whether kernels of our own take such a parameter, or it is absent.
bool fits(const Tensor& parameter, const Tensor& x, at::IntArrayRef normalized) {
  return !parameter.defined() || (computed(parameter, x) && parameter.sizes() == normalized);
}

std::optional<View> view_where_defined(const Tensor& tensor) {
  return tensor.defined() ? std::optional(view_of(tensor)) : std::nullopt;
}

/// The type of the statistics, as on the CPU: the tensors', or f32 where halves have parameters of f32.
std::optional<c10::ScalarType> statistics_type(const Tensor& x, std::initializer_list<Tensor> parameters) {
  c10::ScalarType type = x.scalar_type();
  for (const Tensor& parameter : parameters) {
    if (!parameter.defined() || parameter.scalar_type() == x.scalar_type()) continue;
    if (!at::isReducedFloatingType(x.scalar_type()) || parameter.scalar_type() != at::kFloat)
      return std::nullopt;
    type = at::kFloat;
  }
  return type;
}

/// native_layer_norm(input, normalized_shape, weight, bias, eps)
Results layer_norm(Arguments arguments, OpCounter& counter) {
  const Tensor &x = arguments[0].toTensor(), weight = parameter(arguments[2]), bias = parameter(arguments[3]);
  const auto normalized = arguments[1].toIntVector();
  const auto split = split_of(x, normalized);
  if (!computed(x, x) || !split || !fits(weight, x, normalized) || !fits(bias, x, normalized))
    return std::nullopt;
  const auto type = statistics_type(x, {weight, bias});
  if (!type) return std::nullopt;
  c10::SmallVector<int64_t, 5> sizes(x.sizes().begin(), x.sizes().end());
  std::fill(sizes.begin() + static_cast<ptrdiff_t>(*split), sizes.end(), 1);
  const Tensor y = at::empty_like(x, at::MemoryFormat::Contiguous);
  const Tensor mean = at::empty(sizes, x.options().dtype(*type)), factor = at::empty_like(mean);
  Temporaries temporaries(x);
  const anynpu::ops::LayerNorm call = {.split = *split,
                                       .x = view_of(x),
                                       .y = view_of(y),
                                       .weight = view_where_defined(weight),
                                       .bias = view_where_defined(bias),
                                       .eps = arguments[4].toDouble(),
                                       .mean = view_of(mean),
                                       .factor = view_of(factor)};
  enqueue_native(npu_call([&] { return prepare(call, temporaries.take()); }), x, counter);
  return {{y, mean, factor}};
}

/// native_layer_norm_backward(grad_out, input, normalized_shape, mean, rstd, weight, bias, output_mask)
Results layer_norm_backward(Arguments arguments, OpCounter& counter) {
  const Tensor &grad = arguments[0].toTensor(), &x = arguments[1].toTensor();
  const Tensor &mean = arguments[3].toTensor(), &factor = arguments[4].toTensor();
  const Tensor weight = parameter(arguments[5]);
  const auto normalized = arguments[2].toIntVector();
  const auto split = split_of(x, normalized);
  if (!computed(x, x) || !split || grad.sizes() != x.sizes() || grad.scalar_type() != x.scalar_type() ||
      grad.device() != x.device() || !fits(weight, x, normalized))
    return std::nullopt;
  for (const Tensor& statistic : {mean, factor})
    if (!computed(statistic, x) || statistic.dim() != x.dim()) return std::nullopt;
  const auto mask = arguments[7].toBoolList();
  const auto made = [&](size_t i, at::IntArrayRef sizes, const Tensor& like) {
    return mask[i] ? at::empty(sizes, like.options()) : Tensor();
  };
  const Tensor& of_parameters = weight.defined() ? weight : x;
  const Tensor of_x = made(0, x.sizes(), x), of_weight = made(1, normalized, of_parameters),
               of_bias = made(2, normalized, of_parameters);
  Temporaries temporaries(x);
  const anynpu::ops::LayerNormBackward call = {.split = *split,
                                               .grad = view_of(grad),
                                               .x = view_of(x),
                                               .mean = view_of(mean),
                                               .factor = view_of(factor),
                                               .weight = view_where_defined(weight),
                                               .of_x = view_where_defined(of_x),
                                               .of_weight = view_where_defined(of_weight),
                                               .of_bias = view_where_defined(of_bias)};
  enqueue_native(npu_call([&] { return prepare(call, temporaries.take()); }), x, counter);
  return {{of_x, of_weight, of_bias}};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  add_native(m, "native_layer_norm", {"LayerNorm"}, layer_norm);
  add_native(m, "native_layer_norm_backward", {"LayerNormBackward", "LayerNormBackwardAffine"},
             layer_norm_backward);
}

}  // namespace
}  // namespace torch_npu
