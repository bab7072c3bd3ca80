#include "ops/cube/attention_gradients.h"

#include <cmath>
#include <tuple>
#include <utility>

namespace anynpu::ops {

GradientKernel::GradientKernel(std::string name, const AttentionBackward& call, DType sums)
    : AttentionKernel(std::move(name), call.of, sums),
      call_(call),
      columns_(jit::product_columns(sums, kRows)) {}

void GradientKernel::declare_buffers() {
  const auto padded = [&](const Index& count) { return ceil_div(count, columns_) * columns_; };
  padded_ = padded(width_);
  value_padded_ = padded(value_width_);
  query_ = tensor("query", of_.query, heads_, queries_, width_);
  if (of_pairs()) query_rows_.emplace(rows_of("query_rows", of_.query, heads_, queries_, width_));
  key_ = tensor("key", of_.key, key_heads_, keys_, width_);
  turned_key_.emplace(turned_of("turned_key", of_.key, key_heads_, keys_, width_));
  turned_value_.emplace(turned_of("turned_value", of_.value, key_heads_, keys_, value_width_));
  out_ = tensor("out", call_.out, heads_, queries_, value_width_);
  grad_out_ = tensor("grad_out", call_.grad_out, heads_, queries_, value_width_);
  if (of_pairs()) grad_rows_.emplace(rows_of("grad_rows", call_.grad_out, heads_, queries_, value_width_));
  for (const auto& [given, buffer, name] : {std::tuple{&call_.log_sum_exp, &log_sum_exp_, "log_sum_exp"},
                                            {&call_.maximum, &maximum_, "maximum"},
                                            {&call_.total, &total_, "total"}})
    if (*given) *buffer = tensor(name, **given, heads_, queries_, 1);
}

void GradientKernel::add_buffers(jit::PackedArguments& arguments, const AttentionBackward& call) {
  AttentionKernel::add_buffers(arguments, call.of);
  const auto add = [&](const View& view) { arguments.buffer(view.data, view.strides); };
  const bool of_pairs = multiplies_pairs(call.of.query.dtype);
  add(call.of.query);
  if (of_pairs) add_rows(arguments, call.of.query);
  add(call.of.key);
  add_turned(arguments, call.of.key);
  add_turned(arguments, call.of.value);
  add(call.out);
  add(call.grad_out);
  if (of_pairs) add_rows(arguments, call.grad_out);
  for (const auto& view : {call.log_sum_exp, call.maximum, call.total})
    if (view) add(*view);
}

void GradientKernel::add_key(KernelTable::Key& key, const AttentionBackward& call) {
  AttentionKernel::add_key(key, call.of);
  for (const auto& view : {std::optional(call.of.key), std::optional(call.out), std::optional(call.grad_out),
                           call.log_sum_exp, call.maximum, call.total})
    AttentionKernel::add_key(key, view);
  key.add(layout_of(transposed(call.of.value)));
}

void GradientKernel::declare_locals() {
  query_copy_ = local("query_copy", {kQueries, padded_ + kApart});
  grad_copy_ = local("grad_copy", {kQueries, value_padded_ + kApart});
  key_panels_ = builder_.local("key_panels", factors(), {kKeys / columns_, depth(width_), columns_});
  value_panels_ =
      builder_.local("value_panels", factors(), {kKeys / columns_, depth(value_width_), columns_});
  query_factors_ = query_copy_;
  grad_factors_ = grad_copy_;
  if (of_pairs()) {
    query_factors_ = builder_.local("query_pairs", factors(), {kQueries, depth(width_) + kApart});
    grad_factors_ = builder_.local("grad_pairs", factors(), {kQueries, depth(value_width_) + kApart});
  }
  weights_ = local("weights", {kQueries, kKeys + kApart});
  grads_ = local("grads", {kQueries, kKeys + kApart});
  if (of_.dropout.keep != 1) factors_ = local("factors", {kQueries, kKeys + kApart});
  shift_ = local("shift", {kQueries, 1});
  mean_ = local("mean", {kQueries, 1});
}

void GradientKernel::for_each_step(const Index& count,
                                   const std::function<void(const Index& row, const Index& rows)>& step) {
  loop(0, count, kRows, [&](const Index& row) { step(row, min(kRows, count - row)); });
}

void GradientKernel::copy_rows(int to, int from, const Index& head, const Index& row, const Index& rows,
                               const Index& cols, const Index& padded) {
  builder_.store(to, {0, 0}, converted(builder_.load(from, {batch_, head, row, 0}, rows, cols), sums_type_));
  builder_.store(to, {0, cols}, filled(0, rows, padded - cols));
}

void GradientKernel::take_keys(const Index& first, const Index& count) {
  loop(0, count, columns_, [&](const Index& col) {
    const Index cols = min(columns_, count - col);
    for (const auto& [matrices, panels, width] :
         {std::tuple{&*turned_key_, key_panels_, width_}, {&*turned_value_, value_panels_, value_width_}})
      matrices->copy({batch_, key_head_}, 0, first + col, depth(width), cols, factors(), panels,
                     {col / columns_});
  });
}

void GradientKernel::take_queries(const Index& row, const Index& rows, const Index& first,
                                  const Index& count) {
  copy_rows(query_copy_, query_, head_, row, rows, width_, padded_);
  copy_rows(grad_copy_, grad_out_, head_, row, rows, value_width_, value_padded_);
  if (of_pairs()) {
    query_rows_->copy({batch_, head_}, row, 0, rows, depth(width_), factors(), query_factors_);
    grad_rows_->copy({batch_, head_}, row, 0, rows, depth(value_width_), factors(), grad_factors_);
  }
  statistics(row, rows);
  if (of_.dropout.keep != 1) builder_.store(factors_, {0, 0}, drop_factors(row, first, rows, count));
}

/// What scores are less, and the mean of the weights' gradients, of each row.
void GradientKernel::statistics(const Index& row, const Index& rows) {
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

void GradientKernel::differentiate(const Index& row, const Index& rows, const Index& first,
                                   const Index& count) {
  loop(0, count, columns_, [&](const Index& col) {
    const Index cols = min(columns_, count - col);
    for_each_step(rows,
                  [&](const Index& step, const Index& lines) { weigh(row, step, lines, first, col, cols); });
    for_each_step(rows,
                  [&](const Index& step, const Index& lines) { differentiate_step(step, lines, col, cols); });
  });
}

void GradientKernel::weigh(const Index& row, const Index& step, const Index& lines, const Index& first,
                           const Index& col, const Index& cols) {
  const Expr left = builder_.load(query_factors_, {step, 0}, lines, depth(width_)),
             right = builder_.load(key_panels_, {col / columns_, 0, 0}, depth(width_), cols);
  const Expr less = scores(given_product(left, right), row + step, first + col,
                           of_.band.has_least() || of_.band.has_most()) -
                    builder_.load(shift_, {step, 0}, lines, 1);
  builder_.store(weights_, {step, col}, exp(less));
}

void GradientKernel::differentiate_step(const Index& step, const Index& lines, const Index& col,
                                        const Index& cols) {
  const Expr left = builder_.load(grad_factors_, {step, 0}, lines, depth(value_width_)),
             right = builder_.load(value_panels_, {col / columns_, 0, 0}, depth(value_width_), cols);
  const auto load = [&](int buffer) { return builder_.load(buffer, {step, col}, lines, cols); };
  Expr of_weights = given_product(left, right);
  if (of_.dropout.keep != 1) of_weights = of_weights * load(factors_);
  const Expr of_scores = load(weights_) * (of_weights - builder_.load(mean_, {step, 0}, lines, 1));
  builder_.store(grads_, {step, col}, scales_ ? of_scores * scale() : of_scores);
}

}  // namespace anynpu::ops
