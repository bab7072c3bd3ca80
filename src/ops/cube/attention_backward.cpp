#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "jit/jit.h"
#include "jit/product_block.h"
#include "ops/copy.h"
#include "ops/cube/attention.h"
#include "ops/cube/attention_kernel.h"
#include "ops/cube/gemm.h"
#include "ops/cube/panels.h"

namespace anynpu::ops {
namespace {

using tile::Opcode;

constexpr int64_t kRows = jit::kProductRows;
constexpr int64_t kQueries = 96;  ///< of a step, which sums over queries have a block of
constexpr int64_t kKeys = 128;    ///< the same of keys; both with their scores fit the second cache
constexpr int64_t kApart = 16;    ///< elements between rows, which so do not meet in a cache

/// A block of a kernel has all queries and keys of a head of keys: for kKeys at a time, it goes through the
/// queries that see them.
class BackwardKernel : private AttentionKernel {
 public:
  BackwardKernel(const AttentionBackward& call, DType sums)
      : AttentionKernel("AttentionBackward", call.of, sums),
        call_(call),
        columns_(jit::product_columns(sums, kRows)) {
    declare();
  }

  tile::Kernel build() {
    loop(0, shared_by_, 1, [&](const Index& head) {
      builder_.store(grad_query_, {batch_, key_head_ * shared_by_ + head, 0, 0}, filled(0, queries_, width_));
    });
    loop(0, keys_, kKeys, [&](const Index& first) { block_of_keys(first, min(kKeys, keys_ - first)); });
    return builder_.finish();
  }

 private:
  void declare() {
    builder_.grid(batches_ * key_heads_);
    batch_ = Index::block() / key_heads_;
    key_head_ = Index::block() % key_heads_;
    padded_ = round_up_to_columns(width_);
    value_padded_ = round_up_to_columns(value_width_);
    query_ = tensor("query", of_.query, heads_, queries_, width_);
    key_ = tensor("key", of_.key, key_heads_, keys_, width_);
    const std::vector<Index> batch = {batches_, key_heads_};
    turned_key_.emplace(builder_, "turned_key", of_.key.dtype, layout_of(transposed(of_.key)), batch, width_,
                        keys_);
    turned_value_.emplace(builder_, "turned_value", of_.value.dtype, layout_of(transposed(of_.value)), batch,
                          value_width_, keys_);
    out_ = tensor("out", call_.out, heads_, queries_, value_width_);
    grad_out_ = tensor("grad_out", call_.grad_out, heads_, queries_, value_width_);
    for (const auto& [given, buffer, name] : {std::tuple{&call_.log_sum_exp, &log_sum_exp_, "log_sum_exp"},
                                              {&call_.maximum, &maximum_, "maximum"},
                                              {&call_.total, &total_, "total"}})
      if (*given) *buffer = tensor(name, **given, heads_, queries_, 1);
    grad_query_ = tensor("grad_query", call_.grad_query, heads_, queries_, width_);
    grad_key_ = tensor("grad_key", call_.grad_key, key_heads_, keys_, width_);
    grad_value_ = tensor("grad_value", call_.grad_value, key_heads_, keys_, value_width_);

    query_copy_ = local("query_copy", {kQueries, padded_ + kApart});
    grad_copy_ = local("grad_copy", {kQueries, value_padded_ + kApart});
    key_copy_ = local("key_copy", {kKeys, padded_ + kApart});
    key_panels_ = local("key_panels", {kKeys / columns_, width_, columns_});
    value_panels_ = local("value_panels", {kKeys / columns_, value_width_, columns_});
    weights_ = local("weights", {kQueries, kKeys + kApart});
    grads_ = local("grads", {kQueries, kKeys + kApart});
    if (of_.dropout.keep != 1) factors_ = local("factors", {kQueries, kKeys + kApart});
    of_key_ = local("of_key", {kKeys, padded_});
    of_value_ = local("of_value", {kKeys, value_padded_});
    shift_ = local("shift", {kQueries, 1});
    mean_ = local("mean", {kQueries, 1});
  }
  int local(const char* name, std::vector<Index> sizes) {
    return builder_.local(name, sums_type_, std::move(sizes));
  }
  Index round_up_to_columns(const Index& count) const { return ceil_div(count, columns_) * columns_; }

  void for_each_step(const Index& count,
                     const std::function<void(const Index& row, const Index& rows)>& step) {
    loop(0, count, kRows, [&](const Index& row) { step(row, min(kRows, count - row)); });
  }
  Expr product(const Expr& left, const Expr& right) {
    return builder_.op(Opcode::kMatmul, {left, right, filled(0, left.type().rows, right.type().cols)});
  }

  /// Rows of a tensor, and zeros in what its columns are padded with.
  void copy_rows(int to, int from, const Index& head, const Index& row, const Index& rows, const Index& cols,
                 const Index& padded) {
    builder_.store(to, {0, 0},
                   converted(builder_.load(from, {batch_, head, row, 0}, rows, cols), sums_type_));
    builder_.store(to, {0, cols}, filled(0, rows, padded - cols));
  }

  void block_of_keys(const Index& first, const Index& count) {
    copy_rows(key_copy_, key_, key_head_, first, count, width_, padded_);
    loop(0, count, columns_, [&](const Index& col) {
      const Index cols = min(columns_, count - col);
      for (const auto& [matrices, panels, width] :
           {std::tuple{&*turned_key_, key_panels_, width_}, {&*turned_value_, value_panels_, value_width_}})
        builder_.store(panels, {col / columns_, 0, 0},
                       matrices->tile({batch_, key_head_}, 0, first + col, width, cols, sums_type_));
    });
    builder_.store(of_key_, {0, 0}, filled(0, count, padded_));
    builder_.store(of_value_, {0, 0}, filled(0, count, value_padded_));
    Index begin = 0, end = queries_;
    if (of_.band.has_most()) begin = max(0, first - most_) / kQueries * kQueries;
    if (of_.band.has_least()) end = min(end, first + count - least_);
    loop(0, shared_by_, 1, [&](const Index& of_head) {
      head_ = key_head_ * shared_by_ + of_head;
      loop(begin, end, kQueries,
           [&](const Index& row) { block_of_queries(row, min(kQueries, queries_ - row), first, count); });
    });
    const auto give = [&](int to, const View& view, int from, const Index& cols) {
      builder_.store(to, {batch_, key_head_, first, 0},
                     converted(builder_.load(from, {0, 0}, count, cols), view.dtype));
    };
    give(grad_key_, call_.grad_key, of_key_, width_);
    give(grad_value_, call_.grad_value, of_value_, value_width_);
  }

  void block_of_queries(const Index& row, const Index& rows, const Index& first, const Index& count) {
    copy_rows(query_copy_, query_, head_, row, rows, width_, padded_);
    copy_rows(grad_copy_, grad_out_, head_, row, rows, value_width_, value_padded_);
    statistics(row, rows);
    if (of_.dropout.keep != 1) builder_.store(factors_, {0, 0}, drop_factors(row, first, rows, count));
    loop(0, count, columns_, [&](const Index& col) {
      const Index cols = min(columns_, count - col);
      for_each_step(
          rows, [&](const Index& step, const Index& lines) { weigh(row, step, lines, first, col, cols); });
      for_each_step(rows,
                    [&](const Index& step, const Index& lines) { differentiate(step, lines, col, cols); });
    });
    if (of_.dropout.keep != 1)
      builder_.store(
          weights_, {0, 0},
          builder_.load(weights_, {0, 0}, rows, count) * builder_.load(factors_, {0, 0}, rows, count));
    sum_over_queries(of_value_, weights_, grad_copy_, rows, count, value_padded_);
    sum_over_queries(of_key_, grads_, query_copy_, rows, count, padded_);
    loop(0, width_, columns_, [&](const Index& col) {
      const Index cols = min(columns_, width_ - col);
      for_each_step(rows, [&](const Index& step, const Index& lines) {
        const Expr left = builder_.load(grads_, {step, 0}, lines, count),
                   right = builder_.load(key_copy_, {0, col}, count, cols);
        builder_.accumulate(grad_query_, {batch_, head_, row + step, col}, product(left, right));
      });
    });
  }

  /// What scores are less, and the mean of the weights' gradients, of each row.
  void statistics(const Index& row, const Index& rows) {
    const auto load = [&](int buffer) { return builder_.load(buffer, {batch_, head_, row, 0}, rows, 1); };
    if (log_sum_exp_ >= 0) {
      builder_.store(shift_, {0, 0}, load(log_sum_exp_));
    } else {
      const Expr total = load(total_);
      builder_.store(shift_, {0, 0}, select(total == 0, total.like(INFINITY), load(maximum_) + log(total)));
    }
    const Expr out = converted(builder_.load(out_, {batch_, head_, row, 0}, rows, value_width_), sums_type_);
    builder_.store(mean_, {0, 0}, row_sum(out * builder_.load(grad_copy_, {0, 0}, rows, value_width_)));
  }

  void weigh(const Index& row, const Index& step, const Index& lines, const Index& first, const Index& col,
             const Index& cols) {
    const Expr left = builder_.load(query_copy_, {step, 0}, lines, width_),
               right = builder_.load(key_panels_, {col / columns_, 0, 0}, width_, cols);
    const Expr less =
        scores(product(left, right), row + step, first + col, of_.band.has_least() || of_.band.has_most()) -
        builder_.load(shift_, {step, 0}, lines, 1);
    builder_.store(weights_, {step, col}, exp(less));
  }

  /// The gradients of products of queries and keys.
  void differentiate(const Index& step, const Index& lines, const Index& col, const Index& cols) {
    const Expr left = builder_.load(grad_copy_, {step, 0}, lines, value_width_),
               right = builder_.load(value_panels_, {col / columns_, 0, 0}, value_width_, cols);
    const auto load = [&](int buffer) { return builder_.load(buffer, {step, col}, lines, cols); };
    Expr of_weights = product(left, right);
    if (of_.dropout.keep != 1) of_weights = of_weights * load(factors_);
    builder_.store(grads_, {step, col},
                   load(weights_) * (of_weights - builder_.load(mean_, {step, 0}, lines, 1)) * scale());
  }

  /// Adds left^T right of a block of queries.
  void sum_over_queries(int sums, int left, int right, const Index& rows, const Index& count,
                        const Index& width) {
    loop(0, width, columns_, [&](const Index& col) {
      for_each_step(count, [&](const Index& key, const Index& lines) {
        const Expr turned = builder_.op(Opcode::kTranspose, {builder_.load(left, {0, key}, rows, lines)});
        builder_.accumulate(sums, {key, col},
                            product(turned, builder_.load(right, {0, col}, rows, columns_)));
      });
    });
  }

  const AttentionBackward& call_;
  const int64_t columns_;
  Index key_head_ = 0, padded_ = 0, value_padded_ = 0;
  std::optional<Matrices> turned_key_, turned_value_;
  int query_ = -1, key_ = -1, out_ = -1, grad_out_ = -1, log_sum_exp_ = -1, maximum_ = -1, total_ = -1;
  int grad_query_ = -1, grad_key_ = -1, grad_value_ = -1;
  int query_copy_ = -1, grad_copy_ = -1, key_copy_ = -1, key_panels_ = -1, value_panels_ = -1, weights_ = -1,
      grads_ = -1, factors_ = -1, of_key_ = -1, of_value_ = -1, shift_ = -1, mean_ = -1;
};

void check(const AttentionBackward& call, DType sums) {
  check(call.of);
  const DType dtype = call.of.query.dtype;
  check_rows(call.of, call.out, "out", dtype, call.of.value.sizes[3]);
  check_rows(call.of, call.grad_out, "grad_out", dtype, call.of.value.sizes[3]);
  check_rows(call.of, call.grad_query, "grad_query", dtype, call.of.query.sizes[3]);
  require(call.log_sum_exp || (call.maximum && call.total), ErrorCode::kInvalidArgument,
          "gradients of attention: neither log_sum_exp nor maximum and total are given");
  for (const auto& [view, name] :
       {std::pair{&call.log_sum_exp, "log_sum_exp"}, {&call.maximum, "maximum"}, {&call.total, "total"}})
    if (*view) check_rows(call.of, **view, name, sums, std::nullopt);
  require(call.grad_key.sizes == call.of.key.sizes && call.grad_value.sizes == call.of.value.sizes &&
              call.grad_key.dtype == dtype && call.grad_value.dtype == dtype,
          ErrorCode::kInvalidArgument,
          "gradients of attention: those of keys and values have not the sizes and types of keys and values");
}

KernelTable::Key key_of(const AttentionBackward& call) {
  KernelTable::Key key;
  AttentionKernel::add_key(key, call.of);
  for (const auto& view : {std::optional(call.of.key), std::optional(call.out), std::optional(call.grad_out),
                           call.log_sum_exp, call.maximum, call.total, std::optional(call.grad_query),
                           std::optional(call.grad_key), std::optional(call.grad_value)})
    AttentionKernel::add_key(key, view);
  key.add(layout_of(transposed(call.of.value)));
  return key;
}

}  // namespace

std::vector<Launch> prepare(const AttentionBackward& given, const TakeMemory& take) {
  static KernelTable& table = *new KernelTable;  // outlives every thread
  const DType sums = sum_type(given.of.query.dtype);
  check(given, sums);
  AttentionBackward call = given;
  if (call.log_sum_exp) call.maximum = call.total = std::nullopt;
  const int64_t blocks = call.of.key.sizes[0] * call.of.key.sizes[1];
  if (blocks == 0) return {};
  const bool rounds = call.grad_query.dtype != sums;  // after all sums
  if (rounds) call.grad_query = temporary(take, sums, call.grad_query.sizes);
  jit::PackedArguments arguments;
  AttentionKernel::add_sizes(arguments, call.of, 0);
  AttentionKernel::add_buffers(arguments, call.of);
  const auto add = [&](const View& view) { arguments.buffer(view.data, view.strides); };
  add(call.of.query);
  add(call.of.key);
  for (const View& view : {transposed(call.of.key), transposed(call.of.value)})
    Matrices::add_argument(arguments, view, layout_of(view));
  add(call.out);
  add(call.grad_out);
  for (const auto& view : {call.log_sum_exp, call.maximum, call.total})
    if (view) add(*view);
  add(call.grad_query);
  add(call.grad_key);
  add(call.grad_value);
  AttentionKernel::add_scalars(arguments, call.of, sums);
  std::vector<Launch> launches;
  launches.emplace_back(table.find(key_of(call), [&] { return BackwardKernel(call, sums).build(); }),
                        arguments, blocks, attention_work(call.of, 5));
  if (rounds) launches.push_back(prepare_copy(given.grad_query, call.grad_query));
  return launches;
}

}  // namespace anynpu::ops
