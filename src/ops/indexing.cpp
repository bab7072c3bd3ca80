#include "ops/indexing.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "base/error.h"
#include "ops/copy.h"
#include "ops/grid.h"
#include "ops/kernel_table.h"
#include "ops/rows.h"

namespace anynpu::ops {
namespace {

using tile::Builder;
using tile::Expr;
using tile::Index;
using tile::Place;

const IndexingOp kOps[] = {
    {.name = "IndexSelect", .doc = "the slices that indices name"},
    {.name = "Embedding", .doc = "the rows of weights that indices name"},
    {.name = "Gather", .doc = "for each index, the element there along a dimension"},
    {.name = "ScatterAdd", .doc = "each value added where its index says along a dimension", .adds = true},
    {.name = "IndexAdd", .doc = "each slice added to the one that its index names", .adds = true},
    {.name = "EmbeddingDenseBackward",
     .doc = "each gradient added to the row of weights that its index names",
     .adds = true,
     .skips = true},
};

/// Elements of a block, about.
constexpr int64_t kBlockElements = 8192;
/// Of a block that adds: columns that are side by side, least to be worth a vector and most to stay in the
/// cache; and those that lie apart, in a cache line each.
constexpr int64_t kLeastCols = 64, kMostCols = 2048, kColsApart = 32;

/// A call with its dimensions coalesced, the innermost first. The last stride of what is indexed is that
/// along its positions; of the others, where the operator adds, that along the indices.
struct Coalesced {
  const IndexingOp& op;
  const bool from_zero;
  std::vector<int64_t> sizes;
  int64_t length = 1;     ///< of the dimension that indices are taken in order of, where the operator adds
  int64_t positions = 0;  ///< the size of the dimension that they are positions in
  std::array<std::vector<int64_t>, 3> strides;  ///< in bytes
  Operand values, index, indexed;

  explicit Coalesced(const IndexingCall& call)
      : op(call.op), from_zero(call.from_zero), positions(call.indexed.sizes[call.dim]) {
    View at_first = call.indexed;  // position
    at_first.sizes = call.index.sizes;
    if (!op.adds) at_first.strides[call.dim] = 0;
    const std::array<View, 3> views = {call.values, call.index, at_first};
    const Iteration iteration(views, op.adds ? std::optional(call.dim) : std::nullopt);
    sizes.assign(iteration.sizes().begin(), iteration.sizes().end());
    if (op.adds) length = call.index.sizes[call.dim];
    const auto bytes = static_cast<int64_t>(tile::size_of(call.indexed.dtype));
    std::array<Operand*, 3> operands = {&values, &index, &indexed};
    for (size_t i = 0; i < 3; ++i) {
      const auto given = iteration.operands()[i].strides;
      strides[i].assign(given.begin(), given.end());
      if (i == 2 && !op.adds) strides[i].push_back(call.indexed.strides[call.dim] * bytes);
      *operands[i] = iteration.operands()[i];
      operands[i]->strides = strides[i];
    }
    if (!op.adds) values.dtype = indexed.dtype = bits_of(tile::size_of(values.dtype));
  }
  Coalesced(const Coalesced&) = delete;

  /// Whether a row has one index.
  bool by_rows() const { return innermost(index) == Lies::kStays; }
  static Lies innermost(const Operand& operand) { return lies(operand.dtype, operand.strides[0]); }
  bool apart() const { return innermost(indexed) == Lies::kApart || innermost(values) == Lies::kApart; }
  /// Whether, where the operator adds, values and indices lie side by side in the order that they are taken
  /// in, and not in the columns.
  bool by_lines() const {
    const auto side_by_side = [](const Operand& operand) {
      return lies(operand.dtype, operand.strides.back()) == Lies::kAdjacent &&
             innermost(operand) != Lies::kAdjacent;
    };
    return op.adds && !op.skips && side_by_side(values) && side_by_side(index);
  }
};

enum class Use : uint8_t { kRead, kWritten };

/// Adds the buffer of an operand: its outermost dimension of that size, where it has one more than the grid.
int add_buffer(Builder& builder, const std::string& name, Use use, const Operand& operand, const Grid& grid,
               const Index& outermost = 1) {
  std::vector<Index> sizes;
  if (operand.strides.size() > grid.dims()) sizes.push_back(outermost);
  for (size_t d = grid.dims(); d-- > 0;) sizes.push_back(grid.size(d));
  std::vector<std::optional<int64_t>> strides(sizes.size());
  const Lies lies = Coalesced::innermost(operand);
  if (lies == Lies::kAdjacent) strides.back() = 1;
  if (lies == Lies::kStays && use == Use::kRead) strides.back() = 0;
  return builder.buffer(name, operand.dtype, sizes, strides);
}

/// Where a block's columns lie in row `row` of its rows.
std::vector<Place> places_in(const Grid& grid, const Index& row) {
  std::vector<Place> places;
  for (size_t d = grid.dims(); d-- > 0;) places.emplace_back(d == 1 ? grid.first(d) + row : grid.first(d));
  return places;
}

std::vector<Place> after(const Place& outermost, const std::vector<Place>& places) {
  std::vector<Place> all = {outermost};
  all.insert(all.end(), places.begin(), places.end());
  return all;
}

Place scalar_place(const Expr& position) { return Index::scalar(static_cast<int>(position.value())); }

tile::Kernel reading_kernel(const Coalesced& call) {
  Builder builder{std::string(call.op.name)};
  const size_t dims = call.sizes.size();
  const Grid grid(builder, dims, std::min<size_t>(dims, 2));
  const Index positions = builder.size("positions");
  const int values = add_buffer(builder, "values", Use::kWritten, call.values, grid),
            index = add_buffer(builder, "index", Use::kRead, call.index, grid),
            indexed = add_buffer(builder, "indexed", Use::kRead, call.indexed, grid, positions);
  const Index rows = dims > 1 ? grid.count(1) : Index(1);
  const Index& cols = grid.count(0);
  if (call.by_rows()) {
    builder.loop(0, rows, 1, {}, [&](const Index& row, const auto&) -> std::vector<Expr> {
      const auto places = places_in(grid, row);
      const Place position = scalar_place(builder.load(index, places, 1, 1));
      builder.store(values, places, builder.load(indexed, after(position, places), 1, cols));
      return {};
    });
  } else {
    const auto places = places_in(grid, 0);
    const Expr position = builder.load(index, places, rows, cols);
    builder.store(values, places, builder.load(indexed, after(position.value(), places), rows, cols));
  }
  return builder.finish();
}

/// Index after index, each of a row of columns: blocks have columns of their own.
tile::Kernel adding_kernel(const Coalesced& call) {
  Builder builder{std::string(call.op.name)};
  const Grid grid(builder, call.sizes.size(), 1);
  const Index length = builder.size("length"), positions = builder.size("positions");
  const int values = add_buffer(builder, "values", Use::kRead, call.values, grid, length),
            index = add_buffer(builder, "index", Use::kRead, call.index, grid, length),
            indexed = add_buffer(builder, "indexed", Use::kWritten, call.indexed, grid, positions);
  const DType index_type = call.index.dtype;
  const Expr skipped = builder.scalar("skipped", index_type);
  const auto places = places_in(grid, 0);
  const Index& cols = grid.count(0);
  if (call.from_zero) {
    const Expr zeros = builder.broadcast(builder.constant(call.indexed.dtype, 0.0), 1, cols);
    builder.loop(0, positions, 1, {}, [&](const Index& i, const auto&) -> std::vector<Expr> {
      builder.store(indexed, after(i, places), zeros);
      return {};
    });
  }
  builder.loop(0, length, 1, {}, [&](const Index& i, const auto&) -> std::vector<Expr> {
    const Expr position = builder.load(index, after(i, places), 1, call.by_rows() ? Index(1) : cols);
    const auto add = [&](const Index&, const auto&) -> std::vector<Expr> {
      const Place place = call.by_rows() ? scalar_place(position) : Place(position.value());
      const Expr value = builder.load(values, after(i, places), 1, cols);
      builder.accumulate(indexed, after(place, places), converted(value, call.indexed.dtype));
      return {};
    };
    if (!call.op.skips) return add(0, std::vector<Expr>());
    require(call.by_rows(), ErrorCode::kInternal, call.op.name,
            ": rows of several indices cannot be skipped");
    const Expr taken = builder.cast(builder.op(tile::Opcode::kNe, {position, skipped}), DType::kI64);
    builder.loop(0, Index::scalar(static_cast<int>(taken.value())), 1, {}, add);  // once, or not
    return {};
  });
  return builder.finish();
}

/// Line after line, each of all its indices: blocks have lines of their own.
tile::Kernel line_adding_kernel(const Coalesced& call) {
  Builder builder{std::string(call.op.name)};
  const Grid grid(builder, call.sizes.size(), 1);
  const Index length = builder.size("length"), positions = builder.size("positions");
  const auto add = [&](const std::string& name, const Operand& operand, const Index& along) {
    std::vector<Index> sizes;
    for (size_t d = grid.dims(); d-- > 0;) sizes.push_back(grid.size(d));
    sizes.push_back(along);
    std::vector<std::optional<int64_t>> strides(sizes.size());
    if (lies(operand.dtype, operand.strides.back()) == Lies::kAdjacent) strides.back() = 1;
    return builder.buffer(name, operand.dtype, sizes, strides);
  };
  const int values = add("values", call.values, length), index = add("index", call.index, length),
            indexed = add("indexed", call.indexed, positions);
  builder.loop(0, grid.count(0), 1, {}, [&](const Index& line, const auto&) -> std::vector<Expr> {
    std::vector<Place> places;
    for (size_t d = grid.dims(); d-- > 0;) places.emplace_back(d == 0 ? grid.first(d) + line : grid.first(d));
    const auto with = [&](const Place& along) {
      std::vector<Place> all = places;
      all.push_back(along);
      return all;
    };
    if (call.from_zero)
      builder.store(indexed, with(Index(0)),
                    builder.broadcast(builder.constant(call.indexed.dtype, 0.0), 1, positions));
    const Expr position = builder.load(index, with(Index(0)), 1, length),
               value = builder.load(values, with(Index(0)), 1, length);
    builder.accumulate(indexed, with(position.value()), converted(value, call.indexed.dtype));
    return {};
  });
  return builder.finish();
}

KernelTable::Key key_of(const Coalesced& call) {
  KernelTable::Key key;
  key.add(reinterpret_cast<uintptr_t>(&call.op));
  key.add(static_cast<uint8_t>(call.sizes.size()));
  for (const Operand* operand : {&call.values, &call.index, &call.indexed}) {
    key.add(static_cast<uint8_t>(operand->dtype));
    key.add(Coalesced::innermost(*operand));
  }
  key.add(call.by_lines());
  key.add(call.from_zero);
  if (call.by_lines()) key.add(lies(call.indexed.dtype, call.indexed.strides.back()));
  return key;
}

/// Strides for a kernel's buffer: of lines, that along them is the innermost one.
std::vector<int64_t> in_order(std::span<const int64_t> strides, bool by_lines) {
  std::vector<int64_t> ordered(strides.begin(), strides.end());
  if (by_lines) std::rotate(ordered.begin(), ordered.end() - 1, ordered.end());
  return ordered;
}

}  // namespace

std::span<const IndexingOp> indexing_ops() { return kOps; }

const IndexingOp& indexing_op(std::string_view name) { return row_named(indexing_ops(), name); }

Launch prepare(const IndexingCall& given) {
  static KernelTable& table = *new KernelTable;  // outlives every thread
  const Coalesced call(given);
  const bool adds = call.op.adds;
  jit::PackedArguments arguments;
  int64_t blocks = 0;
  const bool by_lines = call.by_lines();
  if (by_lines) {
    const int64_t lines = std::clamp<int64_t>(kBlockElements / call.length, 1, call.sizes[0]);
    blocks = add_grid(arguments, call.sizes, std::span(&lines, 1));
    arguments.size(call.length);
  } else if (adds) {
    const int64_t cols = call.apart() ? kColsApart : std::clamp(call.sizes[0] / 8, kLeastCols, kMostCols);
    blocks = add_grid(arguments, call.sizes, std::array{std::min(call.sizes[0], cols)});
    arguments.size(call.length);
  } else {
    const int64_t cols = std::min(call.sizes[0], kBlockElements), parts[] = {cols, kBlockElements / cols};
    blocks = add_grid(arguments, call.sizes, std::span(parts).first(std::min<size_t>(call.sizes.size(), 2)));
  }
  arguments.size(call.positions);
  double elements = static_cast<double>(call.length), bytes = 0;
  for (const int64_t size : call.sizes) elements *= static_cast<double>(size);
  for (const Operand* operand : {&call.values, &call.index, &call.indexed}) {
    add_buffer(arguments, *operand, in_order(operand->strides, by_lines));
    bytes += elements * static_cast<double>(tile::size_of(operand->dtype));
  }
  if (adds && !by_lines) arguments.scalar(call.index.dtype, given.skipped);
  const auto make = [&] {
    return by_lines ? line_adding_kernel(call) : adds ? adding_kernel(call) : reading_kernel(call);
  };
  return {table.find(key_of(call), make), arguments, blocks, bytes};
}

}  // namespace anynpu::ops
