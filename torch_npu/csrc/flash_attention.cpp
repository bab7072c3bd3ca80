// Ascend's own operators of attention: npu::npu_fusion_attention and its gradients.

#include "ops/cube/flash_attention.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include <algorithm>
#include <cctype>
#include <optional>
#include <string>
#include <tuple>

#include "torch_npu/csrc/dtypes.h"
#include "torch_npu/csrc/errors.h"
#include "torch_npu/csrc/generator.h"
#include "torch_npu/csrc/native_op.h"

namespace torch_npu {
namespace {

using anynpu::ops::FlashAttention;
using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

constexpr const char *kForward = "npu_fusion_attention", *kBackward = "npu_fusion_attention_grad";

/// What both operators are called with, beside what is of one of them.
struct Call {
  const char* op;
  const Tensor &query, &key, &value;
  int64_t heads;
  c10::string_view layout;
  const OptionalTensor &pse, &padding_mask, &mask;
  double scale, keep;
  int64_t before, after;
  at::OptionalIntArrayRef prefix, query_ends, key_ends;
  int64_t mode;
  c10::string_view softmax_layout;
};

bool is_there(const OptionalTensor& tensor) { return tensor && tensor->defined(); }

/// A tensor that kernels of our own take, on the device of the queries.
anynpu::ops::View view_of(const Call& call, const char* name, const Tensor& tensor) {
  TORCH_CHECK(tensor.device() == call.query.device() && tensor.layout() == at::kStrided, call.op, ": ", name,
              " is a ", tensor.layout(), " tensor on ", tensor.device(), "; dense ones on ",
              call.query.device(), ", where query is, are accepted");
  TORCH_CHECK(dtype_of(tensor.scalar_type()), call.op, ": ", name, " is of ", tensor.scalar_type(),
              ", which kernels on npu do not take");
  return torch_npu::view_of(tensor);
}

std::vector<int64_t> listed(at::OptionalIntArrayRef numbers) {
  return numbers ? numbers->vec() : std::vector<int64_t>();
}

FlashAttention attention_of(const Call& call) {
  TORCH_CHECK_NOT_IMPLEMENTED(!is_there(call.padding_mask), call.op,
                              ": padding_mask is given; only None is supported");
  FlashAttention of;
  of.query = view_of(call, "query", call.query);
  of.key = view_of(call, "key", call.key);
  of.value = view_of(call, "value", call.value);
  of.layout = std::string(call.layout);
  std::transform(of.layout.begin(), of.layout.end(), of.layout.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::toupper(letter)); });
  of.heads = call.heads;
  of.scale = call.scale;
  if (is_there(call.pse)) of.bias = view_of(call, "pse", *call.pse);
  if (is_there(call.mask)) of.mask = view_of(call, "atten_mask", *call.mask);
  of.mode = call.mode;
  of.before = call.before;
  of.after = call.after;
  of.prefix = listed(call.prefix);
  of.query_ends = listed(call.query_ends);
  of.key_ends = listed(call.key_ends);
  of.dropout.keep = call.keep;
  TORCH_CHECK(call.softmax_layout.empty() || (call.softmax_layout == "TND" && of.is_packed()), call.op,
              ": softmax_layout is \"", call.softmax_layout,
              "\"; \"\", and with input_layout TND \"TND\", are "
              "accepted");
  of.statistics_by_token = !call.softmax_layout.empty();
  return of;
}

/// The sizes of the result: the queries', but as wide as the values.
std::vector<int64_t> result_sizes(const FlashAttention& of) {
  std::vector<int64_t> sizes = of.query.sizes;
  const int64_t width = of.value.sizes.back(), keys = of.key.sizes.back(), queries = sizes.back();
  const bool apart = of.layout != "BSH" && of.layout != "SBH";
  sizes.back() = apart || keys == 0 ? width : width * queries / keys;
  return sizes;
}

std::tuple<Tensor, Tensor, Tensor, Tensor, int64_t, int64_t, int64_t> fusion_attention(
    const Tensor& query, const Tensor& key, const Tensor& value, int64_t head_num,
    c10::string_view input_layout, const OptionalTensor& pse, const OptionalTensor& padding_mask,
    const OptionalTensor& atten_mask, double scale, double keep_prob, int64_t pre_tockens,
    int64_t next_tockens, int64_t /*inner_precise*/, at::OptionalIntArrayRef prefix,
    at::OptionalIntArrayRef actual_seq_qlen, at::OptionalIntArrayRef actual_seq_kvlen, int64_t sparse_mode,
    bool /*gen_mask_parallel*/, bool /*sync*/, c10::string_view softmax_layout) {
  static OpCounter& counter = op_counter(std::string("npu::") + kForward);
  FlashAttention of = attention_of({kForward, query, key, value, head_num, input_layout, pse, padding_mask,
                                    atten_mask, scale, keep_prob, pre_tockens, next_tockens, prefix,
                                    actual_seq_qlen, actual_seq_kvlen, sparse_mode, softmax_layout});
  const int64_t weights = npu_call([&] { return of.weights(); });
  if (keep_prob != 1) {
    const RandomCall call = random_call(std::nullopt, query.device().index());
    of.dropout.seed = call.seed;
    of.dropout.offset = call.offset;
  }
  constexpr int64_t kRepeats = FlashAttention::kRepeats;
  const auto sizes = query.sizes();
  const std::vector<int64_t> rows = of.is_packed()
                                        ? std::vector{sizes[0], sizes[1], kRepeats}
                                        : std::vector{of.layout == "SBH" ? sizes[1] : sizes[0], head_num,
                                                      of.layout == "BNSD"  ? sizes[2]
                                                      : of.layout == "SBH" ? sizes[0]
                                                                           : sizes[1],
                                                      kRepeats};
  const Tensor out = at::empty(result_sizes(of), query.options()),
               maximum = at::empty(rows, query.options().dtype(at::kFloat)), total = at::empty_like(maximum);
  Temporaries temporaries(query);
  const anynpu::ops::FlashAttentionForward call = {of, torch_npu::view_of(out), torch_npu::view_of(maximum),
                                                   torch_npu::view_of(total)};
  enqueue_native(npu_call([&] { return prepare(call, temporaries.take()); }), query, counter);
  return {out,
          maximum,
          total,
          at::empty({0}, query.options()),
          static_cast<int64_t>(of.dropout.seed),
          static_cast<int64_t>(of.dropout.offset),
          weights};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> fusion_attention_grad(
    const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& dy, int64_t head_num,
    c10::string_view input_layout, const OptionalTensor& pse, const OptionalTensor& padding_mask,
    const OptionalTensor& atten_mask, const OptionalTensor& softmax_max, const OptionalTensor& softmax_sum,
    const OptionalTensor& /*softmax_in*/, const OptionalTensor& attention_in, double scale_value,
    double keep_prob, int64_t pre_tockens, int64_t next_tockens, int64_t /*inner_precise*/, int64_t seed,
    int64_t offset, int64_t /*numels*/, at::OptionalIntArrayRef prefix,
    at::OptionalIntArrayRef actual_seq_qlen, at::OptionalIntArrayRef actual_seq_kvlen, int64_t sparse_mode,
    bool /*gen_mask_parallel*/, bool /*sync*/, c10::string_view softmax_layout, bool needs_dpse) {
  static OpCounter& counter = op_counter(std::string("npu::") + kBackward);
  const Call given = {kBackward,        query,       key,           value,      head_num,
                      input_layout,     pse,         padding_mask,  atten_mask, scale_value,
                      keep_prob,        pre_tockens, next_tockens,  prefix,     actual_seq_qlen,
                      actual_seq_kvlen, sparse_mode, softmax_layout};
  FlashAttention of = attention_of(given);
  of.dropout.seed = static_cast<uint64_t>(seed);
  of.dropout.offset = static_cast<uint64_t>(offset);
  of.names.out = "attention_in";
  for (const auto& [tensor, name] : {std::pair{&softmax_max, "softmax_max"},
                                     {&softmax_sum, "softmax_sum"},
                                     {&attention_in, "attention_in"}})
    TORCH_CHECK(is_there(*tensor), kBackward, ": ", name,
                " is None; what npu_fusion_attention gave is accepted");
  const auto gradient_like = [](const Tensor& tensor) {
    return at::empty_like(tensor, at::MemoryFormat::Contiguous);
  };
  const Tensor of_query = gradient_like(query), of_key = gradient_like(key), of_value = gradient_like(value),
               of_pse = is_there(pse) && needs_dpse ? gradient_like(*pse) : Tensor();
  anynpu::ops::FlashAttentionBackward call = {.of = of,
                                              .out = view_of(given, "attention_in", *attention_in),
                                              .grad_out = view_of(given, "dy", dy),
                                              .maximum = view_of(given, "softmax_max", *softmax_max),
                                              .total = view_of(given, "softmax_sum", *softmax_sum),
                                              .grad_query = torch_npu::view_of(of_query),
                                              .grad_key = torch_npu::view_of(of_key),
                                              .grad_value = torch_npu::view_of(of_value)};
  if (of_pse.defined()) call.grad_bias = torch_npu::view_of(of_pse);
  Temporaries temporaries(query);
  enqueue_native(npu_call([&] { return prepare(call, temporaries.take()); }), query, counter);
  return {of_query, of_key, of_value, of_pse};
}

TORCH_LIBRARY_FRAGMENT(npu, m) {
  m.def(
      "npu_fusion_attention(Tensor query, Tensor key, Tensor value, int head_num, str input_layout, "
      "Tensor? pse=None, Tensor? padding_mask=None, Tensor? atten_mask=None, float scale=1., "
      "float keep_prob=1., int pre_tockens=2147483647, int next_tockens=2147483647, int inner_precise=0, "
      "int[]? prefix=None, int[]? actual_seq_qlen=None, int[]? actual_seq_kvlen=None, int sparse_mode=0, "
      "bool gen_mask_parallel=True, bool sync=False, str softmax_layout=\"\") -> (Tensor, Tensor, Tensor, "
      "Tensor, int, int, int)");
  m.def(
      "npu_fusion_attention_grad(Tensor query, Tensor key, Tensor value, Tensor dy, int head_num, "
      "str input_layout, *, Tensor? pse=None, Tensor? padding_mask=None, Tensor? atten_mask=None, "
      "Tensor? softmax_max=None, Tensor? softmax_sum=None, Tensor? softmax_in=None, "
      "Tensor? attention_in=None, float scale_value=1., float keep_prob=1., int pre_tockens=2147483647, "
      "int next_tockens=2147483647, int inner_precise=0, int seed=0, int offset=0, int numels=0, "
      "int[]? prefix=None, int[]? actual_seq_qlen=None, int[]? actual_seq_kvlen=None, int sparse_mode=0, "
      "bool gen_mask_parallel=True, bool sync=False, str softmax_layout=\"\", bool needs_dpse=True) -> "
      "(Tensor, Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(npu, PrivateUse1, m) {
  m.impl(kForward, fusion_attention);
  m.impl(kBackward, fusion_attention_grad);
}

TORCH_LIBRARY_IMPL(npu, AutogradPrivateUse1, m) {
  m.impl(kBackward, torch::autograd::autogradNotImplementedFallback());
}

}  // namespace
}  // namespace torch_npu
