#include "ops/cube/patch_product.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
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

constexpr int64_t kColumnsOfBlock = 128;  ///< of patches, which with kDepth rows fit the second cache
constexpr int64_t kColumnStride = 144;    ///< of a row of them: rows do not meet in a cache
constexpr int64_t kRowsOfBlock = 96;      ///< about: of patches times a gradient

/// Of a tensor of outputs and lines of positions, which neighbours are side by side.
enum class Side : uint8_t { kPositions, kOutputs, kNone, kRepeated };
Side side_of(const View& lines) {
  if (lines.strides[5] == 1) return Side::kPositions;
  if (lines.strides[4] == 1) return Side::kOutputs;
  return lines.strides[5] == 0 ? Side::kRepeated : Side::kNone;
}

/// Tensors of groups x batch x outputs x depth x height x width as lines along the width: groups x batch x
/// depth x height x outputs x width. Where it can be so in each of them, all positions are one line.
void make_lines(std::span<View* const> views) {
  const auto merged = [](const View& view) { return view.merged(3, 6); };
  const bool merge = std::ranges::all_of(views, [&](const View* view) { return merged(*view).has_value(); });
  for (View* view : views) {
    View from = *view;
    if (merge) {
      from = *merged(from);
      from.sizes.insert(from.sizes.begin() + 3, 2, 1);
      from.strides.insert(from.strides.begin() + 3, 2, 0);
    }
    for (size_t to = 0; const size_t d : {0, 1, 3, 4, 2, 5}) {
      view->sizes[to] = from.sizes[d];
      view->strides[to++] = from.strides[d];
    }
  }
}

/// Such tensors in a kernel, all of the same sizes: tiles of outputs x positions of lines.
class Lines {
 public:
  Lines(Builder& builder, const PatchReader& patches, const Index& outputs)
      : builder_(builder),
        sizes_({patches.groups(), patches.batch(), builder.size("lines_depth"), builder.size("lines_height"),
                outputs, builder.size("lines_width")}) {}
  static void add_sizes(jit::PackedArguments& arguments, const View& lines) {
    for (const size_t d : {2, 3, 5}) arguments.size(lines.sizes[d]);
  }

  /// A tensor's number.
  size_t declare(const std::string& name, const View& lines) {
    std::vector<Index> sizes = sizes_;
    std::vector<std::optional<int64_t>> strides(6);
    const Side side = side_of(lines);
    if (side == Side::kOutputs) std::swap(sizes[4], sizes[5]);
    if (side != Side::kNone) strides[5] = side == Side::kRepeated ? 0 : 1;
    tensors_.push_back({builder_.buffer(name, lines.dtype, sizes, strides), side});
    return tensors_.size() - 1;
  }
  static void add(jit::PackedArguments& arguments, const View& lines) {
    std::vector<int64_t> strides = lines.strides;
    if (side_of(lines) == Side::kOutputs) std::swap(strides[4], strides[5]);
    arguments.buffer(lines.data, strides);
  }

  /// Calls `body` for each line that has some of those positions of all images: where they start in it, how
  /// many, and how many are before.
  using AtLine = std::array<Index, 4>;  // image, depth, height, position
  void for_each(const Index& first, const Index& count,
                const std::function<void(const AtLine&, const Index&, const Index&)>& body) const {
    for_each_line(builder_, sizes_[5], first, count,
                  [&](const Index& line, const Index& from, const Index& positions, const Index& before) {
                    body({line / sizes_[3] / sizes_[2], line / sizes_[3] % sizes_[2], line % sizes_[3], from},
                         positions, before);
                  });
  }

  /// A tile of outputs x positions, or `turned` of positions x outputs.
  Expr load(size_t tensor, const Index& group, const AtLine& at, const Index& output, const Index& outputs,
            const Index& positions, DType dtype, bool turned = false) const {
    const auto& [buffer, side] = tensors_[tensor];
    const bool other = side == Side::kOutputs;
    const Expr elements = converted(builder_.load(buffer, places(tensor, group, at, output),
                                                  other ? positions : outputs, other ? outputs : positions),
                                    dtype);
    return other != turned ? builder_.op(tile::Opcode::kTranspose, {elements}) : elements;
  }
  void store(size_t tensor, const Index& group, const AtLine& at, const Index& output,
             const Expr& elements) const {
    const auto& [buffer, side] = tensors_[tensor];
    builder_.store(buffer, places(tensor, group, at, output),
                   side == Side::kOutputs ? builder_.op(tile::Opcode::kTranspose, {elements}) : elements);
  }

 private:
  struct Tensor {
    int buffer;
    Side side;
  };
  std::vector<Place> places(size_t tensor, const Index& group, const AtLine& at, const Index& output) const {
    std::vector<Place> places = {group, at[0], at[1], at[2], output, at[3]};
    if (tensors_[tensor].side == Side::kOutputs) std::swap(places[4], places[5]);
    return places;
  }

  Builder& builder_;
  std::vector<Index> sizes_;
  std::vector<Tensor> tensors_;
};

/// A block has some outputs at some columns of the patches.
tile::Kernel product_kernel(const PatchProduct& call, const ProductForm& form) {
  Builder builder("Convolution");
  const PatchReader patches(builder, call.patches);
  const Index outputs = builder.size("outputs"), block_outputs = builder.size("block_outputs"),
              total = builder.size("columns"), depth = builder.size("products"),
              across = builder.size("across"), down = builder.size("down");
  builder.grid(patches.groups() * down * across);
  const Index group = Index::block() / across / down,
              first_output = Index::block() / across % down * block_outputs,
              first_column = Index::block() % across * kColumnsOfBlock;
  const Index rows = min(block_outputs, outputs - first_output),
              cols = min(kColumnsOfBlock, total - first_column);

  const int weight = builder.buffer("weight", form.sums, {patches.groups(), outputs, depth});
  Lines lines(builder, patches, outputs);
  std::vector<size_t> operands;
  operands.reserve(call.operands.size());
  for (const View& operand : call.operands)
    operands.push_back(lines.declare(concat("operand", operands.size()), operand));
  const size_t out = lines.declare("out", call.out);
  const int columns = builder.local("columns", form.sums, {kDepth, kColumnStride}),
            sums = builder.local("sums", form.sums, {block_outputs, kColumnStride});

  Products{.builder = builder,
           .form = form,
           .sums = sums,
           .rows = rows,
           .cols = cols,
           .depth = depth,
           .copy = [&](auto& first,
                       auto& count) { patches.copy(columns, group, first, count, first_column, cols); },
           .left =
               [&](auto& row, auto& down, auto& first, auto& count) {
                 return builder.load(weight, {group, first_output + row, first}, down, count);
               },
           .right = [&](auto& col, auto& across_here, auto&,
                        auto& count) { return builder.load(columns, {0, col}, count, across_here); }}
      .add_up();
  lines.for_each(
      first_column, cols, [&](const Lines::AtLine& at, const Index& positions, const Index& before) {
        Expr result = builder.load(sums, {0, before}, rows, positions);
        if (call.finish != nullptr) {
          std::vector<Expr> arguments = {result};
          for (const size_t operand : operands)
            arguments.push_back(lines.load(operand, group, at, first_output, rows, positions, form.sums));
          result = call.finish->emit(arguments)[0];
        }
        lines.store(out, group, at, first_output, converted(result, call.out.dtype));
      });
  return builder.finish();
}

/// A block has some rows of the patches times some outputs of the gradient, which is in panels: of groups x
/// panel x columns of the patches, a panel's outputs side by side.
tile::Kernel correlation_kernel(const PatchCorrelation& call, const ProductForm& form) {
  Builder builder("ConvolutionWeight");
  const PatchReader patches(builder, call.patches);
  const Index outputs = builder.size("outputs"), block_rows = builder.size("block_rows"),
              block_outputs = builder.size("block_outputs"), total = builder.size("columns"),
              all_rows = builder.size("rows"), across = builder.size("across"), down = builder.size("down");
  builder.grid(patches.groups() * down * across);
  const Index group = Index::block() / across / down, first_row = Index::block() / across % down * block_rows,
              first_output = Index::block() % across * block_outputs;
  const Index rows = min(block_rows, all_rows - first_row), cols = min(block_outputs, outputs - first_output);
  const int64_t step = jit::product_columns(form.sums, kRows);
  const int panels = panel_buffer(builder, "gradient", form.sums, {patches.groups()}, total, outputs, step);
  const int out = builder.buffer(
      "out", call.out.dtype,
      {patches.groups(), patches.taps(0), patches.taps(1), patches.taps(2), outputs, patches.channels()},
      {std::nullopt, std::nullopt, std::nullopt, std::nullopt, std::nullopt,
       call.out.strides[2] == 1 ? std::optional<int64_t>(1) : std::nullopt});
  const int part = builder.local("part", form.sums, {block_rows, kRowStride}),
            sums = builder.local("sums", form.sums, {block_rows, block_outputs});

  Products{
      .builder = builder,
      .form = form,
      .sums = sums,
      .rows = rows,
      .cols = cols,
      .depth = total,
      .copy = [&](auto& first, auto& count) { patches.copy(part, group, first_row, rows, first, count); },
      .left = [&](auto& row, auto& here, auto&,
                  auto& count) { return builder.load(part, {row, 0}, here, count); },
      .right =
          [&](auto& col, auto& here, auto& first, auto& count) {
            return builder.load(panels, {group, (first_output + col) / step, first, 0}, count, here);
          }}
      .add_up();
  for_each_line(builder, patches.channels(), first_row, rows,
                [&](const Index& tap, const Index& channel, const Index& channels, const Index& before) {
                  const Index x = tap % patches.taps(2), y = tap / patches.taps(2) % patches.taps(1),
                              z = tap / patches.taps(2) / patches.taps(1);
                  const Expr result =
                      converted(builder.load(sums, {before, 0}, channels, cols), call.out.dtype);
                  builder.store(out, {group, z, y, x, first_output, channel},
                                builder.op(tile::Opcode::kTranspose, {result}));
                });
  return builder.finish();
}

/// A gradient in panels. A block has kDepth columns of the patches of one.
tile::Kernel panels_kernel(const PatchCorrelation& call, DType sums) {
  Builder builder("ConvolutionGradient");
  const PatchReader patches(builder, call.patches);
  const Index outputs = builder.size("outputs"), total = patches.batch() * patches.positions();
  const int64_t columns = jit::product_columns(sums, kRows);
  const Index count = ceil_div(outputs, Index(columns)), parts = ceil_div(total, Index(kDepth));
  builder.grid(patches.groups() * count * parts);
  const Index group = Index::block() / parts / count, panel = Index::block() / parts % count,
              first = Index::block() % parts * kDepth, here = min(kDepth, total - first),
              cols = min(columns, outputs - panel * columns);
  Lines lines(builder, patches, outputs);
  const size_t gradient = lines.declare("gradient", call.gradient);
  const int to = panel_buffer(builder, "panels", sums, {patches.groups()}, total, outputs, columns),
            local = builder.local("panel", sums, {kDepth, columns});
  lines.for_each(first, here, [&](const Lines::AtLine& at, const Index& positions, const Index& before) {
    builder.store(local, {before, 0},
                  lines.load(gradient, group, at, panel * columns, cols, positions, sums, true));
  });
  builder.store(to, {group, panel, first, 0}, builder.load(local, {0, 0}, here, cols));
  return builder.finish();
}

}  // namespace

void prepare(const PatchProduct& given, const TakeMemory& take, std::vector<Launch>& launches) {
  static KernelTable& table = *new KernelTable;  // outlives every thread
  if (given.out.elements() == 0) return;
  PatchProduct call = given;
  const int64_t depth = call.patches.rows(), total = call.patches.columns(), groups = call.out.sizes[0],
                outputs = call.out.sizes[2];
  const ProductForm form = {sum_type(call.out.dtype), 0 < depth && depth <= kDepth};
  call.weight = packed(call.weight, form.sums, take, launches);
  std::vector<View*> tensors = {&call.out};
  for (View& operand : call.operands) tensors.push_back(&operand);
  make_lines(tensors);

  const int64_t across = ceil_div(total, kColumnsOfBlock);
  const int64_t block_outputs = part_of(outputs, kOutputsOfBlock, kRows, groups * across);
  jit::PackedArguments arguments;
  PatchReader::add_sizes(arguments, call.patches);
  for (const int64_t size : {outputs, block_outputs, total, depth, across, ceil_div(outputs, block_outputs)})
    arguments.size(size);
  Lines::add_sizes(arguments, call.out);
  PatchReader::add_buffer(arguments, call.patches);
  arguments.buffer(call.weight.data, call.weight.strides);
  KernelTable::Key key;
  key.add(call.patches.image.dtype);
  key.add(static_cast<uint8_t>(call.patches.has_slack));
  key.add(static_cast<uint8_t>(call.patches.goes_back()));
  key.add(static_cast<uint8_t>(form.one_block));
  key.add(reinterpret_cast<uintptr_t>(call.finish));
  std::rotate(tensors.begin(), tensors.begin() + 1, tensors.end());  // out is the last one
  for (const View* tensor : tensors) {
    Lines::add(arguments, *tensor);
    key.add(tensor->dtype);
    key.add(side_of(*tensor));
  }
  const double products = static_cast<double>(call.out.elements()) * static_cast<double>(depth);
  launches.emplace_back(table.find(key, [&] { return product_kernel(call, form); }), arguments,
                        groups * across * ceil_div(outputs, block_outputs), products * kBytesOfProduct);
}

void prepare(const PatchCorrelation& given, const TakeMemory& take, std::vector<Launch>& launches) {
  static KernelTable& table = *new KernelTable;  // outlives every thread
  if (given.out.elements() == 0) return;
  PatchCorrelation call = given;
  const int64_t rows = call.patches.rows(), total = call.patches.columns(), groups = call.out.sizes[0],
                outputs = call.out.sizes[1];
  const ProductForm form = {sum_type(call.out.dtype), 0 < total && total <= kDepth};
  const int64_t columns = jit::product_columns(form.sums, kRows);
  View* const gradient[] = {&call.gradient};
  make_lines(gradient);
  const View panels = temporary(take, form.sums, {groups, ceil_div(outputs, columns), total, columns});
  const auto key_of = [&](bool pack) {
    KernelTable::Key key;
    key.add(static_cast<uint8_t>(pack));
    key.add(call.patches.image.dtype);
    key.add(static_cast<uint8_t>(call.patches.has_slack));
    key.add(static_cast<uint8_t>(call.patches.goes_back()));
    key.add(call.gradient.dtype);
    key.add(side_of(call.gradient));
    key.add(static_cast<uint8_t>(form.one_block));
    key.add(call.out.dtype);
    key.add(static_cast<uint8_t>(call.out.strides[2] == 1));
    return key;
  };
  if (total != 0) {
    jit::PackedArguments arguments;
    PatchReader::add_sizes(arguments, call.patches);
    arguments.size(outputs);
    Lines::add_sizes(arguments, call.gradient);
    PatchReader::add_buffer(arguments, call.patches);
    Lines::add(arguments, call.gradient);
    arguments.buffer(panels.data, panels.strides);
    launches.emplace_back(table.find(key_of(true), [&] { return panels_kernel(call, form.sums); }), arguments,
                          groups * panels.sizes[1] * ceil_div(total, kDepth),
                          static_cast<double>(panels.elements() * 8));
  }
  const int64_t block_outputs = std::min(round_up(outputs, columns), kOutputsOfBlock),
                across = ceil_div(outputs, block_outputs),
                block_rows = part_of(rows, kRowsOfBlock, kRows, groups * across);
  jit::PackedArguments arguments;
  PatchReader::add_sizes(arguments, call.patches);
  for (const int64_t size :
       {outputs, block_rows, block_outputs, total, rows, across, ceil_div(rows, block_rows)})
    arguments.size(size);
  PatchReader::add_buffer(arguments, call.patches);
  arguments.buffer(panels.data, panels.strides);
  const auto& to = call.out.strides;
  arguments.buffer(call.out.data, std::vector<int64_t>{to[0], to[3], to[4], to[5], to[1], to[2]});
  const double products = static_cast<double>(call.out.elements()) * static_cast<double>(total);
  launches.emplace_back(table.find(key_of(false), [&] { return correlation_kernel(call, form); }), arguments,
                        groups * across * ceil_div(rows, block_rows), products * kBytesOfProduct);
}

}  // namespace anynpu::ops
