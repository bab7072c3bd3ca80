#include "ops/lines.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <string>

#include "base/error.h"
#include "ops/grid.h"
#include "ops/kernel_table.h"
#include "ops/line_tables.h"
#include "ops/rows.h"

namespace anynpu::ops {
namespace {

using tile::Axis;
using tile::Builder;
using tile::Expr;
using tile::Index;
using tile::Place;

/// Elements of a block, about.
constexpr int64_t kBlockElements = 8192;
/// The same where lines are in pieces: so that a piece of all its lines is worth fetching.
constexpr int64_t kBlockInPieces = 32768;
/// Lines side by side in a block where they lie along rows: at least so many that a row of theirs is worth
/// fetching, and at most what fits the cache with all states of its reductions; as many as make so many
/// blocks between those.
constexpr int64_t kLeastSide = 256, kMostSide = 512, kEnoughBlocks = 8;

/// Along which axis of a tile the lines of a call lie: the columns, unless only that across them is adjacent.
Axis axis_of(const LineCall& call) {
  if (call.op.in_order) return Axis::kCols;
  const auto fit = [&](bool along) {
    return std::all_of(call.operands.begin(), call.operands.end(), [&](const Operand& operand) {
      return lies(operand.dtype, along ? operand.strides.back() : operand.strides[0]) != Lies::kApart;
    });
  };
  return !fit(true) && fit(false) ? Axis::kRows : Axis::kCols;
}

/// The lines that one block computes: some along the innermost dimension, all side by side.
class Block {
 public:
  Block(Builder& builder, const LineCall& call)
      : axis_(axis_of(call)), grid_(builder, call.sizes.size(), 1), length_(builder.size("length")) {
    const Index whole = call.stands_for ? builder.size("whole") : length_;
    if (call.pieces) pieces_ = builder.size("pieces");
    if (call.parts) first_ = grid_.first(grid_.dims() - 1) * length_;
    count_ = call.parts ? min(length_, whole - first_) : length_;
    stands_for_ = whole;
  }

  /// A tile that has all elements of its lines, where it has one that they all are.
  Expr whole_line(const Expr& value) const {
    const tile::Type type = value.type();
    const bool cols = axis_ == Axis::kCols;
    if ((cols ? type.cols : type.rows) == count_) return value;
    return value.builder().broadcast(value, cols ? type.rows : count_, cols ? count_ : type.cols);
  }

  TilesAlong along(Builder& builder, DType compute) const {
    return {axis_, first_, count_, converted(builder.index(stands_for_), compute)};
  }

  /// A buffer with the two dimensions of the tile last, the one along its lines where the axis says. Of lines
  /// in pieces it has that of the pieces before, and the part is of the first one.
  struct Part {
    int buffer;
    std::vector<Place> places;
    Index rows, cols;
  };
  Part part(Builder& builder, const std::string& name, const Operand& operand, bool in_pieces) const {
    const auto stays = [&](int64_t stride) { return lies(operand.dtype, stride) == Lies::kStays; };
    const int64_t across = operand.strides[0], along = operand.strides.back();
    std::vector<Index> sizes;
    std::vector<Place> places;
    for (size_t d = grid_.dims(); d-- > 0;) {
      sizes.push_back(grid_.size(d));
      places.emplace_back(grid_.first(d));
    }
    const Index count = stays(across) ? Index(1) : grid_.count(0), line = stays(along) ? Index(1)
                                                                          : in_pieces  ? piece()
                                                                                       : count_;
    if (stays(across)) sizes.back() = 1, places.back() = Index(0);
    const bool cols = axis_ == Axis::kCols;
    sizes.insert(cols ? sizes.end() : sizes.end() - 1, in_pieces || stays(along) ? line : length_);
    places.insert(cols ? places.end() : places.end() - 1, Index(0));
    if (in_pieces) {
      sizes.insert(sizes.end() - 2, pieces_);
      places.insert(places.end() - 2, Index(0));
    }
    std::vector<std::optional<int64_t>> strides(sizes.size());
    if (lies(operand.dtype, cols ? along : across) == Lies::kAdjacent) strides.back() = 1;
    const int buffer = builder.buffer(name, operand.dtype, sizes, strides);
    return {buffer, std::move(places), cols ? count : line, cols ? line : count};
  }

  /// The lines of a part, its pieces joined in memory of the block's own.
  Expr joined(Builder& builder, const std::string& name, const Part& part, DType dtype) const {
    const bool cols = axis_ == Axis::kCols;
    const Index rows = cols ? part.rows : length_, columns = cols ? length_ : part.cols;
    const int joined =
        builder.local(name, dtype, {cols ? grid_.most(0) : length_, cols ? length_ : grid_.most(0)});
    builder.loop(0, pieces_, 1, {}, [&](const Index& piece, const auto&) -> std::vector<Expr> {
      std::vector<Place> from = part.places;
      from.end()[-3] = piece;
      const Index at = piece * this->piece();
      builder.store(joined, {cols ? Index(0) : at, cols ? at : Index(0)},
                    builder.load(part.buffer, from, part.rows, part.cols));
      return {};
    });
    return builder.load(joined, {Index(0), Index(0)}, rows, columns);
  }

 private:
  Index piece() const { return length_ / pieces_; }

  const Axis axis_;
  const Grid grid_;
  const Index length_;
  Index first_ = 0, count_ = 0, stands_for_ = 0, pieces_ = 1;
};

bool is_in_pieces(const LineCall& call, size_t operand) {
  const size_t results = call.op.formula.results;
  return call.pieces && operand >= results && (call.op.one_for_line >> (operand - results) & 1) == 0;
}

/// The argument of an operand's buffer: its dimensions across the lines, that of pieces, and among the last
/// two that along.
void add_line_buffer(jit::PackedArguments& arguments, const Operand& operand, Axis axis, bool in_pieces) {
  const auto bytes = static_cast<int64_t>(tile::size_of(operand.dtype));
  const auto& strides = operand.strides;
  const size_t dims = strides.size() - (in_pieces ? 2 : 1);
  const int64_t across = strides[0] / bytes, along = strides.back() / bytes;
  arguments.buffer(operand.data, {});
  for (size_t d = dims; d-- > 1;) arguments.add(strides[d] / bytes);
  if (in_pieces) arguments.add(strides[dims] / bytes);
  arguments.add(axis == Axis::kCols ? across : along);
  arguments.add(axis == Axis::kCols ? along : across);
}

KernelTable::Key key_of(const LineCall& call) {
  KernelTable::Key key;
  key.add(reinterpret_cast<uintptr_t>(&call.op));
  key.add(static_cast<uint8_t>(call.sizes.size()));
  key.add(axis_of(call));
  key.add(call.common);
  key.add(static_cast<uint8_t>(call.parts ? 2 : call.stands_for ? 1 : 0));
  key.add(static_cast<uint8_t>(call.pieces ? 1 : 0));
  for (const Operand& operand : call.operands) {
    key.add(static_cast<uint8_t>(operand.dtype));
    key.add(lies(operand.dtype, operand.strides[0]));
    key.add(lies(operand.dtype, operand.strides.back()));
  }
  return key;
}

}  // namespace

std::span<const LineOp> line_ops() {
  static const auto& ops = *new std::vector<LineOp>([] {
    std::vector<LineOp> rows = normalizations();
    for (auto& table : {reductions(), scans()}) rows.insert(rows.end(), table.begin(), table.end());
    return rows;
  }());
  return ops;
}

const LineOp& line_op(std::string_view name) { return row_named(line_ops(), name); }

DType compute_type(const LineOp& op, DType common) {
  return op.in_f64 && common == DType::kF32 ? DType::kF64 : compute_type(common);
}

tile::Kernel line_kernel(const LineCall& call) {
  Builder builder{std::string(call.op.name)};
  const Block block(builder, call);
  const size_t results = call.op.formula.results;
  const DType compute = compute_type(call.op, call.common);
  std::vector<Block::Part> parts;
  parts.reserve(call.operands.size());
  for (size_t i = 0; i < call.operands.size(); ++i)
    parts.push_back(block.part(builder, i < results ? concat("y", i) : concat("x", i - results),
                               call.operands[i], is_in_pieces(call, i)));
  std::vector<Expr> arguments;
  for (size_t i = results; i < call.operands.size(); ++i) {
    const auto& [buffer, places, rows, cols] = parts[i];
    Expr stored = is_in_pieces(call, i)
                      ? block.joined(builder, concat("line", i - results), parts[i], call.operands[i].dtype)
                      : builder.load(buffer, places, rows, cols);
    if ((call.op.one_for_line >> (i - results) & 1) == 0) stored = block.whole_line(stored);
    const bool common = call.op.takes(i - results) == Holds::kCommon;
    arguments.push_back(common ? converted(converted(stored, call.common), compute) : stored);
  }
  for (int i = 0; i < call.op.numbers; ++i) arguments.push_back(builder.scalar(concat("number", i), compute));
  const auto values = call.op.formula.emit(block.along(builder, compute), arguments);
  for (size_t i = 0; i < results; ++i) {
    const auto& [buffer, places, rows, cols] = parts[i];
    builder.store(buffer, places, shaped(values[i], {call.operands[i].dtype, rows, cols}));
  }
  return builder.finish();
}

Launch prepare(const LineCall& call) {
  static KernelTable& table = *new KernelTable;  // outlives every thread
  const Axis axis = axis_of(call);
  const int64_t all = std::accumulate(call.sizes.begin(), call.sizes.end(), int64_t{1}, std::multiplies<>()),
                least = axis == Axis::kCols ? 1 : std::clamp(all / kEnoughBlocks, kLeastSide, kMostSide),
                elements = call.pieces ? kBlockInPieces : kBlockElements,
                side = std::min(call.sizes[0], std::max(least, elements / std::max<int64_t>(1, call.length)));
  jit::PackedArguments arguments;
  const int64_t blocks = add_grid(arguments, call.sizes, std::span(&side, 1));
  arguments.size(call.length);
  if (call.stands_for) arguments.size(*call.stands_for);
  if (call.pieces) arguments.size(*call.pieces);
  const auto lines = static_cast<double>(all);
  double bytes = 0;
  for (size_t i = 0; i < call.operands.size(); ++i) {
    const Operand& operand = call.operands[i];
    add_line_buffer(arguments, operand, axis, is_in_pieces(call, i));
    const auto length = static_cast<double>(operand.strides.back() == 0 ? 1 : call.length);
    bytes += lines * length * static_cast<double>(tile::size_of(operand.dtype));
  }
  const DType compute = compute_type(call.op, call.common);
  for (const tile::Literal& number : call.numbers) arguments.scalar(compute, number);
  return {table.find(key_of(call), [&] { return line_kernel(call); }), arguments, blocks, bytes};
}

Launch prepare(const LineOp& op, DType common, std::vector<View> views, size_t dim,
               std::span<const double> numbers) {
  for (size_t i = 0; i < views.size(); ++i) {
    View& view = views[i];
    if (view.sizes.empty()) view = {view.dtype, view.data, {1}, {1}};
    // A stride of 0 says that there is one element for a line: of a result whose lines are whole not even
    // where they have one, and of an operand not where they have none to repeat.
    const bool result = i < op.formula.results;
    const auto for_line = result ? op.short_results >> i : op.one_for_line >> (i - op.formula.results);
    if ((for_line & 1) == 0 && view.sizes[dim] == (result ? 1 : 0)) view.strides[dim] = 1;
  }
  const Iteration across(views, dim);
  const std::vector<tile::Literal> literals(numbers.begin(), numbers.end());
  return prepare(LineCall{op, common, across.sizes(), views.front().sizes[dim], across.operands(), literals});
}

Launch prepare_in_pieces(const LineOp& op, DType common, std::vector<View> views) {
  const size_t dim = views.front().sizes.size() - 2;  // along lines, without that of pieces
  const int64_t pieces = views.front().sizes[dim];
  std::vector<int64_t> between;
  for (View& view : views) {
    between.push_back(view.strides[dim] * static_cast<int64_t>(tile::size_of(view.dtype)));
    view.sizes.erase(view.sizes.end() - 2);
    view.strides.erase(view.strides.end() - 2);
  }
  const int64_t piece = views.front().sizes[dim];
  const Iteration across(views, dim);
  std::vector<std::vector<int64_t>> strides;
  std::vector<Operand> operands = across.operands();
  for (size_t i = 0; i < operands.size(); ++i) {
    const size_t results = op.formula.results;
    strides.emplace_back(operands[i].strides.begin(), operands[i].strides.end());
    if (i >= results && (op.one_for_line >> (i - results) & 1) == 0)
      strides.back().insert(strides.back().end() - 1, between[i]);
  }
  for (size_t i = 0; i < operands.size(); ++i) operands[i].strides = strides[i];
  return prepare(LineCall{.op = op,
                          .common = common,
                          .sizes = across.sizes(),
                          .length = pieces * piece,
                          .operands = operands,
                          .pieces = pieces});
}

}  // namespace anynpu::ops
