#pragma once

#include <functional>
#include <optional>
#include <string>

#include "jit/product_block.h"
#include "ops/cube/attention_kernel.h"
#include "ops/cube/gemm.h"

namespace anynpu::ops {

/// What kernels of gradients have in common: the weights of a block of queries and a block of keys, computed
/// again from the rows' statistics, and the gradients of their products.
class GradientKernel : protected AttentionKernel {
 public:
  static constexpr int64_t kQueries = 96;  ///< of a block, and of what sums over queries take at once
  static constexpr int64_t kKeys = 128;    ///< the same of keys; both with their scores fit the second cache

  /// What such a kernel depends on, and its first arguments, as AttentionKernel has them.
  static void add_key(KernelTable::Key& key, const AttentionBackward& call);
  static void add_buffers(jit::PackedArguments& arguments, const AttentionBackward& call);

 protected:
  static constexpr int64_t kRows = jit::kProductRows;
  static constexpr int64_t kApart = 16;  ///< elements between rows, which so do not meet in a cache

  GradientKernel(std::string name, const AttentionBackward& call, DType sums);

  /// Buffers, then memory of the block's own; what a kernel has beside comes after it.
  void declare_buffers();
  void declare_locals();
  int local(const char* name, std::vector<Index> sizes) {
    return builder_.local(name, sums_type_, std::move(sizes));
  }

  /// Fetches `count` keys and their values, from key `first` on, for what follows.
  void take_keys(const Index& first, const Index& count);
  /// The same of queries, with the gradients of their results, their statistics and their factors of dropout.
  void take_queries(const Index& row, const Index& rows, const Index& first, const Index& count);
  /// Fills `weights_` and `grads_`: the gradients of scores, or with `scales_` of what is scaled to scores.
  void differentiate(const Index& row, const Index& rows, const Index& first, const Index& count);

  void for_each_step(const Index& count,
                     const std::function<void(const Index& row, const Index& rows)>& step);
  /// Rows of a tensor, and zeros in what its columns are padded with.
  void copy_rows(int to, int from, const Index& head, const Index& row, const Index& rows, const Index& cols,
                 const Index& padded);

  const AttentionBackward& call_;
  const int64_t columns_;
  bool scales_ = true;
  Index key_head_ = 0, padded_ = 0, value_padded_ = 0;  ///< `key_head_`: to be set
  int query_ = -1, key_ = -1;
  int query_copy_ = -1, grad_copy_ = -1, weights_ = -1, grads_ = -1, factors_ = -1;

 private:
  void statistics(const Index& row, const Index& rows);
  void weigh(const Index& row, const Index& step, const Index& lines, const Index& first, const Index& col,
             const Index& cols);
  void differentiate_step(const Index& step, const Index& lines, const Index& col, const Index& cols);

  std::optional<Matrices> query_rows_, grad_rows_, turned_key_, turned_value_;
  int out_ = -1, grad_out_ = -1, log_sum_exp_ = -1, maximum_ = -1, total_ = -1;
  int query_factors_ = -1, grad_factors_ = -1, key_panels_ = -1, value_panels_ = -1, shift_ = -1, mean_ = -1;
};

/// The launch of the bias's gradient. Each element is computed for itself, so that one that stands for
/// several is their sum in order.
Launch prepare_bias_gradient(const AttentionBackward& call, DType sums);

}  // namespace anynpu::ops
