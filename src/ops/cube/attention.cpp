#include "ops/cube/attention.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>

#include "jit/jit.h"
#include "jit/product_block.h"
#include "ops/cube/attention_kernel.h"
#include "ops/cube/gemm.h"
#include "ops/cube/panels.h"

namespace anynpu::ops {
namespace {

constexpr int64_t kRows = jit::kProductRows;
constexpr int64_t kRowsOfBlock = 96;                 ///< about: their scores fit the second cache
constexpr int64_t kScoreStride = kKeysOfBlock + 16;  ///< rows do not meet in a cache
constexpr int64_t kLeastShares = 4;                  ///< blocks that keys and values are packed ahead for

/// What a kernel is made for, beside what the call says.
struct Form {
  DType sums;
  int64_t rows;  ///< of a step: kRows, or all queries
  bool panels;   ///< keys and values are packed ahead

  bool is_small() const { return rows < kRows; }
  int64_t columns() const { return jit::product_columns(sums, rows); }
};

/// A block of a kernel has `rows` queries of a head.
class ForwardKernel : private AttentionKernel {
 public:
  ForwardKernel(const AttentionForward& call, const Form& form)
      : AttentionKernel("Attention", call.of, form.sums), call_(call), form_(form), columns_(form.columns()) {
    declare();
  }

  tile::Kernel build() {
    query_->copy({batch_, head_}, row_, 0, rows_, depth(width_), factors(), query_copy_);
    builder_.store(maximum_, {0, 0}, filled(lowest(), rows_, 1));
    builder_.store(total_, {0, 0}, filled(0, rows_, 1));
    builder_.store(sums_, {0, 0}, filled(0, rows_, padded_));
    Index begin = 0, end = keys_;
    if (of_.band.has_least()) begin = max(0, row_ + least_) / kKeysOfBlock * kKeysOfBlock;
    if (of_.band.has_most()) end = min(end, ceil_div(end_of_keys(row_ + rows_ - 1), columns_) * columns_);
    loop(begin, end, kKeysOfBlock, [&](const Index& first) {
      const Index count = min(kKeysOfBlock, end - first);
      loop(0, count, columns_,
           [&](const Index& col) { multiply_keys(first, col, min(columns_, count - col)); });
      if (!form_.panels) copy_values(first, count);
      for_each_step(0, rows_, [&](const Index& row, const Index& rows) {
        const Index keys = seen(row, first, count);
        softmax(row, rows, first, keys);
        loop(0, padded_, columns_, [&](const Index& col) { multiply_values(row, rows, first, keys, col); });
      });
    });
    give();
    return builder_.finish();
  }

 private:
  /// Below every score that counts, and finite: the differences of rows without any are numbers.
  double lowest() const {
    return form_.sums == DType::kF64 ? std::numeric_limits<double>::lowest()
                                     : double{std::numeric_limits<float>::lowest()};
  }

  void declare() {
    const Index down = ceil_div(queries_, block_rows_);
    builder_.grid(batches_ * heads_ * down);
    batch_ = Index::block() / down / heads_;
    head_ = Index::block() / down % heads_;
    key_head_ = head_ / shared_by_;
    row_ = Index::block() % down * block_rows_;
    rows_ = form_.is_small() ? Index(form_.rows) : min(block_rows_, queries_ - row_);
    padded_ = ceil_div(value_width_, columns_) * columns_;
    const std::vector<Index> batch = {batches_, key_heads_};
    query_.emplace(rows_of("query", of_.query, heads_, queries_, width_));
    if (form_.panels) {
      key_panels_ = panel_buffer(builder_, "key", factors(), batch, depth(width_), keys_, columns_);
      value_panels_ = panel_buffer(builder_, "value", form_.sums, batch, keys_, value_width_, columns_);
    } else {
      key_.emplace(turned_of("key", of_.key, key_heads_, keys_, width_));
      value_.emplace(builder_, "value", of_.value.dtype, layout_of(of_.value), batch, keys_, value_width_);
    }
    out_ = tensor("out", call_.out, heads_, queries_, value_width_);
    repeats_ = builder_.size("repeats");
    for (const auto& [given, buffer, name] :
         {std::tuple{&call_.log_sum_exp, &log_sum_exp_out_, "log_sum_exp_out"},
          {&call_.maximum, &maximum_out_, "maximum_out"},
          {&call_.total, &total_out_, "total_out"}})
      if (*given) *buffer = tensor(name, **given, heads_, queries_, repeats_);
    query_copy_ = builder_.local("query_copy", factors(), {block_rows_, depth(width_)});
    if (!form_.panels) {
      key_panels_ = builder_.local("key_panel", factors(), {depth(width_), columns_});
      value_panels_ = local("value_panels", {padded_ / columns_, kKeysOfBlock, columns_});
    }
    scores_ = local("scores", {block_rows_, kScoreStride});
    sums_ = local("sums", {block_rows_, padded_});
    maximum_ = local("maximum", {block_rows_, 1});
    total_ = local("total", {block_rows_, 1});
    factor_ = local("factor", {block_rows_, 1});
  }
  int local(const char* name, std::vector<Index> sizes) {
    return builder_.local(name, form_.sums, std::move(sizes));
  }

  /// Calls `step` with the first row, and the rows, of each step of a product over rows [first, last).
  void for_each_step(const Index& first, const Index& last,
                     const std::function<void(const Index&, const Index&)>& step) {
    if (form_.is_small()) return step(0, rows_);
    loop(first, last, kRows, [&](const Index& row) { step(row, min(kRows, rows_ - row)); });
  }

  /// Whether steps leave out the panels of keys after all that their rows see.
  bool trims() const { return of_.band.has_most() && !form_.is_small(); }
  /// The first row of a step that sees a key of the block from column `col` on.
  Index first_seeing(const Index& first, const Index& col) const {
    return max(0, first + col - most_ - row_) / kRows * kRows * is_past_prefix(first + col);
  }
  /// How many keys of the block the rows of a step have scores of: those of whole panels.
  Index seen(const Index& row, const Index& first, const Index& count) const {
    if (!trims()) return count;
    return max(0, min(count, ceil_div(end_of_keys(row_ + row + (kRows - 1)) - first, columns_) * columns_));
  }

  /// The scores of `cols` keys of a block, from column `col` of it on.
  void multiply_keys(const Index& first, const Index& col, const Index& cols) {
    if (!form_.panels)
      key_->copy({batch_, key_head_}, 0, first + col, depth(width_), cols, factors(), key_panels_);
    const auto step = [&](bool in_band) {
      return [=, this](const Index& row, const Index& rows) {
        const Expr left = builder_.load(query_copy_, {row, 0}, rows, depth(width_));
        const Expr right =
            form_.panels ? builder_.load(key_panels_, {batch_, key_head_, (first + col) / columns_, 0, 0},
                                         depth(width_), cols)
                         : builder_.load(key_panels_, {0, 0}, depth(width_), cols);
        const Expr products = given_product(left, right);
        builder_.store(scores_, {row, col}, scores(products, row_ + row, first + col, in_band));
      };
    };
    if (!trims()) return for_each_step(0, rows_, step(of_.band.has_least() || of_.band.has_most()));
    const Index start = first_seeing(first, col);
    if (of_.band.has_least()) return for_each_step(start, rows_, step(true));
    const Index all_seen = first_seeing(first, col + (columns_ - 1 + kRows - 1));  // by rows from there on
    for_each_step(start, min(all_seen, rows_), step(true));
    for_each_step(all_seen, rows_, step(false));
  }

  /// Scores of `keys` keys of a block to their exponentials, less the maximum so far; the factor is that of
  /// the sums before.
  void softmax(const Index& row, const Index& rows, const Index& first, const Index& keys) {
    const auto scores = [&] { return builder_.load(scores_, {row, 0}, rows, keys); };
    const auto load = [&](int buffer) { return builder_.load(buffer, {row, 0}, rows, 1); };
    const Expr before = load(maximum_), maximum = max(before, row_max(scores()));
    builder_.store(factor_, {row, 0}, exp(before - maximum));
    builder_.store(maximum_, {row, 0}, maximum);
    // Of all rows, so that none waits for its own.
    const Expr weights = exp(scores() - load(maximum_));
    const bool drops = of_.dropout.keep != 1;
    builder_.store(scores_, {row, 0},
                   drops ? weights * drop_factors(row_ + row, first, rows, keys) : weights);
    builder_.store(total_, {row, 0}, fma(load(total_), load(factor_), row_sum(weights)));
  }

  void copy_values(const Index& first, const Index& count) {
    loop(0, padded_, columns_, [&](const Index& col) {
      const Index cols = min(columns_, value_width_ - col), panel = col / columns_;
      value_->copy({batch_, key_head_}, first, col, count, cols, form_.sums, value_panels_, {panel});
      builder_.store(value_panels_, {panel, 0, cols}, filled(0, count, columns_ - cols));
    });
  }

  /// Adds the weighted values of a block to those columns, from `col` on, of a step's rows.
  void multiply_values(const Index& row, const Index& rows, const Index& first, const Index& keys,
                       const Index& col) {
    const Expr weights = builder_.load(scores_, {row, 0}, rows, keys);
    const Expr values =
        form_.panels
            ? builder_.load(value_panels_, {batch_, key_head_, col / columns_, first, 0}, keys, columns_)
            : builder_.load(value_panels_, {col / columns_, 0, 0}, keys, columns_);
    builder_.store(sums_, {row, col},
                   fma(builder_.load(sums_, {row, col}, rows, columns_),
                       builder_.load(factor_, {row, 0}, rows, 1), product(weights, values)));
  }

  void give() {
    const Expr maximum = builder_.load(maximum_, {0, 0}, rows_, 1),
               total = builder_.load(total_, {0, 0}, rows_, 1);
    // A row with a key has a total of 1 or more: the exponential of its maximum.
    const Expr out = builder_.load(sums_, {0, 0}, rows_, value_width_) / max(total, total.like(1));
    builder_.store(out_, {batch_, head_, row_, 0}, converted(out, call_.out.dtype));
    const auto give_statistic = [&](int buffer, const Expr& value) {
      if (buffer >= 0)
        builder_.store(buffer, {batch_, head_, row_, 0}, builder_.broadcast(value, rows_, repeats_));
    };
    give_statistic(maximum_out_, maximum);
    give_statistic(total_out_, total);
    if (log_sum_exp_out_ >= 0)
      give_statistic(log_sum_exp_out_, select(total == 0, total.like(INFINITY), maximum + log(total)));
  }

  const AttentionForward& call_;
  const Form form_;
  const int64_t columns_;
  Index key_head_ = 0, row_ = 0, rows_ = 0, padded_ = 0, repeats_ = 0;
  std::optional<Matrices> query_, key_, value_;
  int key_panels_ = -1, value_panels_ = -1, out_ = -1, log_sum_exp_out_ = -1, maximum_out_ = -1,
      total_out_ = -1;
  int query_copy_ = -1, scores_ = -1, sums_ = -1, maximum_ = -1, total_ = -1, factor_ = -1;
};

KernelTable::Key key_of(const AttentionForward& call, const Form& form) {
  KernelTable::Key key;
  AttentionKernel::add_key(key, call.of);
  key.add(static_cast<uint8_t>(form.rows));
  key.add(static_cast<uint8_t>(form.panels));
  for (const auto& view : {std::optional(call.out), call.log_sum_exp, call.maximum, call.total})
    AttentionKernel::add_key(key, view);
  return key;
}

void check(const AttentionForward& call) {
  check(call.of);
  check_rows(call.of, call.out, "out", call.of.query.dtype, call.of.value.sizes[3]);
  const DType sums = sum_type(call.of.query.dtype);
  for (const auto& [view, name] :
       {std::pair{&call.log_sum_exp, "log_sum_exp"}, {&call.maximum, "maximum"}, {&call.total, "total"}})
    if (*view) check_rows(call.of, **view, name, sums, std::nullopt);
}

/// Heads that share keys, with one query each, become queries of one head: keys and values are read once for
/// all. They see what that query sees, which must start at the first key, so that its blocks stay the same.
void share_keys(AttentionForward& call) {
  Attention& of = call.of;
  const int64_t heads = of.query.sizes[1], key_heads = of.key.sizes[1], keys = of.key.sizes[2];
  const bool sees_all = std::max(of.band.most + 1, of.prefix) >= keys;
  if (of.query.sizes[2] != 1 || heads == key_heads || of.band.least > 0) return;
  if (!sees_all && of.dropout.keep != 1) return;  // which is drawn for all keys
  const auto fold = [&](View& view) {
    view.sizes = {view.sizes[0], key_heads, heads / key_heads, view.sizes[3]};
    view.strides = {view.strides[0], view.strides[1] * (heads / key_heads), view.strides[1], view.strides[3]};
  };
  fold(of.query);
  fold(call.out);
  for (std::optional<View>* view : {&of.bias, &of.mask, &call.log_sum_exp, &call.maximum, &call.total})
    if (*view) fold(**view);
  if (!sees_all) {
    const int64_t seen = std::max({of.band.most + 1, of.prefix, int64_t{0}});
    of.key.sizes[2] = of.value.sizes[2] = seen;
    for (std::optional<View>* view : {&of.bias, &of.mask})
      if (*view) (*view)->sizes[3] = seen;
  }
  of.band = {};
  of.prefix = 0;
}

/// The launches of a call, perhaps by a kernel that is made for so few queries as it has.
std::vector<Launch> launches_of(const AttentionForward& given, bool may_be_small, const TakeMemory& take) {
  static KernelTable& table = *new KernelTable;  // outlives every thread
  AttentionForward call = given;
  check(call);
  if (call.out.elements() == 0) return {};
  share_keys(call);
  const auto& sizes = call.of.query.sizes;
  const int64_t lines = sizes[0] * sizes[1], queries = sizes[2];
  Form form = {sum_type(call.of.query.dtype), may_be_small ? std::min(queries, kRows) : kRows, false};
  const int64_t down = form.is_small() ? 1 : ceil_div(queries, kRowsOfBlock),
                rows = form.is_small() ? queries : round_up(ceil_div(queries, down), kRows),
                blocks = lines * ceil_div(queries, rows);
  const int64_t key_lines = call.of.key.sizes[0] * call.of.key.sizes[1];
  form.panels = !form.is_small() && blocks >= kLeastShares * key_lines && call.of.key.sizes[2] > 0;
  std::vector<Launch> launches;
  jit::PackedArguments arguments;
  AttentionKernel::add_sizes(arguments, call.of, rows);
  int64_t repeats = 1;
  for (const auto& view : {call.log_sum_exp, call.maximum, call.total})
    if (view) repeats = view->sizes.back();
  arguments.size(repeats);
  AttentionKernel::add_buffers(arguments, call.of);
  const auto add = [&](const View& view) { arguments.buffer(view.data, view.strides); };
  AttentionKernel::add_rows(arguments, call.of.query);
  if (form.panels) {
    const DType factors = multiplies_pairs(call.of.key.dtype) ? DType::kI32 : form.sums;
    add(pack_panels(transposed(call.of.key), factors, form.columns(), take, launches));
    add(pack_panels(call.of.value, form.sums, form.columns(), take, launches));
  } else {
    AttentionKernel::add_turned(arguments, call.of.key);
    Matrices::add_argument(arguments, call.of.value, layout_of(call.of.value));
  }
  for (const auto& view : {std::optional(call.out), call.log_sum_exp, call.maximum, call.total})
    if (view) add(*view);
  AttentionKernel::add_scalars(arguments, call.of, form.sums);
  launches.emplace_back(table.find(key_of(call, form), [&] { return ForwardKernel(call, form).build(); }),
                        arguments, blocks, attention_work(call.of, 2));
  launches.back().take_turns();
  return launches;
}

}  // namespace

std::vector<Launch> prepare(const AttentionForward& call, const TakeMemory& take) {
  return launches_of(call, true, take);
}

std::vector<Launch> prepare(std::span<const AttentionForward> calls, const TakeMemory& take) {
  // Of a few queries each number has its kernel: calls of several numbers take the one for many, to the same
  // bits.
  const bool alike = std::all_of(calls.begin(), calls.end(), [&](const AttentionForward& call) {
    return call.of.query.sizes == calls[0].of.query.sizes;
  });
  std::vector<std::vector<Launch>> launches;
  for (const AttentionForward& call : calls) launches.push_back(launches_of(call, alike, take));
  return joined(std::move(launches));
}

}  // namespace anynpu::ops
