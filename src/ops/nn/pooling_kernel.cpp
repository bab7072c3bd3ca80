#include "ops/nn/pooling_kernel.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <string>
#include <utility>

#include "ops/kernel_table.h"

namespace anynpu::ops {
namespace {

using tile::Builder;
using tile::Expr;
using tile::Index;
using tile::Place;

constexpr int64_t kBlockElements = 2048;  ///< results of a block, about
constexpr int64_t kMostCols = 512;        ///< channels of a block

/// What the columns of tiles are, and their rows: height and width, or width and channels.
enum class Columns : uint8_t { kWidth, kChannels };

/// What a kernel is made for.
struct Form {
  PoolGives gives;
  Columns columns;
  bool adaptive, has_divisor;
  DType image, result, index;                  ///< of gradients: that of positions
  int8_t image_step, result_step, index_step;  ///< between columns; -1: not known

  bool by_width() const { return columns == Columns::kWidth; }
  DType compute() const { return compute_type(image); }
};

int8_t known(int64_t stride) { return stride == 1 || stride == 2 ? static_cast<int8_t>(stride) : int8_t{-1}; }

/// Where one tap of windows lies along a dimension: those at `count` positions from `first` on have an
/// element under it, the first one has `element`, and the next ones have those after each `stride`.
struct Tap {
  Index element, first, count, stride;
};

class Axis {
 public:
  Axis(Builder& builder, const std::string& name, bool adaptive) : adaptive_(adaptive) {
    const auto size = [&](const char* what) { return builder.size(concat(name, "_", what)); };
    size_ = size("size");
    positions_ = size("positions");
    taps_ = size("taps");
    stride_ = size("stride");
    padding_ = size("padding");
    dilation_ = size("dilation");
    margin_ = size("margin");
  }
  static void add_sizes(jit::PackedArguments& arguments, const PoolAxis& axis, int64_t size,
                        bool counts_padding) {
    for (const int64_t number : {size, axis.positions, axis.taps, axis.stride, axis.padding, axis.dilation,
                                 counts_padding ? axis.padding : 0})
      arguments.size(number);
  }

  const Index& size() const { return size_; }
  const Index& positions() const { return positions_; }

  using OfTap = std::function<void(const Tap&)>;
  /// The taps of the window at one position, counted from there.
  void for_each_tap_at(Builder& builder, const Index& position, const OfTap& body) const {
    const Index start = start_of(position), step = adaptive_ ? Index(1) : dilation_;
    const Index begin = adaptive_ ? Index(0) : max(0, ceil_div(0 - start, step)),
                end = adaptive_ ? end_of(position) - start : min(taps_, ceil_div(size_ - start, step));
    builder.loop(begin, end, 1, {}, [&](const Index& tap, const auto&) -> std::vector<Expr> {
      body({start + tap * step, position, 1, 0});
      return {};
    });
  }
  /// The taps of the windows at positions [first, first + count), for all of them.
  void for_each_tap(Builder& builder, const Index& first, const Index& count, const OfTap& body) const {
    builder.loop(0, taps_, 1, {}, [&](const Index& tap, const auto&) -> std::vector<Expr> {
      const Index offset = tap * dilation_ - padding_;
      const Index begin = max(first, ceil_div(0 - offset, stride_)),
                  end = max(begin, min(first + count, ceil_div(size_ - offset, stride_)));
      body({begin * stride_ + offset, begin, end - begin, stride_});
      return {};
    });
  }

  /// How many elements count for the window at a position: one at least.
  Expr extent_at(Builder& builder, const Index& position, DType dtype) const {
    const Index start = start_of(position);
    const Index extent =
        adaptive_ ? end_of(position) - start : min(start + taps_, size_ + margin_) - max(start, 0 - margin_);
    return converted(builder.index(max(1, extent)), dtype);
  }
  /// The same of windows at positions from `first` on, along an axis of tiles.
  Expr extents(Builder& builder, tile::Axis axis, const Index& first, const Index& count, DType dtype) const {
    const auto number = [&](const Index& index) { return builder.index(index); };
    const Expr start = (builder.iota(axis, count) + number(first)) * number(stride_) - number(padding_);
    const Expr extent = min(start + number(taps_), number(size_ + margin_)) - max(start, number(0 - margin_));
    return converted(max(extent, number(1)), dtype);
  }

 private:
  Index start_of(const Index& position) const {
    return adaptive_ ? position * size_ / positions_ : position * stride_ - padding_;
  }
  Index end_of(const Index& position) const { return ceil_div((position + 1) * size_, positions_); }

  const bool adaptive_;
  Index size_ = 0, positions_ = 0, taps_ = 0, stride_ = 0, padding_ = 0, dilation_ = 0;
  Index margin_ = 0;  ///< elements around the image that count as its own
};

/// The dimensions of a call in a kernel, and its tensors.
class Layout {
 public:
  Layout(Builder& builder, const Form& form)
      : builder_(builder),
        form_(form),
        batch_(builder.size("batch")),
        channels_(builder.size("channels")),
        z(builder, "depth", form.adaptive),
        y(builder, "height", form.adaptive),
        x(builder, "width", form.adaptive),
        most_rows(builder.size("most_rows")),
        most_cols(builder.size("most_cols")) {}

  /// An image, with dimensions of places one stride apart after its own: those of the rows and columns of
  /// tiles that go along positions.
  int image(const std::string& name) const {
    std::vector<Index> sizes = {batch_,   channels_,     z.size(),     y.size(),
                                x.size(), y.positions(), x.positions()};
    if (!form_.by_width()) sizes = {batch_, z.size(), y.size(), x.size(), x.positions(), channels_};
    return builder_.buffer(name, form_.image, sizes, strides(sizes.size(), form_.image_step));
  }
  int result(const std::string& name, DType dtype, int8_t step) const {
    std::vector<Index> sizes = {batch_, channels_, z.positions(), y.positions(), x.positions()};
    if (!form_.by_width()) std::rotate(sizes.begin() + 1, sizes.begin() + 2, sizes.end());
    return builder_.buffer(name, dtype, sizes, strides(sizes.size(), step));
  }
  static void add_image(jit::PackedArguments& arguments, const Form& form, const Pool& pool,
                        const View& view) {
    const auto& of = view.strides;
    const int64_t down = of[3] * pool.axes[1].stride, across = of[4] * pool.axes[2].stride;
    arguments.buffer(view.data, form.by_width()
                                    ? std::vector<int64_t>{of[0], of[1], of[2], of[3], of[4], down, across}
                                    : std::vector<int64_t>{of[0], of[2], of[3], of[4], across, of[1]});
  }
  static void add_result(jit::PackedArguments& arguments, const Form& form, const View& view) {
    std::vector<int64_t> strides = view.strides;
    if (!form.by_width()) std::rotate(strides.begin() + 1, strides.begin() + 2, strides.end());
    arguments.buffer(view.data, strides);
  }

  std::vector<Place> in_image(const Index& n, const Index& c, const Index& depth, const Index& height,
                              const Index& width) const {
    if (form_.by_width()) return {n, c, depth, height, width, 0, 0};
    return {n, depth, height, width, 0, c};
  }
  std::vector<Place> in_result(const Index& n, const Index& c, const Index& depth, const Index& height,
                               const Index& width) const {
    if (form_.by_width()) return {n, c, depth, height, width};
    return {n, depth, height, width, c};
  }

  const Index& batch() const { return batch_; }
  const Index& channels() const { return channels_; }

 private:
  static std::vector<std::optional<int64_t>> strides(size_t dims, int8_t last) {
    std::vector<std::optional<int64_t>> strides(dims);
    if (last > 0) strides.back() = last;
    return strides;
  }

  Builder& builder_;
  const Form& form_;
  const Index batch_, channels_;

 public:
  const Axis z, y, x;
  const Index most_rows, most_cols;  ///< of a block's tiles
};

/// How many elements each window has, of those whose positions are rows and columns of a tile that starts at
/// these.
Expr elements_of_windows(Builder& builder, const Form& form, const Layout& layout, const Index& depth,
                         const Index& height, const Index& width, const Index& rows, const Index& cols) {
  const DType dtype = form.compute();
  const Expr deep = layout.z.extent_at(builder, depth, dtype);
  if (form.by_width())
    return deep * layout.y.extents(builder, tile::Axis::kRows, height, rows, dtype) *
           layout.x.extents(builder, tile::Axis::kCols, width, cols, dtype);
  const Expr plane = deep * layout.y.extent_at(builder, height, dtype);
  if (form.adaptive) return plane * layout.x.extent_at(builder, width, dtype);
  return plane * layout.x.extents(builder, tile::Axis::kRows, width, rows, dtype);
}

/// A block of results: positions of rows and columns of one depth of an image; where columns are channels, of
/// one height, and where windows are adaptive, of one width.
class Block {
 public:
  Block(Builder& builder, const Form& form, const Layout& layout)
      : builder_(builder), form_(form), layout_(layout) {
    Index rest = Index::block();
    const auto take = [&](const Index& count) {
      const Index taken = rest % count;
      rest = rest / count;
      return taken;
    };
    const auto &y = layout.y, &x = layout.x;
    if (form.by_width()) {
      const Index parts = ceil_div(y.positions(), layout.most_rows);
      height_ = take(parts) * layout.most_rows;
      rows_ = min(layout.most_rows, y.positions() - height_);
      cols_ = x.positions();
      depth_ = take(layout.z.positions());
      channel_ = take(layout.channels());
      builder.grid(layout.batch() * layout.channels() * layout.z.positions() * parts);
    } else {
      const Index parts = ceil_div(layout.channels(), layout.most_cols),
                  widths = ceil_div(x.positions(), layout.most_rows);
      channel_ = take(parts) * layout.most_cols;
      cols_ = min(layout.most_cols, layout.channels() - channel_);
      width_ = take(widths) * layout.most_rows;
      rows_ = min(layout.most_rows, x.positions() - width_);
      height_ = take(y.positions());
      depth_ = take(layout.z.positions());
      builder.grid(layout.batch() * parts * widths * y.positions() * layout.z.positions());
    }
    image_ = rest;
  }

  const Index& rows() const { return rows_; }
  const Index& cols() const { return cols_; }
  std::vector<Place> in_result() const {
    return layout_.in_result(image_, channel_, depth_, height_, width_);
  }

  /// Elements under a tap of some of the block's windows: the first one's place in the image, and the rows
  /// and columns of the block that the windows have.
  struct Elements {
    std::vector<Place> in_image;
    Index row, col, rows, cols;
    Index depth, height, width, down, across;  ///< the first element, and how far the next ones are
  };
  void for_each_tap(const std::function<void(const Elements&)>& body) const {
    const auto &y = layout_.y, &x = layout_.x;
    layout_.z.for_each_tap_at(builder_, depth_, [&](const Tap& in_z) {
      const auto found = [&](const Tap& in_y, const Tap& in_x) {
        Elements elements = {layout_.in_image(image_, channel_, in_z.element, in_y.element, in_x.element),
                             in_x.first - width_,
                             0,
                             in_x.count,
                             cols_,
                             in_z.element,
                             in_y.element,
                             in_x.element,
                             in_y.stride,
                             in_x.stride};
        if (form_.by_width()) {
          elements.row = in_y.first - height_;
          elements.rows = in_y.count;
          elements.col = in_x.first;
          elements.cols = in_x.count;
        }
        body(elements);
      };
      if (form_.by_width()) {
        y.for_each_tap(builder_, height_, rows_, [&](const Tap& in_y) {
          x.for_each_tap(builder_, 0, cols_, [&](const Tap& in_x) { found(in_y, in_x); });
        });
      } else {
        y.for_each_tap_at(builder_, height_, [&](const Tap& in_y) {
          const auto row = [&](const Tap& in_x) { found(in_y, in_x); };
          if (form_.adaptive)
            x.for_each_tap_at(builder_, width_, row);
          else
            x.for_each_tap(builder_, width_, rows_, row);
        });
      }
    });
  }

  /// How many elements each window has.
  Expr count() const {
    return elements_of_windows(builder_, form_, layout_, depth_, height_, width_, rows_, cols_);
  }

 private:
  Builder& builder_;
  const Form& form_;
  const Layout& layout_;
  Index image_ = 0, channel_ = 0, depth_ = 0, height_ = 0, width_ = 0, rows_ = 0, cols_ = 0;
};

/// Numbers of elements in their image: depth, height, width.
Expr numbers_of(Builder& builder, const Form& form, const Layout& layout, const Block::Elements& elements) {
  const auto &height = layout.y.size(), &width = layout.x.size();
  const Index first = (elements.depth * height + elements.height) * width + elements.width;
  const auto along = [&](tile::Axis axis, const Index& count, const Index& step) {
    return builder.iota(axis, count, DType::kI32) * builder.index(step, DType::kI32);
  };
  const Expr start = builder.index(first, DType::kI32);
  if (!form.by_width()) return start + along(tile::Axis::kRows, elements.rows, elements.across);
  return start + along(tile::Axis::kRows, elements.rows, elements.down * width) +
         along(tile::Axis::kCols, elements.cols, elements.across);
}

tile::Kernel greatest_kernel(const Form& form) {
  Builder builder("MaxPool");
  const Layout layout(builder, form);
  const int image = layout.image("image"), result = layout.result("result", form.result, form.result_step),
            indices = layout.result("indices", form.index, form.index_step);
  const DType dtype = form.compute();
  const int greatest = builder.local("greatest", dtype, {layout.most_rows, layout.most_cols}),
            places = builder.local("places", DType::kI32, {layout.most_rows, layout.most_cols});
  const Block block(builder, form, layout);
  const auto fill = [&](int local, const Expr& number) {
    builder.store(local, {0, 0}, builder.broadcast(number, block.rows(), block.cols()));
  };
  fill(greatest, builder.constant(dtype, -std::numeric_limits<double>::infinity()));
  fill(places, builder.constant(DType::kI32, int64_t{-1}));
  block.for_each_tap([&](const Block::Elements& elements) {
    const auto& [from, row, col, rows, cols, depth, height, width, down, across] = elements;
    const Expr value = converted(builder.load(image, from, rows, cols), dtype),
               so_far = builder.load(greatest, {row, col}, rows, cols),
               place = builder.load(places, {row, col}, rows, cols);
    const Expr takes = (value > so_far) | (value != value) | (place < 0.0);
    const Expr number = builder.broadcast(numbers_of(builder, form, layout, elements), rows, cols);
    builder.store(greatest, {row, col}, select(takes, value, so_far));
    builder.store(places, {row, col}, select(takes, number, place));
  });
  const auto finished = [&](int local, DType to) {
    return converted(builder.load(local, {0, 0}, block.rows(), block.cols()), to);
  };
  builder.store(result, block.in_result(), finished(greatest, form.result));
  builder.store(indices, block.in_result(), finished(places, form.index));
  return builder.finish();
}

tile::Kernel mean_kernel(const Form& form) {
  Builder builder("AveragePool");
  const Layout layout(builder, form);
  const int image = layout.image("image"), result = layout.result("result", form.result, form.result_step);
  const DType dtype = form.compute();
  const int sums = builder.local("sums", dtype, {layout.most_rows, layout.most_cols});
  const Block block(builder, form, layout);
  const Expr divisor = form.has_divisor ? builder.scalar("divisor", dtype) : block.count();
  builder.store(sums, {0, 0}, builder.broadcast(builder.constant(dtype, 0.0), block.rows(), block.cols()));
  block.for_each_tap([&](const Block::Elements& elements) {
    const auto& [from, row, col, rows, cols, depth, height, width, down, across] = elements;
    builder.store(
        sums, {row, col},
        builder.load(sums, {row, col}, rows, cols) + converted(builder.load(image, from, rows, cols), dtype));
  });
  const Expr mean = builder.load(sums, {0, 0}, block.rows(), block.cols()) / divisor;
  builder.store(result, block.in_result(), converted(mean, form.result));
  return builder.finish();
}

/// A block has an image and a channel of it, or some: it adds the gradients of all windows, tap after tap.
tile::Kernel mean_gradient_kernel(const Form& form) {
  Builder builder("AveragePoolBackward");
  const Layout layout(builder, form);
  const int image = layout.image("image"), grad = layout.result("grad", form.result, form.result_step);
  const DType dtype = form.compute();
  const std::optional<Expr> divisor =
      form.has_divisor ? std::optional(builder.scalar("divisor", dtype)) : std::nullopt;
  const auto &z = layout.z, &y = layout.y, &x = layout.x;
  const Index parts = ceil_div(layout.channels(), layout.most_cols),
              blocks = form.by_width() ? layout.channels() : parts;
  builder.grid(layout.batch() * blocks);
  const Index n = Index::block() / blocks,
              channel = form.by_width() ? Index::block() % blocks : Index::block() % parts * layout.most_cols,
              channels = min(layout.most_cols, layout.channels() - channel);
  const auto each = [&](const Index& count, const std::function<void(const Index&)>& body) {
    builder.loop(0, count, 1, {}, [&](const Index& i, const auto&) -> std::vector<Expr> {
      body(i);
      return {};
    });
  };
  // Adds gradients of some widths at one height, or at some where they are rows.
  const auto add = [&](const Index& depth, const Tap& in_z, const Tap& in_y, const Tap& in_x) {
    const Index rows = form.by_width() ? in_y.count : in_x.count,
                cols = form.by_width() ? in_x.count : channels;
    Expr value = converted(
        builder.load(grad, layout.in_result(n, channel, depth, in_y.first, in_x.first), rows, cols), dtype);
    value = value /
            (divisor ? *divisor
                     : elements_of_windows(builder, form, layout, depth, in_y.first, in_x.first, rows, cols));
    builder.accumulate(image, layout.in_image(n, channel, in_z.element, in_y.element, in_x.element), value);
  };
  each(z.positions(), [&](const Index& depth) {
    z.for_each_tap_at(builder, depth, [&](const Tap& in_z) {
      if (form.adaptive) {
        each(y.positions(), [&](const Index& height) {
          each(x.positions(), [&](const Index& width) {
            y.for_each_tap_at(builder, height, [&](const Tap& in_y) {
              x.for_each_tap_at(builder, width, [&](const Tap& in_x) { add(depth, in_z, in_y, in_x); });
            });
          });
        });
        return;
      }
      y.for_each_tap(builder, 0, y.positions(), [&](const Tap& in_y) {
        x.for_each_tap(builder, 0, x.positions(), [&](const Tap& in_x) {
          if (form.by_width()) return add(depth, in_z, in_y, in_x);
          each(in_y.count, [&](const Index& row) {
            add(depth, in_z, {in_y.element + row * in_y.stride, in_y.first + row, 1, 0}, in_x);
          });
        });
      });
    });
  });
  return builder.finish();
}

tile::Kernel kernel_of(const Form& form) {
  switch (form.gives) {
    case PoolGives::kGreatest:
      return greatest_kernel(form);
    case PoolGives::kMean:
      return mean_kernel(form);
    default:
      return mean_gradient_kernel(form);
  }
}

}  // namespace

Launch launch_pool(PoolGives gives, const Pool& pool, const View& image, std::span<const View> results) {
  static KernelTable& table = *new KernelTable;  // outlives every thread
  const bool by_width = !pool.adaptive && (image.strides[1] != 1 || image.sizes[1] == 1);
  const auto step = [&](const View& view) { return known(view.strides[by_width ? 4 : 1]); };
  const Form form = {.gives = gives,
                     .columns = by_width ? Columns::kWidth : Columns::kChannels,
                     .adaptive = pool.adaptive,
                     .has_divisor = pool.divisor.has_value(),
                     .image = image.dtype,
                     .result = results[0].dtype,
                     .index = results.back().dtype,
                     .image_step = by_width ? known(image.strides[4] * pool.axes[2].stride) : step(image),
                     .result_step = step(results[0]),
                     .index_step = results.size() > 1 ? step(results[1]) : int8_t{-1}};
  const int64_t channels = image.sizes[1], height = pool.axes[1].positions, width = pool.axes[2].positions;
  const int64_t cols = by_width ? width : std::min(channels, kMostCols);
  const int64_t rows =
      pool.adaptive ? 1 : std::clamp<int64_t>(kBlockElements / cols, 1, by_width ? height : width);
  jit::PackedArguments arguments;
  arguments.size(image.sizes[0]);
  arguments.size(channels);
  double taps = 1;
  for (size_t d = 0; d < 3; ++d) {
    Axis::add_sizes(arguments, pool.axes[d], image.sizes[d + 2], pool.counts_padding);
    taps *= static_cast<double>(pool.axes[d].taps);
  }
  arguments.size(rows);
  arguments.size(cols);
  Layout::add_image(arguments, form, pool, image);
  for (const View& result : results) Layout::add_result(arguments, form, result);
  if (pool.divisor) arguments.scalar(form.compute(), *pool.divisor);

  const auto up = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  const int64_t parts = by_width ? channels : up(channels, cols);
  int64_t blocks = image.sizes[0] * parts;
  if (gives != PoolGives::kMeanGradient)
    blocks *= pool.axes[0].positions * (by_width ? up(height, rows) : height * up(width, rows));
  KernelTable::Key key;
  key.add(gives);
  key.add(form.columns);
  key.add(static_cast<uint8_t>(form.adaptive));
  key.add(static_cast<uint8_t>(form.has_divisor));
  for (const DType dtype : {form.image, form.result, form.index}) key.add(dtype);
  for (const int8_t each : {form.image_step, form.result_step, form.index_step}) key.add(each);
  const double work =
      static_cast<double>(image.elements()) + static_cast<double>(results[0].elements()) * taps;
  return {table.find(key, [&] { return kernel_of(form); }), arguments, blocks,
          work * static_cast<double>(tile::size_of(form.compute()))};
}

}  // namespace anynpu::ops
