#include "ops/cube/depthwise_channels.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "ops/cube/channel_reader.h"
#include "ops/cube/gemm.h"
#include "ops/cube/panels.h"

namespace anynpu::ops {
namespace {

using tile::Builder;
using tile::Expr;
using tile::Index;
using tile::Place;

constexpr int64_t kUnit = 16;           ///< channels that are computed in turns
constexpr int64_t kLeastChannels = 32;  ///< of a block, where there are so many
constexpr int64_t kMostChannels = 256;  ///< of a block: their weights fit the first cache
constexpr int64_t kWindowElements =
    40000;  ///< about, under a block's windows at a row: the second cache has them
constexpr int64_t kMostCopied = 1 << 16;  ///< elements of each channel
constexpr int64_t kBlocks = 32;           ///< about, to share among threads
constexpr int64_t kLeastRows = 8;         ///< of positions of a block, where there are so many
constexpr int64_t kSums = 16384;    ///< about, of a block that adds up columns: the second cache has them
constexpr int64_t kLeastCols = 4;   ///< of positions of such a block, about
constexpr int64_t kRowsAtOnce = 2;  ///< whose products are added to these sums at once
constexpr int64_t kSummedChannels = 128;  ///< of a block that adds up the columns' sums

/// Dimensions of a tensor of groups x batch x outputs x depth x height x width with the groups last.
std::vector<int64_t> strides_of(const View& view) {
  const auto& of = view.strides;
  return {of[1], of[2], of[3], of[4], of[5], of[0]};
}
int declare(Builder& builder, const std::string& name, const View& view, std::vector<Index> sizes) {
  return builder.buffer(name, view.dtype, std::move(sizes), {{}, {}, {}, {}, {}, known(view.strides[0])});
}
void add_tensor(KernelTable::Key& key, const View& view) {
  key.add(view.dtype);
  key.add(static_cast<int8_t>(known(view.strides[0]).value_or(-1)));
}

/// About `most` channels of a block, or fewer, so that blocks have as many each.
int64_t channels_of_block(int64_t groups, int64_t most) {
  most = std::clamp(most, kLeastChannels, kMostChannels);
  return round_up(ceil_div(groups, ceil_div(groups, most)), kUnit);
}

/// Of products with what is under each tap.
Expr sum_of_products(Builder& builder, DType dtype, const ChannelReader::Part& part,
                     const std::vector<Expr>& factors, const Index& channels) {
  Expr sum = builder.broadcast(builder.constant(dtype, 0.0), part.cols, channels);
  for (size_t tap = 0; tap < factors.size(); ++tap)
    sum = fma(builder.broadcast(factors[tap], part.cols, channels), part.under(static_cast<int64_t>(tap), 0),
              sum);
  return sum;
}

/// A block has some channels of an output, of some rows of positions of some images.
tile::Kernel product_kernel(const DepthwiseProduct& call, const WindowAxes& axes) {
  const DType sums = sum_type(call.out.dtype);
  Builder builder("DepthwiseChannels");
  const Index groups = builder.size("groups"), batch = builder.size("batch"),
              outputs = builder.size("outputs"), depths = builder.size("depths"),
              all_rows = builder.size("rows"), cols = builder.size("cols"),
              block_channels = builder.size("block_channels"), block_rows = builder.size("block_rows"),
              block_images = builder.size("block_images");
  const Index chunks = ceil_div(groups, block_channels), parts = ceil_div(all_rows, block_rows),
              turns = ceil_div(batch, block_images);
  builder.grid(chunks * parts * depths * outputs * turns);
  ChannelReader reader(builder, call.image, axes, 1, groups, batch, block_channels);
  const auto& [z, y, x] = axes;
  const int weight = builder.buffer("weight", call.weight.dtype, {outputs, z.taps, y.taps, x.taps, groups},
                                    {{}, {}, {}, {}, known(call.weight.strides[0])});
  const std::vector<Index> sizes = {batch, outputs, depths, all_rows, cols, groups};
  std::vector<int> operands;
  operands.reserve(call.operands.size());
  for (const View& operand : call.operands)
    operands.push_back(declare(builder, concat("operand", operands.size()), operand, sizes));
  const int out = declare(builder, "out", call.out, sizes);
  reader.declare();
  const int packed = builder.local("packed", sums, {axes.taps(), block_channels});

  const Index channel_of = Index::block() % chunks * block_channels,
              row_of = Index::block() / chunks % parts * block_rows,
              image_of = Index::block() / chunks / parts / depths / outputs * block_images;
  const std::vector<Index> place = {
      channel_of,
      min(block_channels, groups - channel_of),
      row_of,
      min(block_rows, all_rows - row_of),
      Index::block() / chunks / parts % depths,
      Index::block() / chunks / parts / depths % outputs,
  };
  named(builder, place, [&](const std::vector<Index>& names) {
    const Index &channel = names[0], &channels = names[1], &row = names[2], &rows = names[3],
                &depth = names[4], &output = names[5];
    for (int64_t tap = 0; tap < axes.taps(); ++tap) {
      const std::vector<Place> at = {output, tap / x.taps / y.taps, tap / x.taps % y.taps, tap % x.taps,
                                     channel};
      builder.store(packed, {tap, 0}, converted(builder.load(weight, at, 1, channels), sums));
    }
    std::vector<Expr> factors;
    factors.reserve(static_cast<size_t>(axes.taps()));
    for (int64_t tap = 0; tap < axes.taps(); ++tap)
      factors.push_back(builder.load(packed, {tap, 0}, 1, channels));
    for_each(builder, image_of, min(batch, image_of + block_images), 1, [&](const Index& n) {
      const ChannelReader::Block block = {n, channel, channels, depth, row, rows, 0, cols};
      reader.for_each_part(block, [&](const ChannelReader::Part& part) {
        const std::vector<Place> at = {n, output, depth, part.y, part.x, channel};
        std::vector<Expr> arguments = {sum_of_products(builder, sums, part, factors, channels)};
        for (const int operand : operands)
          arguments.push_back(converted(builder.load(operand, at, part.cols, channels), sums));
        const Expr result = call.finish == nullptr ? arguments[0] : call.finish->emit(arguments)[0];
        builder.store(out, at, converted(result, call.out.dtype));
      });
    });
  });
  return builder.finish();
}

/// A block has some channels of an output, and some columns of positions. It sums up each column under each
/// tap, over images and rows.
tile::Kernel columns_kernel(const DepthwiseCorrelation& call, const WindowAxes& axes) {
  const DType sums = sum_type(call.out.dtype);
  Builder builder("DepthwiseColumns");
  const Index groups = builder.size("groups"), batch = builder.size("batch"),
              outputs = builder.size("outputs"), rows = builder.size("rows"), all_cols = builder.size("cols"),
              block_channels = builder.size("block_channels"), block_cols = builder.size("block_cols");
  const Index chunks = ceil_div(groups, block_channels), parts = ceil_div(all_cols, block_cols);
  builder.grid(chunks * parts * outputs);
  ChannelReader reader(builder, call.image, axes, kRowsAtOnce, groups, batch, block_channels);
  const int gradient =
                declare(builder, "gradient", call.gradient, {batch, outputs, 1, rows, all_cols, groups}),
            out = builder.buffer("out", sums, {outputs, axes.taps(), all_cols, groups});
  reader.declare();
  std::vector<int> columns;  // a buffer each: one pass adds to all
  columns.reserve(static_cast<size_t>(axes.taps()));
  for (int64_t tap = 0; tap < axes.taps(); ++tap)
    columns.push_back(builder.local(concat("columns", tap), sums, {block_cols, block_channels}));

  const Index channel_of = Index::block() % chunks * block_channels,
              col_of = Index::block() / chunks % parts * block_cols;
  const std::vector<Index> place = {
      channel_of,
      min(block_channels, groups - channel_of),
      col_of,
      min(block_cols, all_cols - col_of),
      Index::block() / chunks / parts,
  };
  named(builder, place, [&](const std::vector<Index>& names) {
    const Index &channel = names[0], &channels = names[1], &col = names[2], &cols = names[3],
                &output = names[4];
    for (const int column : columns)
      builder.store(column, {0, 0}, builder.broadcast(builder.constant(sums, 0.0), cols, channels));
    for_each(builder, 0, batch, 1, [&](const Index& n) {
      const ChannelReader::Block block = {n, channel, channels, 0, 0, rows, col, cols};
      reader.for_each_part(block, [&](const ChannelReader::Part& part) {
        std::vector<Expr> factors;
        for (int64_t i = 0; i < part.rows; ++i) {
          const std::vector<Place> at = {n, output, 0, part.y + i, part.x, channel};
          factors.push_back(converted(builder.load(gradient, at, part.cols, channels), sums));
        }
        for (int64_t tap = 0; tap < axes.taps(); ++tap) {
          const int column = columns[static_cast<size_t>(tap)];
          const std::vector<Place> at = {part.x - col, 0};
          Expr sum = builder.load(column, at, part.cols, channels);
          for (int64_t i = 0; i < part.rows; ++i)
            sum = sum + factors[static_cast<size_t>(i)] * part.under(tap, i);
          builder.store(column, at, sum);
        }
      });
    });
    for (int64_t tap = 0; tap < axes.taps(); ++tap)
      builder.store(out, {output, tap, col, channel},
                    builder.load(columns[static_cast<size_t>(tap)], {0, 0}, cols, channels));
  });
  return builder.finish();
}

/// A block has some channels of an output under a tap: it adds up the columns' sums.
tile::Kernel columns_sum_kernel(const DepthwiseCorrelation& call, const WindowAxes& axes) {
  const DType sums = sum_type(call.out.dtype);
  Builder builder("DepthwiseColumnsSum");
  const Index groups = builder.size("groups"), outputs = builder.size("outputs"), cols = builder.size("cols");
  const Index chunks = ceil_div(groups, kSummedChannels), taps = axes.taps();
  builder.grid(chunks * taps * outputs);
  const Index channel = Index::block() % chunks * kSummedChannels, tap = Index::block() / chunks % taps,
              output = Index::block() / chunks / taps, channels = min(kSummedChannels, groups - channel);
  const int columns = builder.buffer("columns", sums, {outputs, taps, cols, groups}),
            out = builder.buffer("out", call.out.dtype, {outputs, axes.y.taps, axes.x.taps, groups},
                                 {{}, {}, {}, known(call.out.strides[0])});
  const Expr sum = col_sum(builder.load(columns, {output, tap, 0, channel}, cols, channels));
  builder.store(out, {output, tap / axes.x.taps, tap % axes.x.taps, channel}, converted(sum, call.out.dtype));
  return builder.finish();
}

bool has_channels_last(const View& image) {
  return image.strides[0] == 1 && image.sizes[0] > 1 && (image.strides[5] != 1 || image.sizes[5] == 1);
}

/// Elements of a channel that a block copies at once.
int64_t copied(const WindowAxes& axes, int64_t rows, int64_t cols) {
  return (axes.z.reach() + 1) * ((rows - 1) * axes.y.stride + axes.y.reach() + 1) *
         (cols * axes.x.stride + axes.x.reach());
}

std::array<int64_t, 3> crop(View& image, const Windows& windows) {
  std::array<int64_t, 3> before;
  for (size_t d = 0; d < 3; ++d) before[d] = crop(image, 3 + d, windows[d]);
  return before;
}

Launch columns_of(const DepthwiseCorrelation& call, const WindowAxes& axes,
                  const std::array<int64_t, 3>& before, const View& columns) {
  static KernelTable& table = *new KernelTable;  // outlives every thread
  const auto& sizes = call.gradient.sizes;
  const int64_t groups = sizes[0], batch = sizes[1], outputs = sizes[2], rows = sizes[4], cols = sizes[5];
  const int64_t channels = channels_of_block(groups, kSums / (kLeastCols * axes.taps())),
                most_cols = std::max<int64_t>(1, kSums / (axes.taps() * channels)),
                block_cols = ceil_div(cols, ceil_div(cols, most_cols));
  jit::PackedArguments arguments;
  for (const int64_t size : {groups, batch, outputs, rows, cols, channels, block_cols}) arguments.size(size);
  ChannelReader::add_sizes(arguments, call.image, axes, before, {1, rows, cols}, block_cols);
  ChannelReader::add_buffer(arguments, call.image, axes);
  arguments.buffer(call.gradient.data, strides_of(call.gradient));
  arguments.buffer(columns.data, columns.strides);
  KernelTable::Key key;
  axes.add_to(key);
  add_tensor(key, call.image);
  add_tensor(key, call.gradient);
  return {table.find(key, [&] { return columns_kernel(call, axes); }), arguments,
          ceil_div(groups, channels) * ceil_div(cols, block_cols) * outputs,
          static_cast<double>(call.gradient.elements() * (4 + axes.taps()))};
}

Launch sum_of(const View& columns, const DepthwiseCorrelation& call, const WindowAxes& axes) {
  static KernelTable& table = *new KernelTable;  // outlives every thread
  const int64_t groups = call.out.sizes[0], outputs = call.out.sizes[1];
  jit::PackedArguments arguments;
  for (const int64_t size : {groups, outputs, columns.sizes[2]}) arguments.size(size);
  arguments.buffer(columns.data, columns.strides);
  const auto& of = call.out.strides;
  arguments.buffer(call.out.data, std::vector<int64_t>{of[1], of[4], of[5], of[0]});
  KernelTable::Key key;
  axes.add_to(key);
  add_tensor(key, call.out);
  return {table.find(key, [&] { return columns_sum_kernel(call, axes); }), arguments,
          ceil_div(groups, kSummedChannels) * axes.taps() * outputs, static_cast<double>(columns.span())};
}

}  // namespace

bool goes_by_channels(const DepthwiseProduct& call) {
  return (has_channels_last(call.image) || (call.image.strides[5] != 1 && has_channels_last(call.out))) &&
         copied(WindowAxes(call.windows), 1, call.out.sizes[5]) <= kMostCopied;
}
bool goes_by_channels(const DepthwiseCorrelation& call) {
  return has_channels_last(call.image) &&
         copied(WindowAxes(call.windows), kRowsAtOnce, call.gradient.sizes[5]) <= kMostCopied;
}

Launch launch_channels(const DepthwiseProduct& given) {
  static KernelTable& table = *new KernelTable;  // outlives every thread
  DepthwiseProduct call = given;
  const std::array<int64_t, 3> before = crop(call.image, call.windows);
  const WindowAxes axes(call.windows);
  const auto& sizes = call.out.sizes;
  const int64_t groups = sizes[0], batch = sizes[1], outputs = sizes[2], depths = sizes[3], rows = sizes[4],
                cols = sizes[5];
  const int64_t channels = channels_of_block(groups, kWindowElements / copied(axes, 1, cols)),
                chunks = ceil_div(groups, channels);
  const int64_t wanted = ceil_div(kBlocks, chunks * depths * outputs * batch),
                block_rows = ceil_div(rows, std::min(wanted, ceil_div(rows, kLeastRows))),
                blocks = chunks * ceil_div(rows, block_rows) * depths * outputs,
                images = ceil_div(batch, std::min(batch, ceil_div(kBlocks, blocks)));
  jit::PackedArguments arguments;
  for (const int64_t size : {groups, batch, outputs, depths, rows, cols, channels, block_rows, images})
    arguments.size(size);
  ChannelReader::add_sizes(arguments, call.image, axes, before, {depths, rows, cols}, cols);
  ChannelReader::add_buffer(arguments, call.image, axes);
  const auto& of = call.weight.strides;
  arguments.buffer(call.weight.data, std::vector<int64_t>{of[1], of[3], of[4], of[5], of[0]});
  for (const View& operand : call.operands) arguments.buffer(operand.data, strides_of(operand));
  arguments.buffer(call.out.data, strides_of(call.out));

  KernelTable::Key key;
  axes.add_to(key);
  for (const View* view : {&call.image, &call.weight, &call.out}) add_tensor(key, *view);
  key.add(reinterpret_cast<uintptr_t>(call.finish));
  for (const View& operand : call.operands) add_tensor(key, operand);
  return {table.find(key, [&] { return product_kernel(call, axes); }), arguments,
          blocks * ceil_div(batch, images), static_cast<double>(call.out.elements() * (4 + axes.taps()))};
}

std::vector<Launch> launch_channels(const DepthwiseCorrelation& given, const TakeMemory& take) {
  DepthwiseCorrelation call = given;
  const std::array<int64_t, 3> before = crop(call.image, call.windows);
  const WindowAxes axes(call.windows);
  const auto& sizes = call.gradient.sizes;
  const View columns = temporary(take, sum_type(call.out.dtype), {sizes[2], axes.taps(), sizes[5], sizes[0]});
  std::vector<Launch> launches;
  launches.push_back(columns_of(call, axes, before, columns));
  launches.push_back(sum_of(columns, call, axes));
  return launches;
}

}  // namespace anynpu::ops
