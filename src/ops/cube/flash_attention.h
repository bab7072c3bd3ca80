#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ops/cube/attention.h"

namespace anynpu::ops {

/// Attention under the conventions of Ascend's interfaces: layouts by name, masks that hide where they are
/// true, sparse modes, packed sequences, and each row's maximum and sum as statistics.
///
/// Layouts are BNSD, BSND, BSH and SBH, of batch, heads (N), tokens (S) and width (D, with heads H), and TND:
/// sequences one after another, of which `query_ends` and `key_ends` are the cumulative lengths; zeros at the
/// end of those are sequences that are left out. Tokens after the last one see nothing.
struct FlashAttention {
  /// What callers name the arguments, for errors.
  struct Names {
    const char *query = "query", *key = "key", *value = "value", *layout = "input_layout", *bias = "pse",
               *mask = "atten_mask", *mode = "sparse_mode", *prefix = "prefix", *keep = "keep_prob",
               *query_ends = "actual_seq_qlen", *key_ends = "actual_seq_kvlen", *bits = "drop_mask",
               *heads = "head_num", *maximum = "softmax_max", *total = "softmax_sum", *out = "attention_out",
               *grad_out = "dy", *grad_query = "dq", *grad_key = "dk", *grad_value = "dv",
               *grad_bias = "dpse";
  };
  /// Masks nothing, as a distance in tokens.
  static constexpr int64_t kAnyDistance = 2147483647;
  static constexpr int64_t kRepeats = 8;  ///< how often a row's maximum and sum stand side by side

  View query, key, value;
  std::string layout;
  int64_t heads = 0;  ///< of queries; counts where the layout has heads and width as one
  double scale = 1;
  /// Added to products before they are scaled, or after it. Broadcast to batch x N x S x S; of TND the scores
  /// of all sequences, each N x S x S, one after another.
  std::optional<View> bias = {};
  bool bias_is_scaled = true;
  /// bool or u8, hides where it is true. Broadcast to batch x N x S x S; of TND at least the longest
  /// sequences' S x S. In modes 2, 3, 4, 7 and 8 a triangle of 2048 x 2048, and in mode 6 of 3072 x 2048,
  /// that stands for what the mode hides, and is not read.
  std::optional<View> mask = {};
  /// 0: hides what `mask` does, and with a mask keys more than `before` before or `after` after the query's
  /// position, from the first token on; 1: what the mask does; 2: later keys, from the first token on; 3: the
  /// same from the last token on; 4: as 0, from the last token on; 5: what the mask does, which is as in 6;
  /// 6: as 3, but for the first `prefix` keys; 7, of TND: as 3, but the last sequence as 4; 8, of TND: as 2,
  /// but the first sequence as 4.
  int64_t mode = 0, before = kAnyDistance, after = kAnyDistance;
  std::vector<int64_t> prefix = {};  ///< of each batch, in modes 5 and 6
  std::vector<int64_t> query_ends = {}, key_ends = {};
  Dropout dropout = {};  ///< weights are numbered by sequence, head, query and key
  /// Statistics of TND are T x N x 8; else their memory is N x S x 8 for each sequence.
  bool statistics_by_token = false;
  Names names = {};

  bool is_packed() const { return layout == "TND"; }
  /// How many weights there are.
  int64_t weights() const;
};

struct FlashAttentionForward {
  FlashAttention of;
  View out, maximum, total;  ///< statistics are f32
};

struct FlashAttentionBackward {
  FlashAttention of;
  View out, grad_out, maximum, total;
  View grad_query, grad_key, grad_value;
  std::optional<View> grad_bias = {};  ///< like the bias
};

/// The launches of a call. Raises kInvalidArgument, naming the argument, and kUnsupported.
std::vector<Launch> prepare(const FlashAttentionForward& call, const TakeMemory& take);
std::vector<Launch> prepare(const FlashAttentionBackward& call, const TakeMemory& take);

}  // namespace anynpu::ops
