#include "ops/cube/depthwise.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <utility>

#include "ops/cube/gemm.h"
#include "ops/kernel_table.h"

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

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t round_up(int64_t a, int64_t to) { return ceil_div(a, to) * to; }

/// What a kernel is made for of a window along a dimension. Its taps have distances of 0, step, 2 step, ...
/// from its first element, in this order or from the last one on.
struct Axis {
  uint8_t taps, stride, step;
  bool goes_back;

  explicit Axis(const Window& window)
      : taps(static_cast<uint8_t>(window.taps)),
        stride(static_cast<uint8_t>(window.stride)),
        step(static_cast<uint8_t>(window.taps > 1 ? std::abs(window.step) : 1)),
        goes_back(window.taps > 1 && window.step < 0) {}
  int64_t distance(int64_t tap) const { return (goes_back ? taps - 1 - tap : tap) * step; }
  /// How many more elements than positions, in steps of the stride, are under the window.
  int64_t margin() const { return taps == 0 ? 0 : (taps - 1) * step / stride; }
};

/// How a row lies: what a kernel is made for.
std::optional<int64_t> known(int64_t stride) {
  return stride >= 0 && stride <= 2 ? std::optional(stride) : std::nullopt;
}

/// Dimensions of a tensor of groups x batch x outputs x depth x height x width without the depth, which is 1.
std::vector<int64_t> strides_of(const View& view) {
  const auto& of = view.strides;
  return {of[0], of[1], of[2], of[4], of[5]};
}

/// A block has some rows of positions of one output of an image. Its part of the image is in memory of its
/// own, with zeros around it, apart by rows and columns modulo the strides.
tile::Kernel kernel_of(const DepthwiseProduct& call, const Axis& y, const Axis& x) {
  const DType sums = sum_type(call.out.dtype);
  Builder builder("Depthwise");
  const Index groups = builder.size("groups"), batch = builder.size("batch"),
              outputs = builder.size("outputs"), height = builder.size("height"),
              width = builder.size("width"), all_rows = builder.size("rows"), cols = builder.size("cols"),
              block_rows = builder.size("block_rows"), plane_rows = builder.size("plane_rows"),
              plane_cols = builder.size("plane_cols"), before_y = builder.size("before_height"),
              before_x = builder.size("before_width");
  const Index blocks = ceil_div(all_rows, block_rows);
  builder.grid(batch * groups * outputs * blocks);
  const Index first = Index::block() % blocks * block_rows, output = Index::block() / blocks % outputs,
              group = Index::block() / blocks / outputs % groups,
              n = Index::block() / blocks / outputs / groups, rows = min(block_rows, all_rows - first);

  const int image = builder.buffer("image", call.image.dtype, {groups, batch, height, width, height, width},
                                   {std::nullopt, std::nullopt, std::nullopt, std::nullopt, std::nullopt,
                                    known(call.image.strides[5] * x.stride)});
  const int weight = builder.buffer("weight", call.weight.dtype, {groups, outputs, y.taps, x.taps},
                                    std::vector<std::optional<int64_t>>(4));
  const auto declare = [&](const std::string& name, const View& view) {
    return builder.buffer(name, view.dtype, {groups, batch, outputs, all_rows, cols},
                          {std::nullopt, std::nullopt, std::nullopt, std::nullopt, known(view.strides[5])});
  };
  std::vector<int> operands;
  for (const View& operand : call.operands)
    operands.push_back(declare(concat("operand", operands.size()), operand));
  const int out = declare("out", call.out);
  const int plane = builder.local("plane", sums, {y.stride, x.stride, plane_rows, plane_cols});

  const auto within = [](const Index& least, const Index& number, const Index& most) {
    return max(least, min(number, most));
  };
  const Expr zero = builder.constant(sums, 0.0);
  for (int64_t v = 0; v < y.stride; ++v)
    for (int64_t u = 0; u < x.stride; ++u) {
      const Index top = first * y.stride + v - before_y, left = u - before_x;
      const Index down = rows + y.margin(), across = cols + x.margin();
      const Index begin_y = within(0, ceil_div(0 - top, Index(y.stride)), down),
                  end_y = within(begin_y, ceil_div(height - top, Index(y.stride)), down),
                  begin_x = within(0, ceil_div(0 - left, Index(x.stride)), across),
                  end_x = within(begin_x, ceil_div(width - left, Index(x.stride)), across);
      builder.store(plane, {v, u, 0, 0}, builder.broadcast(zero, down, plane_cols));
      builder.store(
          plane, {v, u, begin_y, begin_x},
          converted(builder.load(image, {group, n, top + begin_y * y.stride, left + begin_x * x.stride, 0, 0},
                                 end_y - begin_y, end_x - begin_x),
                    sums));
    }
  Expr result = builder.broadcast(zero, rows, cols);
  for (int64_t i = 0; i < y.taps; ++i)
    for (int64_t j = 0; j < x.taps; ++j) {
      const int64_t v = y.distance(i), u = x.distance(j);
      const Expr factor = converted(builder.load(weight, {group, output, i, j}, 1, 1), sums),
                 elements = builder.load(plane, {v % y.stride, u % x.stride, v / y.stride, u / x.stride},
                                         rows, cols);
      result = fma(builder.broadcast(factor, rows, cols), elements, result);
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

/// Without what is before the first element under a tap. Returns how many zeros are before the image.
int64_t crop(View& image, size_t dim, const Window& window) {
  const int64_t first = window.last() < window.first() ? 0 : window.first();
  if (first <= 0) return -first;
  const int64_t gone = std::min(first, image.sizes[dim]);
  image.data =
      static_cast<char*>(image.data) + gone * image.strides[dim] * static_cast<int64_t>(size_of(image.dtype));
  image.sizes[dim] -= gone;
  return 0;
}

}  // namespace

bool has_depthwise_kernel(const DepthwiseProduct& call) {
  const Window& depth = call.windows[0];
  return call.weight.sizes[2] == 1 && depth.taps == 1 && depth.positions == 1 && depth.origin == 0 &&
         call.image.sizes[3] == 1 && taps_of(call.windows) <= kMostTaps &&
         std::ranges::all_of(call.windows, [](const Window& window) {
           return window.stride <= kMostReach && std::abs(window.step) <= kMostReach;
         });
}

void prepare(const DepthwiseProduct& given, std::vector<Launch>& launches) {
  static KernelTable& table = *new KernelTable;  // outlives every thread
  if (given.out.elements() == 0) return;
  DepthwiseProduct call = given;
  const int64_t before_y = crop(call.image, 4, call.windows[1]),
                before_x = crop(call.image, 5, call.windows[2]);
  const Axis y(call.windows[1]), x(call.windows[2]);
  const int64_t groups = call.out.sizes[0], batch = call.out.sizes[1], outputs = call.out.sizes[2],
                rows = call.out.sizes[4], cols = call.out.sizes[5],
                plane_cols = round_up(cols + x.margin(), kVector);
  const int64_t most = std::clamp<int64_t>(kPlaneElements / (plane_cols * x.stride * y.stride), 1, rows),
                block_rows = ceil_div(rows, ceil_div(rows, most));
  jit::PackedArguments arguments;
  for (const int64_t size : {groups, batch, outputs, call.image.sizes[4], call.image.sizes[5], rows, cols,
                             block_rows, block_rows + y.margin(), plane_cols, before_y, before_x})
    arguments.size(size);
  const auto& of = call.image.strides;
  arguments.buffer(call.image.data,
                   std::vector<int64_t>{of[0], of[1], of[4], of[5], of[4] * y.stride, of[5] * x.stride});
  const auto& to = call.weight.strides;
  arguments.buffer(call.weight.data, std::vector<int64_t>{to[0], to[1], to[4], to[5]});
  for (const View& operand : call.operands) arguments.buffer(operand.data, strides_of(operand));
  arguments.buffer(call.out.data, strides_of(call.out));

  KernelTable::Key key;
  const auto add = [&](const View& view, int64_t stride) {
    key.add(view.dtype);
    key.add(static_cast<int8_t>(known(stride).value_or(-1)));
  };
  add(call.image, of[5] * x.stride);
  add(call.out, call.out.strides[5]);
  for (const Axis& axis : {y, x})
    for (const uint8_t number : {axis.taps, axis.stride, axis.step, static_cast<uint8_t>(axis.goes_back)})
      key.add(number);
  key.add(reinterpret_cast<uintptr_t>(call.finish));
  for (const View& operand : call.operands) add(operand, operand.strides[5]);
  launches.emplace_back(table.find(key, [&] { return kernel_of(call, y, x); }), arguments,
                        batch * groups * outputs * ceil_div(rows, block_rows),
                        static_cast<double>(call.out.elements() * (4 + taps_of(call.windows))));
}

}  // namespace anynpu::ops
