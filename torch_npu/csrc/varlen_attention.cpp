// Attention of packed sequences as torch.nn.attention.varlen calls it.

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <tuple>
#include <vector>

#include "ops/cube/attention.h"
#include "torch_npu/csrc/dtypes.h"
#include "torch_npu/csrc/errors.h"
#include "torch_npu/csrc/native_op.h"

namespace torch_npu {
namespace {

using anynpu::ops::Attention;
using anynpu::ops::Band;
using at::Tensor;
using c10::SymInt;
using OptionalTensor = std::optional<Tensor>;

constexpr const char *kForward = "_flash_attention_forward", *kBackward = "_flash_attention_backward";

/// Tokens of a sequence.
struct Range {
  int64_t first, count;
};

/// The sequences that cumulative positions, which start with 0, cut so many tokens into. Waits for them.
std::vector<Range> ranges(const char* op, const char* name, const Tensor& positions, int64_t tokens) {
  TORCH_CHECK(
      positions.dim() == 1 && positions.numel() >= 1 && at::isIntegralType(positions.scalar_type(), false),
      op, ": ", name, " is ", positions.scalar_type(), " of shape ", positions.sizes(),
      "; one dimension of integers is accepted, a number more than there are sequences");
  const Tensor host = positions.to(at::kCPU, at::kLong);
  const auto ends = host.accessor<int64_t, 1>();
  TORCH_CHECK(ends[0] == 0, op, ": ", name, " starts with ", ends[0], "; 0 is accepted");
  std::vector<Range> made;
  for (int64_t i = 1; i < ends.size(0); ++i) {
    TORCH_CHECK(ends[i] >= ends[i - 1] && ends[i] <= tokens, op, ": ", name, "[", i, "] is ", ends[i],
                " after ", ends[i - 1], "; positions that do not fall, to ", tokens,
                " tokens at most, are accepted");
    made.push_back({ends[i - 1], ends[i] - ends[i - 1]});
  }
  return made;
}

/// As one batch x heads x tokens x width, of tokens x heads x width.
anynpu::ops::View part_of(const Tensor& all, const Range& range) {
  return view_of(all.narrow(0, range.first, range.count).transpose(0, 1).unsqueeze(0));
}
/// The same of heads x tokens.
anynpu::ops::View row_part_of(const Tensor& all, const Range& range) {
  return view_of(all.narrow(1, range.first, range.count).unsqueeze(0).unsqueeze(-1));
}

/// What forward and backward are called with alike.
struct Call {
  const char* op;
  const Tensor &query, &key, &value;
  const OptionalTensor &query_positions, &key_positions;
  double dropout;
  bool is_causal;
  std::optional<double> scale;
  const std::optional<SymInt>&left, &right;
};

/// Sequences of queries and of their keys, and the attention of each.
struct Sequences {
  std::vector<Range> queries, keys;
  std::vector<Attention> calls;
};

void check(const Call& call) {
  const Tensor &query = call.query, &key = call.key, &value = call.value;
  TORCH_CHECK_NOT_IMPLEMENTED(call.query_positions && call.key_positions, call.op,
                              " on npu serves packed sequences only: cum_seq_q or cum_seq_k is None");
  TORCH_CHECK_NOT_IMPLEMENTED(call.dropout == 0, call.op, " on npu: dropout_p is ", call.dropout,
                              "; 0 is supported");
  for (const Tensor* tensor : {&query, &key, &value})
    TORCH_CHECK(tensor->dim() == 3 && tensor->scalar_type() == query.scalar_type() &&
                    tensor->device() == query.device() && dtype_of(tensor->scalar_type()),
                call.op, ": queries are ", query.scalar_type(), query.sizes(), ", keys ", key.scalar_type(),
                key.sizes(), ", values ", value.scalar_type(), value.sizes(),
                "; tokens x heads x width of one type on one device are accepted");
}

Sequences sequences_of(const Call& call, const OptionalTensor& used_keys) {
  check(call);
  Sequences made;
  made.queries = ranges(call.op, "cum_seq_q", *call.query_positions, call.query.size(0));
  made.keys = ranges(call.op, "cum_seq_k", *call.key_positions, call.key.size(0));
  TORCH_CHECK(made.queries.size() == made.keys.size(), call.op, ": cum_seq_q is of ", made.queries.size(),
              " sequences, cum_seq_k of ", made.keys.size(), "; as many are accepted");
  if (used_keys && used_keys->defined()) {
    const Tensor host = used_keys->to(at::kCPU, at::kLong).contiguous();
    TORCH_CHECK(host.numel() == static_cast<int64_t>(made.keys.size()), call.op, ": seqused_k has ",
                host.numel(), " numbers; one for each of ", made.keys.size(), " sequences is accepted");
    for (size_t i = 0; i < made.keys.size(); ++i) {
      const int64_t used = host.const_data_ptr<int64_t>()[i];
      TORCH_CHECK(used >= 0 && used <= made.keys[i].count, call.op, ": seqused_k[", i, "] is ", used,
                  "; 0 to the sequence's ", made.keys[i].count, " keys are accepted");
      made.keys[i].count = used;
    }
  }
  const auto distance = [](const std::optional<SymInt>& window) {
    return window ? window->expect_int() : int64_t{-1};
  };
  const int64_t left = distance(call.left), right = call.is_causal ? 0 : distance(call.right);
  const auto width = static_cast<double>(std::max<int64_t>(call.query.size(2), 1));
  for (size_t i = 0; i < made.queries.size(); ++i) {
    Attention of = {part_of(call.query, made.queries[i]), part_of(call.key, made.keys[i]),
                    part_of(call.value, made.keys[i])};
    of.scale = call.scale.value_or(1 / std::sqrt(width));
    const int64_t shift = made.keys[i].count - made.queries[i].count;  // windows count from the last token
    if (left >= 0 && left < Band::kNoLimit) of.band.least = shift - left;
    if (right >= 0 && right < Band::kNoLimit) of.band.most = shift + right;
    made.calls.push_back(std::move(of));
  }
  return made;
}

/// Memory that sequences do not fill is 0.
Tensor result_like(const Tensor& like, const std::vector<Range>& filled) {
  int64_t tokens = 0;
  for (const Range& range : filled) tokens += range.count;
  const auto format = at::MemoryFormat::Contiguous;
  return tokens == like.size(0) ? at::empty_like(like, format) : at::zeros_like(like, format);
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> forward(
    const Tensor& query, const Tensor& key, const Tensor& value, const OptionalTensor& cum_seq_q,
    const OptionalTensor& cum_seq_k, SymInt /*max_q*/, SymInt /*max_k*/, double dropout_p, bool is_causal,
    bool /*return_debug_mask*/, std::optional<double> scale, std::optional<SymInt> window_size_left,
    std::optional<SymInt> window_size_right, const OptionalTensor& seqused_k,
    const OptionalTensor& alibi_slopes, const OptionalTensor& block_table,
    std::optional<int64_t> /*num_splits*/) {
  static OpCounter& counter = op_counter(std::string("aten::") + kForward);
  for (const auto& [tensor, name] : {std::pair{&alibi_slopes, "alibi_slopes"}, {&block_table, "block_table"}})
    TORCH_CHECK_NOT_IMPLEMENTED(!*tensor, kForward, " on npu: ", name, " is given; only None is supported");
  const Sequences sequences = sequences_of({kForward, query, key, value, cum_seq_q, cum_seq_k, dropout_p,
                                            is_causal, scale, window_size_left, window_size_right},
                                           seqused_k);
  const auto sums = query.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const Tensor out = result_like(query, sequences.queries),
               log_sum_exp = at::zeros({query.size(1), query.size(0)}, query.options().dtype(sums));
  std::vector<anynpu::ops::AttentionForward> calls;
  for (size_t i = 0; i < sequences.calls.size(); ++i)
    calls.push_back({sequences.calls[i], part_of(out, sequences.queries[i]),
                     row_part_of(log_sum_exp, sequences.queries[i])});
  Temporaries temporaries(query);
  enqueue_native(npu_call([&] { return prepare(calls, temporaries.take()); }), query, counter);
  return {out, log_sum_exp, at::zeros({2}, query.options().dtype(at::kLong)), at::empty({0}, query.options()),
          at::empty({0}, query.options())};
}

std::tuple<Tensor, Tensor, Tensor> backward(const Tensor& grad_out, const Tensor& query, const Tensor& key,
                                            const Tensor& value, const Tensor& out, const Tensor& logsumexp,
                                            const Tensor& cum_seq_q, const Tensor& cum_seq_k,
                                            SymInt /*max_q*/, SymInt /*max_k*/, double dropout_p,
                                            bool is_causal, const Tensor& /*rng_state*/,
                                            const Tensor& /*unused*/, std::optional<double> scale,
                                            std::optional<SymInt> window_size_left,
                                            std::optional<SymInt> window_size_right) {
  static OpCounter& counter = op_counter(std::string("aten::") + kBackward);
  const Sequences sequences = sequences_of({kBackward, query, key, value, cum_seq_q, cum_seq_k, dropout_p,
                                            is_causal, scale, window_size_left, window_size_right},
                                           std::nullopt);
  const Tensor of_query = result_like(query, sequences.queries), of_key = result_like(key, sequences.keys),
               of_value = result_like(value, sequences.keys);
  std::vector<anynpu::ops::AttentionBackward> calls;
  for (size_t i = 0; i < sequences.calls.size(); ++i) {
    const Range &queries = sequences.queries[i], &keys = sequences.keys[i];
    calls.push_back({.of = sequences.calls[i],
                     .out = part_of(out, queries),
                     .grad_out = part_of(grad_out, queries),
                     .log_sum_exp = row_part_of(logsumexp, queries),
                     .grad_query = part_of(of_query, queries),
                     .grad_key = part_of(of_key, keys),
                     .grad_value = part_of(of_value, keys)});
  }
  Temporaries temporaries(query);
  enqueue_native(npu_call([&] { return prepare(calls, temporaries.take()); }), query, counter);
  return {of_query, of_key, of_value};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  add_whole(m, kForward, {"Attention"}, forward);
  add_whole(m, kBackward, {"AttentionBackward"}, backward);
}

}  // namespace
}  // namespace torch_npu
