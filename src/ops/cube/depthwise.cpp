#include "ops/cube/depthwise.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <optional>
#include <utility>

#include "ops/cube/depthwise_channels.h"
#include "ops/cube/gemm.h"
#include "ops/cube/panels.h"
#include "ops/cube/window_axis.h"

namespace anynpu::ops {
namespace {

using tile::Builder;
using tile::Expr;
using tile::Index;
using tile::Place;

constexpr int64_t kMostTaps = 64;
constexpr int64_t kMostReach = 64;        ///< of strides and steps
constexpr int64_t kPlaneElements = 6144;  ///< about, of a block's part of an image: they fit the first cache
constexpr int64_t kVector = 8;

/// Dimensions of a tensor of groups x batch x outputs x depth x height x width without the depth, which is 1.
std::vector<int64_t> strides_of(const View& view) {
  const auto& of = view.strides;
  return {of[0], of[1], of[2], of[4], of[5]};
}

/// What a block has of an image: what is under a window at some rows of positions, with zeros around it,
/// apart by rows and columns modulo the strides, in memory of its own.
class Plane {
 public:
  Plane(Builder& builder, const View& image, const WindowAxis& y, const WindowAxis& x, DType dtype,
        const Index& groups, const Index& batch)
      : builder_(builder), y_(y), x_(x), dtype_(dtype) {
    height_ = builder.size("height");
    width_ = builder.size("width");
    before_y_ = builder.size("before_height");
    before_x_ = builder.size("before_width");
    rows_ = builder.size("plane_rows");
    cols_ = builder.size("plane_cols");
    image_ = builder.buffer("image", image.dtype, {groups, batch, height_, width_, height_, width_},
                            {std::nullopt, std::nullopt, std::nullopt, std::nullopt, std::nullopt,
                             known(image.strides[5] * x.stride)});
  }
  /// After the other buffers.
  void declare() { plane_ = builder_.local("plane", dtype_, {y_.stride, x_.stride, rows_, cols_}); }

  static void add_sizes(jit::PackedArguments& arguments, const View& image, int64_t before_y,
                        int64_t before_x, int64_t rows, int64_t cols) {
    for (const int64_t size : {image.sizes[4], image.sizes[5], before_y, before_x, rows, cols})
      arguments.size(size);
  }
  static void add_buffer(jit::PackedArguments& arguments, const View& image, const WindowAxis& y,
                         const WindowAxis& x) {
    const auto& of = image.strides;
    arguments.buffer(image.data,
                     std::vector<int64_t>{of[0], of[1], of[4], of[5], of[4] * y.stride, of[5] * x.stride});
  }

  void copy(const Index& group, const Index& n, const Index& first, const Index& rows,
            const Index& cols) const {
    for (int64_t v = 0; v < y_.stride; ++v)
      for (int64_t u = 0; u < x_.stride; ++u) {
        const Index top = first * y_.stride + v - before_y_, left = u - before_x_;
        const Index down = rows + y_.margin(), across = cols + x_.margin();
        const Index begin_y = within(0, ceil_div(0 - top, Index(y_.stride)), down),
                    end_y = within(begin_y, ceil_div(height_ - top, Index(y_.stride)), down),
                    begin_x = within(0, ceil_div(0 - left, Index(x_.stride)), across),
                    end_x = within(begin_x, ceil_div(width_ - left, Index(x_.stride)), across);
        const Expr zero = builder_.constant(dtype_, 0.0),
                   elements = builder_.load(
                       image_, {group, n, top + begin_y * y_.stride, left + begin_x * x_.stride, 0, 0},
                       end_y - begin_y, end_x - begin_x);
        builder_.store(plane_, {v, u, 0, 0}, builder_.broadcast(zero, down, cols_));
        builder_.store(plane_, {v, u, begin_y, begin_x}, converted(elements, dtype_));
      }
  }
  /// What is under a tap, from a row of positions on.
  Expr under(int64_t i, int64_t j, const Index& row, const Index& rows, const Index& cols) const {
    const int64_t v = y_.distance(i), u = x_.distance(j);
    return builder_.load(plane_, {v % y_.stride, u % x_.stride, row + v / y_.stride, u / x_.stride}, rows,
                         cols);
  }

 private:
  Builder& builder_;
  const WindowAxis y_, x_;
  const DType dtype_;
  Index height_ = 0, width_ = 0, before_y_ = 0, before_x_ = 0, rows_ = 0, cols_ = 0;
  int image_ = -1, plane_ = -1;
};

/// A tensor of groups x batch x outputs x rows x columns of positions.
int declare(Builder& builder, const std::string& name, const View& view, std::vector<Index> sizes) {
  return builder.buffer(name, view.dtype, std::move(sizes),
                        {std::nullopt, std::nullopt, std::nullopt, std::nullopt, known(view.strides[5])});
}

/// A block has some rows of positions of one output of an image.
tile::Kernel product_kernel(const DepthwiseProduct& call, const WindowAxis& y, const WindowAxis& x) {
  const DType sums = sum_type(call.out.dtype);
  Builder builder("Depthwise");
  const Index groups = builder.size("groups"), batch = builder.size("batch"),
              outputs = builder.size("outputs"), all_rows = builder.size("rows"), cols = builder.size("cols"),
              block_rows = builder.size("block_rows"), blocks = ceil_div(all_rows, block_rows);
  builder.grid(batch * groups * outputs * blocks);
  const Index first = Index::block() % blocks * block_rows, output = Index::block() / blocks % outputs,
              group = Index::block() / blocks / outputs % groups,
              n = Index::block() / blocks / outputs / groups, rows = min(block_rows, all_rows - first);
  Plane plane(builder, call.image, y, x, sums, groups, batch);
  const int weight = builder.buffer("weight", call.weight.dtype, {groups, outputs, y.taps, x.taps},
                                    std::vector<std::optional<int64_t>>(4));
  const std::vector<Index> sizes = {groups, batch, outputs, all_rows, cols};
  std::vector<int> operands;
  operands.reserve(call.operands.size());
  for (const View& operand : call.operands)
    operands.push_back(declare(builder, concat("operand", operands.size()), operand, sizes));
  const int out = declare(builder, "out", call.out, sizes);
  plane.declare();

  plane.copy(group, n, first, rows, cols);
  Expr result = builder.broadcast(builder.constant(sums, 0.0), rows, cols);
  for (int64_t i = 0; i < y.taps; ++i)
    for (int64_t j = 0; j < x.taps; ++j) {
      const Expr factor = converted(builder.load(weight, {group, output, i, j}, 1, 1), sums);
      result = fma(builder.broadcast(factor, rows, cols), plane.under(i, j, 0, rows, cols), result);
    }
  const std::vector<Place> at = {group, n, output, first, 0};
  if (call.finish != nullptr) {
    std::vector<Expr> arguments = {result};
    for (const int operand : operands)
      arguments.push_back(converted(builder.load(operand, at, rows, cols), sums));
    result = call.finish->emit(arguments)[0];
  }
  builder.store(out, at, converted(result, call.out.dtype));
  return builder.finish();
}

/// A block has one output of a group. It sums whole vectors: what it finds beside the columns is not used.
tile::Kernel correlation_kernel(const DepthwiseCorrelation& call, const WindowAxis& y, const WindowAxis& x) {
  const DType sums = sum_type(call.out.dtype);
  Builder builder("DepthwiseWeight");
  const Index groups = builder.size("groups"), batch = builder.size("batch"),
              outputs = builder.size("outputs"), rows = builder.size("rows"), cols = builder.size("cols"),
              wide = builder.size("vectors");
  builder.grid(groups * outputs);
  const Index group = Index::block() / outputs, output = Index::block() % outputs;
  Plane plane(builder, call.image, y, x, sums, groups, batch);
  const int from = declare(builder, "gradient", call.gradient, {groups, batch, outputs, rows, cols}),
            out = builder.buffer("out", call.out.dtype, {groups, outputs, y.taps, x.taps},
                                 std::vector<std::optional<int64_t>>(4));
  plane.declare();
  const int gradient = builder.local("part", sums, {rows, wide});
  std::vector<int> columns;  // a buffer each: one pass adds to all
  for (int tap = 0; tap < y.taps * x.taps; ++tap) {
    columns.push_back(builder.local(concat("columns", tap), sums, {1, wide}));
    builder.store(columns.back(), {0, 0}, builder.broadcast(builder.constant(sums, 0.0), 1, wide));
  }
  builder.loop(0, batch, 1, {}, [&](const Index& n, const auto&) -> std::vector<Expr> {
    plane.copy(group, n, 0, rows, cols);
    builder.store(gradient, {0, 0},
                  converted(builder.load(from, {group, n, output, 0, 0}, rows, cols), sums));
    builder.loop(0, rows, 1, {}, [&](const Index& row, const auto&) -> std::vector<Expr> {
      const Expr factor = builder.load(gradient, {row, 0}, 1, wide);
      for (int tap = 0; tap < y.taps * x.taps; ++tap)
        builder.accumulate(columns[static_cast<size_t>(tap)], {0, 0},
                           factor * plane.under(tap / x.taps, tap % x.taps, row, 1, wide));
      return {};
    });
    return {};
  });
  for (int tap = 0; tap < y.taps * x.taps; ++tap) {
    const Expr sum = row_sum(builder.load(columns[static_cast<size_t>(tap)], {0, 0}, 1, cols));
    builder.store(out, {group, output, tap / x.taps, tap % x.taps}, converted(sum, call.out.dtype));
  }
  return builder.finish();
}

void add_tensor(KernelTable::Key& key, const View& view, int64_t step = 1) {
  key.add(view.dtype);
  key.add(static_cast<int8_t>(known(view.strides[5] * step).value_or(-1)));
}

/// Whether kernels are made for such windows over one channel.
bool is_small(const View& weight, const Windows& windows) {
  return weight.sizes[2] == 1 && taps_of(windows) <= kMostTaps &&
         std::ranges::all_of(windows, [](const Window& window) {
           return window.stride <= kMostReach && std::abs(window.step) <= kMostReach;
         });
}
bool is_plane(const View& image, const Windows& windows) {
  return windows[0].taps == 1 && windows[0].positions == 1 && windows[0].origin == 0 && image.sizes[3] == 1;
}

}  // namespace

bool has_depthwise_kernel(const DepthwiseProduct& call) {
  return is_small(call.weight, call.windows) &&
         (goes_by_channels(call) || is_plane(call.image, call.windows));
}
bool has_depthwise_kernel(const DepthwiseCorrelation& call) {
  return is_small(call.out, call.windows) && is_plane(call.image, call.windows);
}

void prepare(const DepthwiseProduct& given, std::vector<Launch>& launches) {
  static KernelTable& table = *new KernelTable;  // outlives every thread
  if (given.out.elements() == 0) return;
  if (goes_by_channels(given)) {
    launches.push_back(launch_channels(given));
    return;
  }
  DepthwiseProduct call = given;
  const int64_t before_y = crop(call.image, 4, call.windows[1]),
                before_x = crop(call.image, 5, call.windows[2]);
  const WindowAxis y(call.windows[1]), x(call.windows[2]);
  const int64_t groups = call.out.sizes[0], batch = call.out.sizes[1], outputs = call.out.sizes[2],
                rows = call.out.sizes[4], cols = call.out.sizes[5],
                plane_cols = round_up(cols + x.margin(), kVector);
  const int64_t most = std::clamp<int64_t>(kPlaneElements / (plane_cols * x.stride * y.stride), 1, rows),
                block_rows = ceil_div(rows, ceil_div(rows, most));
  jit::PackedArguments arguments;
  for (const int64_t size : {groups, batch, outputs, rows, cols, block_rows}) arguments.size(size);
  Plane::add_sizes(arguments, call.image, before_y, before_x, block_rows + y.margin(), plane_cols);
  Plane::add_buffer(arguments, call.image, y, x);
  const auto& of = call.weight.strides;
  arguments.buffer(call.weight.data, std::vector<int64_t>{of[0], of[1], of[4], of[5]});
  for (const View& operand : call.operands) arguments.buffer(operand.data, strides_of(operand));
  arguments.buffer(call.out.data, strides_of(call.out));

  KernelTable::Key key;
  for (const WindowAxis* axis : {&y, &x}) axis->add_to(key);
  add_tensor(key, call.image, x.stride);
  key.add(call.weight.dtype);
  add_tensor(key, call.out);
  key.add(reinterpret_cast<uintptr_t>(call.finish));
  for (const View& operand : call.operands) add_tensor(key, operand);
  launches.emplace_back(table.find(key, [&] { return product_kernel(call, y, x); }), arguments,
                        batch * groups * outputs * ceil_div(rows, block_rows),
                        static_cast<double>(call.out.elements() * (4 + taps_of(call.windows))));
}

void prepare(const DepthwiseCorrelation& given, const TakeMemory& take, std::vector<Launch>& launches) {
  static KernelTable& table = *new KernelTable;  // outlives every thread
  if (given.out.elements() == 0) return;
  if (goes_by_channels(given) && given.gradient.elements() != 0) {
    std::ranges::move(launch_channels(given, take), std::back_inserter(launches));
    return;
  }
  DepthwiseCorrelation call = given;
  const int64_t before_y = crop(call.image, 4, call.windows[1]),
                before_x = crop(call.image, 5, call.windows[2]);
  const WindowAxis y(call.windows[1]), x(call.windows[2]);
  const auto& sizes = call.gradient.sizes;
  jit::PackedArguments arguments;
  const int64_t wide = round_up(sizes[5], kVector);
  for (const int64_t size : {sizes[0], sizes[1], sizes[2], sizes[4], sizes[5], wide}) arguments.size(size);
  Plane::add_sizes(arguments, call.image, before_y, before_x, sizes[4] + y.margin(),
                   round_up(wide + x.margin(), kVector));
  Plane::add_buffer(arguments, call.image, y, x);
  arguments.buffer(call.gradient.data, strides_of(call.gradient));
  const auto& of = call.out.strides;
  arguments.buffer(call.out.data, std::vector<int64_t>{of[0], of[1], of[4], of[5]});

  KernelTable::Key key;
  for (const WindowAxis* axis : {&y, &x}) axis->add_to(key);
  add_tensor(key, call.image, x.stride);
  add_tensor(key, call.gradient);
  key.add(call.out.dtype);
  launches.emplace_back(table.find(key, [&] { return correlation_kernel(call, y, x); }), arguments,
                        sizes[0] * sizes[2],
                        static_cast<double>(call.gradient.elements() * (4 + taps_of(call.windows))));
}

}  // namespace anynpu::ops
