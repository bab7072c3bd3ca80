#include "ops/cube/attention.h"

#include <ATen/Context.h>
#include <ATen/NativeFunctions.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/scalar_tensor.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <optional>
#include <utility>

#include "torch_npu/csrc/dtypes.h"
#include "torch_npu/csrc/errors.h"
#include "torch_npu/csrc/generator.h"
#include "torch_npu/csrc/native_op.h"

namespace torch_npu {
namespace {

using anynpu::ops::Attention;
using anynpu::ops::View;
using at::Tensor;
using c10::IValue;

bool is_plain(const Tensor& tensor) {
  return tensor.layout() == at::kStrided && !tensor.is_nested() && !tensor._is_zerotensor();
}

bool is_float(const Tensor& tensor) {
  const auto dtype = dtype_of(tensor.scalar_type());
  return dtype && anynpu::ops::kAllFloats.contains(*dtype);
}

bool needs_gradient(const Tensor& tensor) { return at::GradMode::is_enabled() && tensor.requires_grad(); }

/// Whether kernels of our own serve the call: by types, and sizes, which may be symbols.
bool are_served(const Tensor& query, const Tensor& key, const Tensor& value, bool enable_gqa) {
  for (const Tensor* tensor : {&query, &key, &value})
    if (!is_plain(*tensor) || tensor->dim() != 4 || tensor->scalar_type() != query.scalar_type() ||
        tensor->device() != query.device())
      return false;
  const auto same = [](const Tensor& a, const Tensor& b, int64_t d) {
    return a.sym_size(d) == b.sym_size(d);
  };
  if (!is_float(query) || !same(query, key, 0) || !same(query, value, 0) || !same(key, value, 1) ||
      !same(key, value, 2) || !same(query, key, 3))
    return false;
  if (same(query, key, 1)) return true;
  return enable_gqa && key.sym_size(1) != 0 && query.sym_size(1) % key.sym_size(1) == 0;
}

/// A mask of truths, or one to add to scores; of one number for all keys that needs a gradient PyTorch's own
/// path gives it.
bool is_served(const Tensor& mask, const Tensor& query, const Tensor& key) {
  if (!is_plain(mask) || mask.device() != query.device() || mask.dim() > 4 || mask.dim() < 2 ||
      !(mask.scalar_type() == at::kBool || is_float(mask)) ||
      (needs_gradient(mask) && mask.sym_size(-1) != key.sym_size(2)))
    return false;
  const c10::SymInt sizes[] = {query.sym_size(0), query.sym_size(1), query.sym_size(2), key.sym_size(2)};
  for (int64_t d = 1; d <= mask.dim(); ++d)
    if (mask.sym_size(-d) != 1 && mask.sym_size(-d) != sizes[4 - d]) return false;
  return true;
}

/// Whether a transform of torch.func stands between the call and a tensor. What is below a gradient's
/// wrapper, vmap perhaps, cannot be told, and of kernels of our own vmap has no rule, nor are there tangents;
/// of the products that attention is composed of there are both.
bool is_transformed(const Tensor& tensor) {
  constexpr c10::DispatchKeySet kWrapped(
      {c10::DispatchKey::FuncTorchBatched, c10::DispatchKey::FuncTorchGradWrapper});
  return tensor.key_set().has_any(kWrapped);
}

/// Which of PyTorch's paths a call takes, decided by types and sizes alone, so that torch.export and
/// torch.compile trace it with tensors without memory. What kernels of our own do not serve takes the path
/// that it takes on the CPU.
int64_t choose(const Tensor& query, const Tensor& key, const Tensor& value, const std::optional<Tensor>& mask,
               double dropout, bool is_causal, std::optional<double> scale, bool enable_gqa) {
  const bool is_masked = mask && mask->defined();
  if (is_transformed(query) || is_transformed(key) || is_transformed(value) ||
      (is_masked && is_transformed(*mask)))
    return static_cast<int64_t>(at::SDPBackend::math);
  if (at::globalContext().userEnabledOverrideableSDP() && !(is_masked && is_causal) &&
      are_served(query, key, value, enable_gqa) && (!is_masked || is_served(*mask, query, key)))
    return static_cast<int64_t>(at::SDPBackend::overrideable);
  return at::native::_fused_sdp_choice_cpp(query, key, value, mask, dropout, is_causal, scale, enable_gqa);
}

[[maybe_unused]] const bool registered = [] {
  at::native::_fused_sdp_choice_stub.set_privateuse1_dispatch_ptr(&choose);
  return true;
}();

/// A new tensor with the dimensions of `like` in the same order in memory.
Tensor result_like(const Tensor& like, int64_t width) {
  if (width == like.size(-1)) return at::empty_like(like);
  std::array<int64_t, 4> sizes, strides, order = {0, 1, 2, 3};
  std::copy_n(like.sizes().begin(), sizes.size(), sizes.begin());
  sizes.back() = width;
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return like.stride(a) > like.stride(b); });
  int64_t stride = 1;
  for (auto d = order.rbegin(); d != order.rend(); ++d) {
    strides[static_cast<size_t>(*d)] = stride;
    stride *= sizes[static_cast<size_t>(*d)];
  }
  return at::empty_strided(sizes, strides, like.options());
}

Attention attention_of(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& bias,
                       bool is_causal, const IValue& scale) {
  Attention of = {view_of(query), view_of(key), view_of(value)};
  const auto width = static_cast<double>(std::max<int64_t>(query.size(3), 1));
  of.scale = scale.isNone() ? 1 / std::sqrt(width) : scale.toDouble();
  if (bias.defined()) {
    const std::array sizes = {query.size(0), query.size(1), query.size(2), key.size(2)};
    auto& view = bias.scalar_type() == at::kBool ? of.mask : of.bias;
    view = view_of(bias.expand(sizes));
  }
  if (is_causal) of.band.most = 0;
  return of;
}

Tensor tensor_or_none(const IValue& value) { return value.isNone() ? Tensor() : value.toTensor(); }

/// A number of the host, which a later call reads without waiting.
Tensor number(uint64_t value) {
  return at::scalar_tensor(static_cast<int64_t>(value), at::TensorOptions(at::kLong));
}

/// Nothing where PyTorch is to refuse the call.
bool takes(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& bias) {
  return are_served(query, key, value, true) && (!bias.defined() || is_served(bias.detach(), query, key));
}

/// (query, key, value, attn_bias, dropout_p, is_causal, return_debug_mask, *, scale)
Results attention(Arguments arguments, OpCounter& counter) {
  const Tensor &query = arguments[0].toTensor(), &key = arguments[1].toTensor(),
               &value = arguments[2].toTensor();
  const Tensor bias = tensor_or_none(arguments[3]);
  if (!takes(query, key, value, bias)) return std::nullopt;
  const double dropout = arguments[4].toDouble();
  TORCH_CHECK(dropout >= 0 && dropout <= 1, "dropout probability has to be between 0 and 1, but got ",
              dropout);
  Attention of = attention_of(query, key, value, bias, arguments[5].toBool(), arguments[7]);
  of.dropout.keep = 1 - dropout;
  if (dropout != 0) {
    const RandomCall call = random_call(std::nullopt, query.device().index());
    of.dropout.seed = call.seed;
    of.dropout.offset = call.offset;
  }
  const Tensor out = result_like(query, value.size(3));
  const auto sums = query.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const Tensor log_sum_exp = at::empty(query.sizes().slice(0, 3), query.options().dtype(sums));
  Temporaries temporaries(query);
  const anynpu::ops::AttentionForward call = {of, view_of(out), view_of(log_sum_exp.unsqueeze(-1))};
  enqueue_native(npu_call([&] { return prepare(call, temporaries.take()); }), query, counter);
  return {{out, log_sum_exp, Tensor(), Tensor(), query.size(2), key.size(2), number(of.dropout.seed),
           number(of.dropout.offset), Tensor()}};
}

/// (grad_out, query, key, value, attn_bias, grad_input_mask, out, logsumexp, cum_seq_q, cum_seq_k, max_q,
/// max_k, dropout_p, is_causal, philox_seed, philox_offset, *, scale)
Results attention_backward(Arguments arguments, OpCounter& counter) {
  const Tensor &grad = arguments[0].toTensor(), &query = arguments[1].toTensor(),
               &key = arguments[2].toTensor(), &value = arguments[3].toTensor(),
               &out = arguments[6].toTensor(), &log_sum_exp = arguments[7].toTensor();
  const auto wanted = arguments[5].toBoolList();
  if (!grad.defined()) return {{Tensor(), Tensor(), Tensor(), Tensor()}};  // the result was not used
  const Tensor bias = tensor_or_none(arguments[4]);
  if (!takes(query, key, value, bias)) return std::nullopt;
  Attention of = attention_of(query, key, value, bias, arguments[13].toBool(), arguments[16]);
  of.dropout.keep = 1 - arguments[12].toDouble();
  if (of.dropout.keep != 1) {
    of.dropout.seed = static_cast<uint64_t>(arguments[14].toTensor().item<int64_t>());
    of.dropout.offset = static_cast<uint64_t>(arguments[15].toTensor().item<int64_t>());
  }
  // Of the CPU's fused kernel, which knows no dropout and no gradient of a bias, tokens come before heads in
  // memory; beside a bias's gradient that of keys lies by columns.
  const auto gradient_like = [&](const Tensor& tensor) {
    if (of.dropout.keep != 1 || wanted[3]) return at::empty_like(tensor);
    const auto sizes = tensor.sizes();
    return at::empty({sizes[0], sizes[2], sizes[1], sizes[3]}, tensor.options()).transpose(1, 2);
  };
  const auto gradient_of_columns_like = [](const Tensor& tensor) {
    return at::empty_like(tensor.transpose(2, 3), at::MemoryFormat::Contiguous).transpose(2, 3);
  };
  const Tensor of_query = gradient_like(query), of_value = gradient_like(value);
  const Tensor of_key = wanted[3] ? gradient_of_columns_like(key) : gradient_like(key);
  const Tensor of_bias = wanted[3] ? at::empty_like(bias, at::MemoryFormat::Contiguous) : Tensor();
  Temporaries temporaries(query);
  anynpu::ops::AttentionBackward call = {.of = of,
                                         .out = view_of(out),
                                         .grad_out = view_of(grad),
                                         .log_sum_exp = view_of(log_sum_exp.unsqueeze(-1)),
                                         .grad_query = view_of(of_query),
                                         .grad_key = view_of(of_key),
                                         .grad_value = view_of(of_value)};
  if (wanted[3]) {
    std::vector<int64_t> sizes(static_cast<size_t>(4 - bias.dim()), 1);
    sizes.insert(sizes.end(), bias.sizes().begin(), bias.sizes().end());
    call.grad_bias = view_of(of_bias.view(sizes));
  }
  enqueue_native(npu_call([&] { return prepare(call, temporaries.take()); }), query, counter);
  const auto given = [&](size_t i, const Tensor& made) { return wanted[i] ? made : Tensor(); };
  return {{given(0, of_query), given(1, of_key), given(2, of_value), of_bias}};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_fused_sdp_choice", choose);
  add_native(m, "_scaled_dot_product_fused_attention_overrideable", {"Attention"}, attention);
  add_native(m, "_scaled_dot_product_fused_attention_overrideable_backward", {"AttentionBackward"},
             attention_backward);
}

}  // namespace
}  // namespace torch_npu
