#include "ops/cube/block_product.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <utility>

#include "jit/jit.h"
#include "ops/cube/gemm.h"
#include "ops/cube/panels.h"
#include "ops/cube/products.h"
#include "ops/kernel_table.h"

namespace anynpu::ops {
namespace {

using tile::Builder;
using tile::Expr;
using tile::Index;
using tile::Place;

constexpr int64_t kPositionsOfBlock = 20 * kRows;  ///< which with kDepth products each fit the second cache
constexpr int64_t kSumStride = kOutputsOfBlock + 16;
constexpr int64_t kRowsOfBlock = 96;  ///< about: of patches times a gradient
constexpr int64_t kPartStride = kRowsOfBlock + 16;

/// Of one dimension.
struct Axis {
  static constexpr int64_t kFar = int64_t{1} << 40;  ///< from where origins count: sizes are not negative

  Index size, positions, taps, stride, step, origin;

  static Axis declare(Builder& builder, const std::string& name) {
    const auto size = [&](const char* what) { return builder.size(concat(what, "_", name)); };
    // In this order, which add_sizes() has.
    Index of_image = size("size"), positions = size("positions"), taps = size("taps"),
          stride = size("stride"), step = size("step"), origin = size("origin");
    return {of_image, positions, taps, stride, step, origin - kFar};
  }
  static void add_sizes(jit::PackedArguments& arguments, int64_t size, const Window& window) {
    for (const int64_t number :
         {size, window.positions, window.taps, window.stride, std::abs(window.step), window.origin + kFar})
      arguments.size(number);
  }
};

/// What a kernel is made for, beside what it is given apart from images.
struct Form : ProductForm {
  DType image;
  int64_t block;   ///< channels of a block
  bool goes_back;  ///< taps are over one element after another from the end on

  Form(const View& images, const Windows& windows, DType sum, int64_t depth)
      : ProductForm{sum, 0 < depth && depth <= kDepth},
        image(images.dtype),
        block(images.sizes[5]),
        goes_back(std::ranges::any_of(windows, [](const Window& window) { return window.step < 0; })) {}
  void add_to(KernelTable::Key& key) const {
    key.add(image);
    key.add(block);
    key.add(static_cast<uint8_t>(goes_back));
    key.add(static_cast<uint8_t>(one_block));
  }
};

/// Images and their patches in a kernel: rows are positions of all images, columns (tap, channel).
class BlockPatches {
 public:
  BlockPatches(Builder& builder, const Form& form)
      : builder_(builder),
        form_(form),
        batch_(builder.size("batch")),
        channels_(builder.size("channels")),
        axes_{Axis::declare(builder, "depth"), Axis::declare(builder, "height"),
              Axis::declare(builder, "width")} {
    const auto& [z, y, x] = axes_;
    // Elements under a tap are places in two dimensions: where they start, and how far from there in steps of
    // the stride.
    image_ = builder.buffer(
        "image", form.image,
        {batch_, ceil_div(channels_, form.block), z.size, y.size, x.size, x.size, Index(form.block)},
        {{}, {}, {}, {}, {}, {}, 1});
  }
  static void add_sizes(jit::PackedArguments& arguments, const View& image, int64_t channels,
                        const Windows& windows) {
    arguments.size(image.sizes[0]);
    arguments.size(channels);
    for (size_t d = 0; d < 3; ++d) Axis::add_sizes(arguments, image.sizes[2 + d], windows[d]);
  }
  static void add_buffer(jit::PackedArguments& arguments, const View& image, const Windows& windows) {
    const auto& of = image.strides;
    arguments.buffer(image.data, std::vector<int64_t>{of[0], of[1], of[2], of[3], of[4],
                                                      of[4] * windows[2].stride, of[5]});
  }

  const Index& channels() const { return channels_; }
  const Index& taps(size_t dim) const { return axes_[dim].taps; }

  /// A tensor of batch x blocks x positions x channels of a block.
  int declare(const std::string& name, DType dtype, const Index& outputs) const {
    const auto& [z, y, x] = axes_;
    return builder_.buffer(
        name, dtype,
        {batch_, ceil_div(outputs, form_.block), z.positions, y.positions, x.positions, Index(form_.block)},
        {{}, {}, {}, {}, {}, 1});
  }
  /// Calls `body` with parts of that tensor in the local buffer of some positions and outputs: the places
  /// where it starts, rows and columns, and where those are in the local one.
  void for_each_part(const Index& position, const Index& positions, const Index& output, const Index& outputs,
                     const std::function<void(std::vector<Place> at, const Index& rows, const Index& cols,
                                              std::vector<Place> local)>& body) const {
    for_each_line_of_positions(
        position, positions, [&](const AtLine& at, const Index& rows, const Index& row) {
          for_each_line(builder_, form_.block, output, outputs,
                        [&](const Index& block, const Index& within, const Index& cols, const Index& col) {
                          body({at[0], block, at[1], at[2], at[3], within}, rows, cols, {row, col});
                        });
        });
  }

  /// Copies some rows and columns to the first ones of a local buffer, converted to the type of sums.
  void copy(int local, const Index& position, const Index& positions, const Index& first,
            const Index& count) const {
    for_each_line_of_positions(
        position, positions, [&](const AtLine& at, const Index& rows, const Index& to) {
          for_each_line(builder_, channels_, first, count,
                        [&](const Index& tap, const Index& channel, const Index& here, const Index& before) {
                          copy_line(local, at, rows, to, tap, channel, here, before);
                        });
        });
  }

 private:
  using AtLine = std::array<Index, 4>;  // image, depth, height, position

  void for_each_line_of_positions(
      const Index& first, const Index& count,
      const std::function<void(const AtLine&, const Index& positions, const Index& before)>& body) const {
    const auto& [z, y, x] = axes_;
    for_each_line(
        builder_, x.positions, first, count,
        [&](const Index& line, const Index& from, const Index& positions, const Index& before) {
          body({line / y.positions / z.positions, line / y.positions % z.positions, line % y.positions, from},
               positions, before);
        });
  }

  /// What some positions of a line have of some channels under a tap, with zeros beyond the image.
  void copy_line(int local, const AtLine& at, const Index& positions, const Index& row, const Index& tap,
                 const Index& channel, const Index& channels, const Index& col) const {
    const auto& [z, y, x] = axes_;
    const auto element = [&](const Axis& axis, const Index& position, const Index& number) {
      const Index distance = number * axis.step, start = position * axis.stride + axis.origin;
      return form_.goes_back ? start - distance : start + distance;
    };
    const auto is_inside = [](const Index& place, const Index& size) {  // 1 or 0
      return max(0, min(1, min(place + 1, size - place)));
    };
    const Index on_z = element(z, at[1], tap / x.taps / y.taps),
                on_y = element(y, at[2], tap / x.taps % y.taps), on_x = element(x, at[3], tap % x.taps);
    const Index begin = min(positions, max(0, ceil_div(0 - on_x, x.stride))),
                end = max(begin, min(positions, ceil_div(x.size - on_x, x.stride)) * is_inside(on_z, z.size) *
                                     is_inside(on_y, y.size));
    const auto clear = [&](const Index& first, const Index& last) {
      builder_.store(local, {row + first, col}, filled(builder_, form_.sums, 0, last - first, channels));
    };
    clear(0, begin);
    clear(end, positions);
    for_each_line(builder_, form_.block, channel, channels,
                  [&](const Index& block, const Index& within, const Index& some, const Index& after) {
                    const Expr elements =
                        builder_.load(image_, {at[0], block, on_z, on_y, on_x + begin * x.stride, 0, within},
                                      end - begin, some);
                    builder_.store(local, {row + begin, col + after}, converted(elements, form_.sums));
                  });
  }

  Builder& builder_;
  const Form& form_;
  const Index batch_, channels_;
  const std::array<Axis, 3> axes_;
  int image_ = -1;
};

/// A block has some outputs at some positions.
tile::Kernel product_kernel(const Form& form, DType out_type, std::optional<DType> bias_type) {
  Builder builder("BlockConvolution");
  const BlockPatches patches(builder, form);
  const Index outputs = builder.size("outputs"), block_outputs = builder.size("block_outputs"),
              total = builder.size("positions"), depth = builder.size("products"),
              across = builder.size("across"), down = builder.size("down");
  builder.grid(across * down);
  const Index first_output = Index::block() / across * block_outputs,
              first_position = Index::block() % across * kPositionsOfBlock;
  const Index rows = min(kPositionsOfBlock, total - first_position),
              cols = min(block_outputs, outputs - first_output);
  const int64_t step = jit::product_columns(form.sums, kRows);
  const int panels = panel_buffer(builder, "weight", form.sums, {}, depth, outputs, step);
  const int bias = bias_type ? builder.buffer("bias", *bias_type, {1, outputs}, {{}, {}}) : -1;
  const int out = patches.declare("out", out_type, outputs);
  const int part = builder.local("part", form.sums, {kPositionsOfBlock, kRowStride}),
            sums = builder.local("sums", form.sums, {kPositionsOfBlock, kSumStride});
  Products{.builder = builder,
           .form = form,
           .sums = sums,
           .rows = rows,
           .cols = cols,
           .depth = depth,
           .copy = [&](auto& first, auto& count) { patches.copy(part, first_position, rows, first, count); },
           .left = [&](auto& row, auto& here, auto&,
                       auto& count) { return builder.load(part, {row, 0}, here, count); },
           .right =
               [&](auto& col, auto& here, auto& first, auto& count) {
                 return builder.load(panels, {(first_output + col) / step, first, 0}, count, here);
               }}
      .add_up();
  patches.for_each_part(
      first_position, rows, first_output, cols,
      [&](std::vector<Place> at, const Index& here, const Index& some, const std::vector<Place>& local) {
        Expr result = builder.load(sums, local, here, some);
        if (bias_type) {
          const Index output = std::get<Index>(at[1]) * form.block + std::get<Index>(at[5]);
          const Expr added = converted(builder.load(bias, {0, output}, 1, some), form.sums);
          result = result + builder.broadcast(added, here, some);
        }
        builder.store(out, std::move(at), converted(result, out_type));
      });
  return builder.finish();
}

/// A block has some taps and channels of some outputs.
tile::Kernel correlation_kernel(const Form& form, DType gradient_type, DType out_type, bool is_row) {
  Builder builder("BlockConvolutionWeight");
  const BlockPatches patches(builder, form);
  const Index outputs = builder.size("outputs"), block_outputs = builder.size("block_outputs"),
              total = builder.size("positions"), all_rows = builder.size("rows"),
              block_rows = builder.size("block_rows"), across = builder.size("across"),
              down = builder.size("down");
  builder.grid(across * down);
  const Index first_row = Index::block() / across * block_rows,
              first_output = Index::block() % across * block_outputs;
  const Index rows = min(block_rows, all_rows - first_row), cols = min(block_outputs, outputs - first_output);
  const int gradient = patches.declare("gradient", gradient_type, outputs);
  const int out = builder.buffer(
      "out", out_type, {patches.taps(0), patches.taps(1), patches.taps(2), outputs, patches.channels()},
      {{}, {}, {}, {}, is_row ? std::optional<int64_t>(1) : std::nullopt});
  const int part = builder.local("part", form.sums, {kDepth, kPartStride}),
            gradients = builder.local("gradients", form.sums, {kDepth, kSumStride}),
            sums = builder.local("sums", form.sums, {kRowsOfBlock, kSumStride});
  Products{
      .builder = builder,
      .form = form,
      .sums = sums,
      .rows = rows,
      .cols = cols,
      .depth = total,
      .copy =
          [&](auto& first, auto& count) {
            patches.copy(part, first, count, first_row, rows);
            patches.for_each_part(
                first, count, first_output, cols,
                [&](std::vector<Place> at, const Index& here, const Index& some, std::vector<Place> local) {
                  builder.store(gradients, std::move(local),
                                converted(builder.load(gradient, std::move(at), here, some), form.sums));
                });
          },
      .left =
          [&](auto& row, auto& here, auto&, auto& count) {
            return builder.op(tile::Opcode::kTranspose, {builder.load(part, {0, row}, count, here)});
          },
      .right = [&](auto& col, auto& here, auto&,
                   auto& count) { return builder.load(gradients, {0, col}, count, here); }}
      .add_up();
  for_each_line(builder, patches.channels(), first_row, rows,
                [&](const Index& tap, const Index& channel, const Index& channels, const Index& before) {
                  const Index x = tap % patches.taps(2), y = tap / patches.taps(2) % patches.taps(1),
                              z = tap / patches.taps(2) / patches.taps(1);
                  const Expr result = converted(builder.load(sums, {before, 0}, channels, cols), out_type);
                  builder.store(out, {z, y, x, first_output, channel},
                                builder.op(tile::Opcode::kTranspose, {result}));
                });
  return builder.finish();
}

/// Where each position is under one tap, and is one of the image, all of an image are one line.
void merge(View& image, View& out, Windows& windows) {
  for (size_t d = 0; d < 3; ++d) {
    const Window& window = windows[d];
    if (window.taps != 1 || window.stride != 1 || window.origin != 0 ||
        window.positions != image.sizes[2 + d])
      return;
  }
  const auto from = image.merged(2, 5), to = out.merged(2, 5);
  if (!from || !to) return;
  const auto line = [](View view) {
    view.sizes.insert(view.sizes.begin() + 2, 2, 1);
    view.strides.insert(view.strides.begin() + 2, 2, 0);
    return view;
  };
  image = line(*from);
  out = line(*to);
  windows = {Window{}, Window{}, Window{.positions = image.sizes[4]}};
}

/// Panels of weights, as a matrix of (tap, channel) x outputs.
View panels_of(const View& weight, DType sums, const TakeMemory& take, std::vector<Launch>& launches) {
  View grouped = weight;
  grouped.sizes.insert(grouped.sizes.begin(), 1);
  grouped.strides.insert(grouped.strides.begin(), 0);
  const bool one_tap = weight.sizes[2] * weight.sizes[3] * weight.sizes[4] == 1;
  if (one_tap) {
    grouped.sizes.resize(3);
    grouped.strides.resize(3);
  } else {
    grouped = packed(grouped, sums, take, launches);
  }
  grouped = transposed(std::move(grouped));
  grouped.sizes.erase(grouped.sizes.begin());
  grouped.strides.erase(grouped.strides.begin());
  return pack_panels(grouped, sums, jit::product_columns(sums, kRows), take, launches);
}

}  // namespace

void prepare(const BlockProduct& given, const TakeMemory& take, std::vector<Launch>& launches) {
  static KernelTable& table = *new KernelTable;  // outlives every thread
  BlockProduct call = given;
  merge(call.image, call.out, call.windows);
  const int64_t outputs = call.weight.sizes[0], channels = call.weight.sizes[1],
                depth = channels * taps_of(call.windows),
                total = call.out.sizes[0] * positions_of(call.windows);
  if (total == 0 || outputs == 0) return;
  const Form form(call.image, call.windows, sum_type(call.out.dtype), depth);
  const View panels = panels_of(call.weight, form.sums, take, launches);
  const int64_t across = ceil_div(total, kPositionsOfBlock),
                block_outputs = part_of(outputs, kOutputsOfBlock, panels.sizes.back(), across),
                down = ceil_div(outputs, block_outputs);
  jit::PackedArguments arguments;
  BlockPatches::add_sizes(arguments, call.image, channels, call.windows);
  for (const int64_t size : {outputs, block_outputs, total, depth, across, down}) arguments.size(size);
  BlockPatches::add_buffer(arguments, call.image, call.windows);
  arguments.buffer(panels.data, panels.strides);
  if (call.bias) arguments.buffer(call.bias->data, std::vector<int64_t>{0, call.bias->strides[0]});
  arguments.buffer(call.out.data, call.out.strides);
  const std::optional<DType> bias = call.bias ? std::optional(call.bias->dtype) : std::nullopt;
  KernelTable::Key key;
  form.add_to(key);
  key.add(call.out.dtype);
  key.add(bias.value_or(call.out.dtype));
  key.add(static_cast<uint8_t>(bias.has_value()));
  const double products = static_cast<double>(total * outputs) * static_cast<double>(depth);
  launches.emplace_back(table.find(key, [&] { return product_kernel(form, call.out.dtype, bias); }),
                        arguments, across * down, products * kBytesOfProduct);
}

void prepare(const BlockCorrelation& given, std::vector<Launch>& launches) {
  static KernelTable& table = *new KernelTable;  // outlives every thread
  BlockCorrelation call = given;
  const int64_t outputs = call.out.sizes[0], channels = call.out.sizes[1],
                rows = channels * taps_of(call.windows);
  if (rows == 0 || outputs == 0) return;
  merge(call.image, call.gradient, call.windows);
  const int64_t total = call.gradient.sizes[0] * positions_of(call.windows);
  const Form form(call.image, call.windows, sum_type(call.out.dtype), total);
  const int64_t block_outputs =
                    std::min(round_up(outputs, jit::product_columns(form.sums, kRows)), kOutputsOfBlock),
                across = ceil_div(outputs, block_outputs),
                block_rows = part_of(rows, kRowsOfBlock, kRows, across), down = ceil_div(rows, block_rows);
  jit::PackedArguments arguments;
  BlockPatches::add_sizes(arguments, call.image, channels, call.windows);
  for (const int64_t size : {outputs, block_outputs, total, rows, block_rows, across, down})
    arguments.size(size);
  BlockPatches::add_buffer(arguments, call.image, call.windows);
  arguments.buffer(call.gradient.data, call.gradient.strides);
  const auto& to = call.out.strides;
  arguments.buffer(call.out.data, std::vector<int64_t>{to[2], to[3], to[4], to[0], to[1]});
  const bool is_row = to[1] == 1;
  KernelTable::Key key;
  form.add_to(key);
  key.add(call.gradient.dtype);
  key.add(call.out.dtype);
  key.add(static_cast<uint8_t>(is_row));
  const double products = static_cast<double>(rows * outputs) * static_cast<double>(total);
  launches.emplace_back(
      table.find(key, [&] { return correlation_kernel(form, call.gradient.dtype, call.out.dtype, is_row); }),
      arguments, across * down, products * kBytesOfProduct);
}

}  // namespace anynpu::ops
