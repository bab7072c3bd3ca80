#include "ops/cube/products.h"

#include <algorithm>

#include "jit/jit.h"
#include "ops/copy.h"
#include "ops/cube/gemm.h"
#include "ops/cube/panels.h"

namespace anynpu::ops {
namespace {

using tile::Expr;
using tile::Index;

constexpr int64_t kBlocks = 8;  ///< least to share among threads
constexpr int64_t kLine = 16;   ///< elements

}  // namespace

int64_t part_of(int64_t count, int64_t most, int64_t unit, int64_t others) {
  const int64_t parts =
      std::max(ceil_div(count, most), std::min(ceil_div(kBlocks, others), count / (2 * unit)));
  return std::min(most, round_up(ceil_div(count, std::max<int64_t>(1, parts)), unit));
}

void Products::add_up() const {
  if (form.one_block) return add(0, min(kDepth, depth));
  builder.store(sums, {0, 0}, filled(builder, form.sums, 0, rows, cols));
  builder.loop(0, depth, kDepth, {}, [&](const Index& first, const auto&) -> std::vector<Expr> {
    add(first, min(kDepth, depth - first));
    return {};
  });
}

void Products::add(const Index& first, const Index& count) const {
  copy(first, count);
  const int64_t step = jit::product_columns(form.sums, kRows);
  builder.loop(0, cols, step, {}, [&](const Index& col, const auto&) -> std::vector<Expr> {
    builder.loop(0, rows, kRows, {}, [&](const Index& row, const auto&) -> std::vector<Expr> {
      const Index down = min(kRows, rows - row), across = min(step, cols - col);
      const Expr products =
          builder.op(tile::Opcode::kMatmul, {left(row, down, first, count), right(col, across, first, count),
                                             filled(builder, form.sums, 0, down, across)});
      if (form.one_block)
        builder.store(sums, {row, col}, products);
      else
        builder.accumulate(sums, {row, col}, products);
      return {};
    });
    return {};
  });
}

View packed(const View& weight, DType sums, const TakeMemory& take, std::vector<Launch>& launches) {
  const auto& sizes = weight.sizes;
  const int64_t depth = sizes[2] * sizes[3] * sizes[4] * sizes[5];
  View rows = temporary(take, sums, {sizes[0], sizes[1], (ceil_div(depth, kLine) | 1) * kLine});
  rows.sizes[2] = depth;
  View from = {weight.dtype, weight.data, {}, {}}, to = {sums, rows.data, {}, {}};
  for (const size_t d : {0, 1, 3, 4, 5, 2}) {
    from.sizes.push_back(sizes[d]);
    from.strides.push_back(weight.strides[d]);
  }
  to.sizes = from.sizes;
  to.strides = {rows.strides[0], rows.strides[1], 0, 0, 0, 1};
  for (size_t d = 5; d-- > 2;) to.strides[d] = to.strides[d + 1] * to.sizes[d + 1];
  if (to.elements() != 0) launches.push_back(prepare_copy(to, from));
  return rows;
}

}  // namespace anynpu::ops
