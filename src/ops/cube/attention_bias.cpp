#include "jit/jit.h"
#include "ops/cube/attention_gradients.h"

namespace anynpu::ops {
namespace {

/// A block of a kernel has some rows and keys of the gradient of a bias: it goes through what those stand
/// for, batch by batch, head by head and, where a row stands for all queries, query by query.
class BiasKernel : private GradientKernel {
 public:
  BiasKernel(const AttentionBackward& call, DType sums)
      : GradientKernel("AttentionBiasBackward", call, sums),
        is_of_one_row_(call.grad_bias->sizes[2] == 1 && call.of.query.sizes[2] != 1) {
    scales_ = of_.bias_is_scaled;
    declare();
  }

  tile::Kernel build() {
    const Index first = Index::block() % across_ * kKeys, count = min(kKeys, keys_ - first);
    const Index down = Index::block() / across_ % down_, line = Index::block() / across_ / down_;
    const Index batch = line / bias_heads_, head = line % bias_heads_;
    const Index row = is_of_one_row_ ? Index(0) : down * kQueries,
                rows = is_of_one_row_ ? Index(1) : min(kQueries, queries_ - row);
    builder_.store(sums_, {0, 0}, filled(0, rows, count));
    loop(0, batches_ / bias_batches_, 1, [&](const Index& of_batch) {
      batch_ = batch + of_batch;
      loop(0, heads_ / bias_heads_, 1, [&](const Index& of_head) {
        head_ = head + of_head;
        key_head_ = head_ / shared_by_;
        take_keys(first, count);
        if (!is_of_one_row_) return add(row, rows, first, count);
        loop(0, queries_, kQueries,
             [&](const Index& query) { add(query, min(kQueries, queries_ - query), first, count); });
      });
    });
    builder_.store(grad_bias_, {batch, head, row, first},
                   converted(builder_.load(sums_, {0, 0}, rows, count), call_.grad_bias->dtype));
    return builder_.finish();
  }

 private:
  void declare() {
    bias_batches_ = builder_.size("bias_batches");
    bias_heads_ = builder_.size("bias_heads");
    const Index bias_rows = builder_.size("bias_rows");
    across_ = ceil_div(keys_, kKeys);
    down_ = ceil_div(bias_rows, kQueries);
    builder_.grid(bias_batches_ * bias_heads_ * down_ * across_);
    declare_buffers();
    grad_bias_ =
        builder_.buffer("grad_bias", call_.grad_bias->dtype, {bias_batches_, bias_heads_, bias_rows, keys_},
                        {std::nullopt, std::nullopt, std::nullopt, last_stride(*call_.grad_bias)});
    declare_locals();
    sums_ = local("sums", {is_of_one_row_ ? Index(1) : Index(kQueries), kKeys + kApart});
  }

  void add(const Index& row, const Index& rows, const Index& first, const Index& count) {
    take_queries(row, rows, first, count);
    differentiate(row, rows, first, count);
    const Expr grads = builder_.load(grads_, {0, 0}, rows, count);
    builder_.accumulate(sums_, {0, 0}, is_of_one_row_ ? col_sum(grads) : grads);
  }

  const bool is_of_one_row_;
  Index bias_batches_ = 0, bias_heads_ = 0, across_ = 0, down_ = 0;
  int grad_bias_ = -1, sums_ = -1;
};

}  // namespace

Launch prepare_bias_gradient(const AttentionBackward& call, DType sums) {
  static KernelTable& table = *new KernelTable;  // outlives every thread
  const View& grad = *call.grad_bias;
  jit::PackedArguments arguments;
  AttentionKernel::add_sizes(arguments, call.of, 0);
  for (const size_t d : {0, 1, 2}) arguments.size(grad.sizes[d]);
  GradientKernel::add_buffers(arguments, call);
  arguments.buffer(grad.data, grad.strides);
  AttentionKernel::add_scalars(arguments, call.of, sums);
  KernelTable::Key key;
  GradientKernel::add_key(key, call);
  AttentionKernel::add_key(key, grad);
  key.add(static_cast<uint8_t>(grad.sizes[2] == 1 && call.of.query.sizes[2] != 1));
  const int64_t blocks = grad.sizes[0] * grad.sizes[1] * ceil_div(grad.sizes[2], GradientKernel::kQueries) *
                         ceil_div(grad.sizes[3], GradientKernel::kKeys);
  return {table.find(key, [&] { return BiasKernel(call, sums).build(); }), arguments, blocks,
          attention_work(call.of, 2)};
}

}  // namespace anynpu::ops
