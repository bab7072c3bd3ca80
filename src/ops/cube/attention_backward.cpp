#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include "base/error.h"
#include "jit/jit.h"
#include "ops/copy.h"
#include "ops/cube/attention.h"
#include "ops/cube/attention_gradients.h"
#include "ops/reduce/reduction.h"

namespace anynpu::ops {
namespace {

using tile::Opcode;

constexpr int64_t kKeysOfGroup = 512, kMostGroups = 4;  ///< at least, but for one group; and at most

/// A block of a kernel has a group of keys of a head of keys with all queries: for kKeys at a time, it goes
/// through the queries that see them. It alone adds to the group's part of the queries' gradients.
class BackwardKernel : private GradientKernel {
 public:
  BackwardKernel(const AttentionBackward& call, DType sums)
      : GradientKernel("AttentionBackward", call, sums) {
    declare();
  }

  tile::Kernel build() {
    loop(0, shared_by_, 1, [&](const Index& head) {
      builder_.store(grad_query_, {part_, key_head_ * shared_by_ + head, 0, 0}, filled(0, queries_, width_));
    });
    const Index first_key = group_ * group_keys_, end = min(keys_, first_key + group_keys_);
    loop(first_key, end, kKeys, [&](const Index& first) { block_of_keys(first, min(kKeys, end - first)); });
    return builder_.finish();
  }

 private:
  void declare() {
    const Index groups = builder_.size("groups");
    group_keys_ = builder_.size("group_keys");
    builder_.grid(batches_ * key_heads_ * groups);
    group_ = Index::block() % groups;
    batch_ = Index::block() / groups / key_heads_;
    key_head_ = Index::block() / groups % key_heads_;
    part_ = group_ * batches_ + batch_;
    declare_buffers();
    grad_query_ =
        builder_.buffer("grad_query", call_.grad_query.dtype, {groups * batches_, heads_, queries_, width_},
                        {std::nullopt, std::nullopt, std::nullopt, last_stride(call_.grad_query)});
    grad_key_ = tensor("grad_key", call_.grad_key, key_heads_, keys_, width_);
    grad_value_ = tensor("grad_value", call_.grad_value, key_heads_, keys_, value_width_);
    declare_locals();
    key_copy_ = local("key_copy", {kKeys, padded_ + kApart});
    of_key_ = local("of_key", {kKeys, padded_});
    of_value_ = local("of_value", {kKeys, value_padded_});
  }

  void block_of_keys(const Index& first, const Index& count) {
    copy_rows(key_copy_, key_, key_head_, first, count, width_, padded_);
    take_keys(first, count);
    builder_.store(of_key_, {0, 0}, filled(0, count, padded_));
    builder_.store(of_value_, {0, 0}, filled(0, count, value_padded_));
    Index begin = 0, end = queries_;
    if (of_.band.has_most()) begin = max(0, first - most_) / kQueries * kQueries * is_past_prefix(first);
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
    take_queries(row, rows, first, count);
    differentiate(row, rows, first, count);
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
        builder_.accumulate(grad_query_, {part_, head_, row + step, col}, product(left, right));
      });
    });
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

  Index group_ = 0, group_keys_ = 0, part_ = 0;
  int grad_query_ = -1, grad_key_ = -1, grad_value_ = -1;
  int key_copy_ = -1, of_key_ = -1, of_value_ = -1;
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
  if (!call.grad_bias) return;
  require(call.of.bias.has_value(), ErrorCode::kInvalidArgument,
          "gradients of attention: one of the bias is wanted, and no bias is given");
  const std::vector<int64_t>& scores = call.of.bias->sizes;
  bool fits = call.grad_bias->sizes.size() == 4 && call.grad_bias->sizes[3] == scores[3] &&
              call.grad_bias->dtype == call.of.bias->dtype;
  for (size_t d = 0; fits && d < 3; ++d)
    fits = call.grad_bias->sizes[d] == scores[d] || call.grad_bias->sizes[d] == 1;
  require(fits, ErrorCode::kInvalidArgument, "gradients of attention: that of the bias is ",
          call.grad_bias->text(), " for ", call.of.bias->text(),
          "; its type and sizes are accepted, and 1 in place of batch, heads or queries");
}

std::vector<Launch> launches_of(const AttentionBackward& given, const TakeMemory& take) {
  static KernelTable& table = *new KernelTable;  // outlives every thread
  const DType sums = sum_type(given.of.query.dtype);
  check(given, sums);
  AttentionBackward call = given;
  if (call.log_sum_exp) call.maximum = call.total = std::nullopt;
  const Groups groups = gradient_groups(call.of.key.sizes[2]);
  const int64_t blocks = call.of.key.sizes[0] * call.of.key.sizes[1] * groups.count;
  std::vector<Launch> launches;
  if (call.grad_bias && call.grad_bias->elements() != 0)
    launches.push_back(prepare_bias_gradient(call, sums));
  if (blocks == 0) return launches;
  const std::vector<int64_t>& sizes = given.grad_query.sizes;
  if (groups.count > 1 || call.grad_query.dtype != sums) {  // rounded after all sums
    call.grad_query = temporary(take, sums, {groups.count * sizes[0], sizes[1], sizes[2], sizes[3]});
  }
  jit::PackedArguments arguments;
  AttentionKernel::add_sizes(arguments, call.of, 0);
  for (const int64_t size : {groups.count, groups.keys}) arguments.size(size);
  GradientKernel::add_buffers(arguments, call);
  KernelTable::Key key;
  GradientKernel::add_key(key, call);
  for (const View* view : {&call.grad_query, &call.grad_key, &call.grad_value}) {
    arguments.buffer(view->data, view->strides);
    AttentionKernel::add_key(key, *view);
  }
  AttentionKernel::add_scalars(arguments, call.of, sums);
  launches.emplace_back(table.find(key, [&] { return BackwardKernel(call, sums).build(); }), arguments,
                        blocks, attention_work(call.of, 5));
  launches.back().take_turns();
  if (given.grad_query.elements() == 0) return launches;
  if (groups.count > 1) {
    const View parts =
        contiguous(sums, call.grad_query.data, {groups.count, sizes[0], sizes[1], sizes[2], sizes[3]});
    const Reduction sum = {line_op("Sum"), sums, std::span(&given.grad_query, 1), parts, Dims(1)};
    for (Launch& launch : prepare(sum, take)) launches.push_back(std::move(launch));
  } else if (given.grad_query.dtype != sums) {
    launches.push_back(prepare_copy(given.grad_query, call.grad_query));
  }
  return launches;
}

}  // namespace

Groups gradient_groups(int64_t keys) {
  const int64_t count = std::clamp<int64_t>(keys / kKeysOfGroup, 1, kMostGroups);
  const int64_t of_group = round_up(ceil_div(keys, count), GradientKernel::kKeys);
  return {std::max<int64_t>(1, ceil_div(keys, std::max<int64_t>(of_group, 1))), of_group};
}

std::vector<Launch> prepare(const AttentionBackward& call, const TakeMemory& take) {
  return launches_of(call, take);
}

std::vector<Launch> prepare(std::span<const AttentionBackward> calls, const TakeMemory& take) {
  std::vector<std::vector<Launch>> launches;
  for (const AttentionBackward& call : calls) launches.push_back(launches_of(call, take));
  return joined(std::move(launches));
}

}  // namespace anynpu::ops
