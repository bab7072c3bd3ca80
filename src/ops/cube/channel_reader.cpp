#include "ops/cube/channel_reader.h"

#include <algorithm>
#include <utility>

#include "ops/cube/gemm.h"
#include "ops/grid.h"

namespace anynpu::ops {
namespace {

using tile::Builder;
using tile::Expr;
using tile::Index;

/// 1 or 0.
Index is_below(const Index& a, const Index& b) { return within(0, b - a, 1); }
Index is_inside(const Index& place, const Index& first, const Index& last) {
  return is_below(first - 1, place) * is_below(place, last);
}
/// Either of them, where `condition` is 1 or 0.
Index chosen(const Index& condition, const Index& a, const Index& b) { return b + condition * (a - b); }

void name(Builder& builder, const std::vector<Index>& values, std::vector<Index> names,
          const std::function<void(const std::vector<Index>&)>& body) {
  if (names.size() == values.size()) return body(names);
  const Index& value = values[names.size()];
  for_each(builder, value, value + 1, 1, [&](const Index& counter) {
    std::vector<Index> more = names;
    more.push_back(counter);
    name(builder, values, std::move(more), body);
  });
}

/// Positions along a dimension whose taps are all in the image.
struct Span {
  int64_t first = 0, last = 0;

  Span() = default;
  Span(const WindowAxis& axis, int64_t positions, int64_t before, int64_t size)
      : first(std::min(positions, ceil_div(before, axis.stride))),
        last(std::clamp(ceil_div(std::max<int64_t>(0, size + before - axis.reach()), axis.stride), first,
                        positions)) {}
  int64_t count() const { return last - first; }
};

}  // namespace

void WindowAxes::add_to(KernelTable::Key& key) const {
  for (const WindowAxis* axis : {&z, &y, &x}) axis->add_to(key);
}

void for_each(Builder& builder, const Index& first, const Index& last, int64_t step,
              const std::function<void(const Index&)>& body) {
  builder.loop(first, last, step, {}, [&](const Index& i, const auto&) -> std::vector<Expr> {
    body(i);
    return {};
  });
}

void named(Builder& builder, const std::vector<Index>& values,
           const std::function<void(const std::vector<Index>&)>& body) {
  name(builder, values, {}, body);
}

ChannelReader::ChannelReader(Builder& builder, const View& image, const WindowAxes& axes, int64_t at_once,
                             const Index& groups, const Index& batch, const Index& channels)
    : builder_(builder),
      axes_(axes),
      dtype_(sum_type(image.dtype)),
      in_place_(image.dtype == dtype_),
      at_once_(at_once),
      places_((at_once - 1) * axes.y.stride + axes.y.reach() + 1),
      channels_(channels) {
  for (const auto& [dim, name] : {std::pair{&z_, "depth"}, {&y_, "height"}, {&x_, "width"}}) {
    dim->size = builder.size(name);
    dim->before = builder.size(concat("before_", name));
    dim->inner = builder.size(concat("inner_", name));
    dim->outer = builder.size(concat("outer_", name));
  }
  most_cols_ = builder.size("most_cols");
  // Elements under a tap are places in two dimensions: where they start, and how far from there in steps of
  // the stride.
  image_ = builder.buffer("image", image.dtype, {batch, z_.size, y_.size, x_.size, x_.size, groups},
                          {{}, {}, {}, {}, {}, known(image.strides[0])});
}

void ChannelReader::declare() {
  copy_ = builder_.local("copy", dtype_, {axes_.x.stride, axes_.z.taps, places_, most_cols_, channels_});
}

void ChannelReader::add_sizes(jit::PackedArguments& arguments, const View& image, const WindowAxes& axes,
                              const std::array<int64_t, 3>& before, const std::array<int64_t, 3>& positions,
                              int64_t block_cols) {
  const auto& [z, y, x] = axes;
  std::array<Span, 3> inner = {Span(z, positions[0], before[0], image.sizes[3]),
                               Span(y, positions[1], before[1], image.sizes[4]),
                               Span(x, positions[2], before[2], image.sizes[5])};
  const auto copied = [&](int64_t rows, int64_t cols) {  // elements
    return rows == 0 || cols == 0 ? 0 : (rows * y.stride + y.reach()) * (cols * x.stride + x.reach());
  };
  const auto& [of_z, of_y, of_x] = inner;
  const int64_t around = copied(of_y.first, positions[2]) + copied(positions[1] - of_y.last, positions[2]) +
                         copied(of_y.count(), of_x.first) + copied(of_y.count(), positions[2] - of_x.last);
  if (around >= copied(positions[1], positions[2])) inner = {};  // copying all is less
  for (size_t d = 0; d < 3; ++d)
    for (const int64_t size : {image.sizes[3 + d], before[d], inner[d].first, inner[d].last})
      arguments.size(size);
  arguments.size(block_cols + x.margin());
}

void ChannelReader::add_buffer(jit::PackedArguments& arguments, const View& image, const WindowAxes& axes) {
  const auto& of = image.strides;
  arguments.buffer(image.data,
                   std::vector<int64_t>{of[1], of[3], of[4], of[5], of[5] * axes.x.stride, of[0]});
}

void ChannelReader::for_each_part(const Block& block, const Body& body) const {
  const Index end_y = block.y + block.rows, end_x = block.x + block.cols;
  if (!in_place_) return take_copied(block, block.y, end_y, block.x, block.cols, body);
  const Index has_inner = is_inside(block.z, z_.inner, z_.outer);
  const std::vector<Index> edges = {
      chosen(has_inner, within(block.y, y_.inner, end_y), end_y),
      chosen(has_inner, within(block.y, y_.outer, end_y), end_y),
      within(block.x, x_.inner, end_x),
      within(block.x, x_.outer, end_x),
  };
  named(builder_, edges, [&](const std::vector<Index>& inner) {
    for_each(builder_, 0, 3, 1, [&](const Index& band) { take_band(block, band, inner, body); });
  });
}

/// Of rows above those that are read in place, of these, and of those below. `inner`: the first row that is
/// read in place and the one after the last, and such columns.
void ChannelReader::take_band(const Block& block, const Index& band, const std::vector<Index>& inner,
                              const Body& body) const {
  const Index is_first = is_below(band, 1), is_last = is_below(1, band);
  const std::vector<Index> rows = {
      chosen(is_first, block.y, chosen(is_last, inner[1], inner[0])),
      chosen(is_first, inner[0], chosen(is_last, block.y + block.rows, inner[1])),
      1 - is_first - is_last,
      inner[3] - inner[2],
  };
  named(builder_, rows, [&](const std::vector<Index>& names) {
    const Index &top = names[0], &bottom = names[1], &has_inner = names[2], &inner_cols = names[3];
    for_each(builder_, 0, 2, 1, [&](const Index& side) {  // left and right; all, and none
      const Index left = inner[2] - block.x, right = block.x + block.cols - inner[3];
      const std::vector<Index> cols = {
          chosen(side, inner[3], block.x),
          chosen(has_inner, chosen(side, right, left), (1 - side) * block.cols),
      };
      named(builder_, cols,
            [&](const std::vector<Index>& cols) { take_copied(block, top, bottom, cols[0], cols[1], body); });
    });
    take_in_place(block, top, chosen(has_inner, bottom, top), inner[2], inner_cols, body);
  });
}

void ChannelReader::take_in_place(const Block& block, const Index& top, const Index& bottom, const Index& col,
                                  const Index& cols, const Body& body) const {
  for_each_row(top, bottom, [&](const Index& row, int64_t rows) {
    const auto under = [&](int64_t tap, int64_t i) {
      const auto [at_z, at_y, at_x] = distances(tap);
      const Index z = block.z * axes_.z.stride + at_z - z_.before,
                  y = (row + i) * axes_.y.stride + at_y - y_.before,
                  x = col * axes_.x.stride + at_x - x_.before;
      return builder_.load(image_, {block.n, z, y, x, 0, block.channel}, cols, block.channels);
    };
    body({row, rows, col, cols, under});
  });
}

void ChannelReader::take_copied(const Block& block, const Index& top, const Index& bottom, const Index& col,
                                const Index& cols, const Body& body) const {
  const Index end = chosen(min(cols, 1), bottom, top);  // no columns: no rows
  for_each_row(top, end, [&](const Index& row, int64_t rows) {
    // Rows of the image are counted from the first one under the window at `top`.
    const Index first = (row - top) * axes_.y.stride,
                last = first + (rows - 1) * axes_.y.stride + axes_.y.reach() + 1,
                fresh = first + std::max<int64_t>(0, axes_.y.reach() + 1 - axes_.y.stride);
    for_each(builder_, chosen(is_below(top, row), fresh, first), last, 1, [&](const Index& i) {
      for (int64_t k = 0; k < axes_.z.taps; ++k)
        for (int64_t u = 0; u < axes_.x.stride; ++u)
          if (is_used(u)) copy(block, top, i, k, u, col, cols);
    });
    const auto under = [&](int64_t tap, int64_t i) {
      const auto [at_z, at_y, at_x] = distances(tap);
      const Index place = (first + i * axes_.y.stride + at_y) % places_;
      return builder_.load(
          copy_, {at_x % axes_.x.stride, tap / axes_.x.taps / axes_.y.taps, place, at_x / axes_.x.stride, 0},
          cols, block.channels);
    };
    body({row, rows, col, cols, under});
  });
}

/// Copies elements of a row that are at distance `u`, modulo the stride, from those under the first tap.
void ChannelReader::copy(const Block& block, const Index& top, const Index& row, int64_t k, int64_t u,
                         const Index& col, const Index& cols) const {
  const int64_t stride = axes_.x.stride;
  const Index z = block.z * axes_.z.stride + axes_.z.distance(k) - z_.before,
              y = top * axes_.y.stride - y_.before + row, left = col * stride + u - x_.before,
              across = cols + axes_.x.margin(), place = row % places_;
  const auto up_to = [&](const Index& x) { return within(0, ceil_div(x - left, Index(stride)), across); };
  const Index is_there = is_inside(z, 0, z_.size) * is_inside(y, 0, y_.size), begin = up_to(0);
  const std::vector<Index> ends = {
      chosen(is_there, begin, across),
      chosen(is_there, max(begin, up_to(x_.size)), across),
      across,
  };
  named(builder_, ends, [&](const std::vector<Index>& ends) {
    const Index &first = ends[0], &last = ends[1];
    const auto clear = [&](const Index& from, const Index& to) {
      const Expr zero = builder_.constant(dtype_, 0.0);
      builder_.store(copy_, {u, k, place, from, 0}, builder_.broadcast(zero, to - from, block.channels));
    };
    clear(0, first);
    const Expr elements = builder_.load(image_, {block.n, z, y, left + first * stride, 0, block.channel},
                                        last - first, block.channels);
    builder_.store(copy_, {u, k, place, first, 0}, converted(elements, dtype_));
    clear(last, ends[2]);
  });
}

/// Whether a tap has such a distance modulo the stride.
bool ChannelReader::is_used(int64_t u) const {
  for (int64_t tap = 0; tap < axes_.x.taps; ++tap)
    if (axes_.x.distance(tap) % axes_.x.stride == u) return true;
  return false;
}

ChannelReader::Distances ChannelReader::distances(int64_t tap) const {
  const auto& [z, y, x] = axes_;
  return {z.distance(tap / x.taps / y.taps), y.distance(tap / x.taps % y.taps), x.distance(tap % x.taps)};
}

void ChannelReader::for_each_row(const Index& first, const Index& last,
                                 const std::function<void(const Index&, int64_t)>& body) const {
  const Index whole = first + (last - first) / at_once_ * at_once_;
  for_each(builder_, first, whole, at_once_, [&](const Index& row) { body(row, at_once_); });
  if (at_once_ > 1) for_each(builder_, whole, last, 1, [&](const Index& row) { body(row, 1); });
}

}  // namespace anynpu::ops
