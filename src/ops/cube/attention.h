#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "ops/iteration.h"
#include "ops/launch.h"

namespace anynpu::ops {

/// Which keys a query sees by its position: key - query from `least` to `most`, counted from the first of
/// each.
struct Band {
  static constexpr int64_t kNoLimit = int64_t{1} << 40;
  int64_t least = -kNoLimit, most = kNoLimit;
  bool has_least() const { return least != -kNoLimit; }
  bool has_most() const { return most != kNoLimit; }
};

/// Each weight is kept with probability `keep`, and then divided by it. Weights are numbered as the elements
/// of a contiguous tensor of batch x heads x queries x keys, from `first` on. Which ones are kept is what
/// `Dropout` of ops/random.h does to a tensor of `count` elements with that seed and offset, or, where they
/// are given, what the bits of a mask say (ops/nn/dropout_mask.h).
struct Dropout {
  double keep = 1;
  uint64_t seed = 0, offset = 0;
  std::optional<View> bits = {};  ///< adjacent u8
  int64_t first = 0;
  std::optional<int64_t> count = {};  ///< none: the call's own
};

/// What forward and backward have in common. All tensors are batch x heads x tokens x width, queries, keys
/// and values of one type of floats; keys and values may have fewer heads, each for as many heads of queries
/// side by side.
struct Attention {
  View query, key, value;
  double scale = 1;
  std::optional<View> bias = {};  ///< of scores, of any type of floats: batch x heads x queries x keys
  bool bias_is_scaled = false;
  std::optional<View> mask = {};  ///< of scores, of bool or u8
  bool mask_hides = false;        ///< a key is hidden where the mask is true, else where it is false
  Band band = {};
  int64_t prefix = 0;  ///< the first keys, which `band.most` hides from no query
  Dropout dropout = {};
};

/// out = dropout(softmax(scale * query key^T + bias, -inf where a key is hidden)) value.
///
/// Scores are sums of f32 for f16, bf16 and f32, of f64 for f64, each fma by fma in the order of the width
/// (of bf16 perhaps by dot products, see GemmCall). Rows go through the keys kKeysOfBlock at a time, each
/// block's maximum, sum of exponentials and weighted sum (fma by fma in the order of the keys) joining those
/// before; no bits of a row depend on other rows. Where a query sees no key, the result is 0. The scores
/// never are in memory as a whole.
struct AttentionForward {
  Attention of;
  View out;
  /// Of each row, as often as the last dimension has elements, in the type of the sums, where given: the
  /// logarithm of the sum of exponentials, which is infinity where no key is seen; the greatest score; and
  /// the sum of exponentials of scores less that.
  std::optional<View> log_sum_exp = {}, maximum = {}, total = {};
};

inline constexpr int64_t kKeysOfBlock = 256;

/// The gradients of the same: of `out` to those of queries, keys, values and the bias. Scores are computed
/// again, and every sum is in one order: over queries block by block, a query's over its keys as
/// gradient_groups() says. The statistics are `log_sum_exp`, or `maximum` and `total`, of which the first of
/// the last dimension counts.
struct AttentionBackward {
  Attention of;
  View out, grad_out;
  std::optional<View> log_sum_exp = {}, maximum = {}, total = {};
  View grad_query, grad_key, grad_value;
  /// Of the bias, in its type: of the scores' sizes, or 1 in place of batch, heads or queries, over which it
  /// then is the sum.
  std::optional<View> grad_bias = {};
};

/// Keys are in so many groups, in order, each of as many (a multiple of 128) but the last: a query's gradient
/// is the sum of the groups' sums.
struct Groups {
  int64_t count, keys;
};
Groups gradient_groups(int64_t keys);

/// The launches of a call, in order; `take` gives memory for what they pass on, which is linear in the
/// tokens. Raises kInvalidArgument where sizes or types do not fit.
std::vector<Launch> prepare(const AttentionForward& call, const TakeMemory& take);
std::vector<Launch> prepare(const AttentionBackward& call, const TakeMemory& take);
/// The same of several calls at once, whose blocks the threads share. Each has the bits that it has alone.
std::vector<Launch> prepare(std::span<const AttentionForward> calls, const TakeMemory& take);
std::vector<Launch> prepare(std::span<const AttentionBackward> calls, const TakeMemory& take);

}  // namespace anynpu::ops
