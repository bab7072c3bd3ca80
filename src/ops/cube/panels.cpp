#include "ops/cube/panels.h"

#include <optional>
#include <utility>

namespace anynpu::ops {

using tile::Builder;
using tile::Expr;
using tile::Index;
using tile::Place;

namespace {

constexpr int64_t kPart = 256;  ///< of k, in a block

std::vector<Place> places(const std::vector<Index>& batch, std::initializer_list<Index> rest) {
  std::vector<Place> places(batch.begin(), batch.end());
  places.insert(places.end(), rest.begin(), rest.end());
  return places;
}

tile::Kernel pack_kernel(const View& matrices, DType dtype, int64_t columns, Layout layout) {
  Builder builder("PackPanels");
  std::vector<Index> sizes, batch;
  for (size_t d = 0; d + 2 < matrices.sizes.size(); ++d) sizes.push_back(builder.size(concat("batch", d)));
  const Index size = builder.size("k"), n = builder.size("n"),
              k = hold_pairs(dtype, matrices.dtype) ? ceil_div(size, 2) : size;
  const Index panels = ceil_div(n, columns), parts = ceil_div(k, kPart);
  Index blocks = panels * parts, left = Index::block() / parts / panels;
  for (size_t d = sizes.size(); d-- > 0;) {
    blocks = blocks * sizes[d];
    batch.insert(batch.begin(), d == 0 ? left : left % sizes[d]);
    left = left / sizes[d];
  }
  builder.grid(blocks);
  const Index panel = Index::block() / parts % panels, first = Index::block() % parts * kPart,
              depth = min(kPart, k - first), cols = min(columns, n - panel * columns);
  const bool pairs = hold_pairs(dtype, matrices.dtype);
  std::optional<PairedMatrices> paired;
  std::optional<Matrices> plain;
  if (pairs)
    paired.emplace(builder, "matrices", matrices.dtype, layout, sizes, size, n, PairsAlong::kRows);
  else
    plain.emplace(builder, "matrices", matrices.dtype, layout, sizes, size, n);
  const int to = panel_buffer(builder, "panels", dtype, sizes, k, n, columns);
  const int local = builder.local("panel", dtype, {kPart, columns});
  if (pairs)
    paired->copy(batch, first, panel * columns, depth, cols, local);
  else
    builder.store(local, {0, 0}, plain->tile(batch, first, panel * columns, depth, cols, dtype));
  builder.store(local, {0, cols}, filled(builder, dtype, 0, depth, columns - cols));
  builder.store(to, places(batch, {panel, first, 0}), builder.load(local, {0, 0}, depth, columns));
  return builder.finish();
}

}  // namespace

Layout layout_of(const View& matrices) {
  const size_t cols = matrices.sizes.size() - 1, rows = cols - 1;
  if (matrices.strides[cols] == 1 || (matrices.sizes[cols] == 1 && matrices.strides[rows] != 1))
    return Layout::kByRows;
  return matrices.strides[rows] == 1 || matrices.sizes[rows] == 1 ? Layout::kByColumns : Layout::kApart;
}

View transposed(View matrices) {
  const size_t cols = matrices.sizes.size() - 1;
  std::swap(matrices.sizes[cols], matrices.sizes[cols - 1]);
  std::swap(matrices.strides[cols], matrices.strides[cols - 1]);
  return matrices;
}

Expr filled(Builder& builder, DType dtype, double value, const Index& rows, const Index& cols) {
  const Expr one = tile::kBits.contains(dtype) ? builder.constant(dtype, static_cast<int64_t>(value))
                                               : builder.constant(dtype, value);
  return builder.broadcast(one, rows, cols);
}

Matrices::Matrices(Builder& builder, const std::string& name, DType dtype, Layout layout,
                   const std::vector<Index>& batch, const Index& rows, const Index& cols)
    : builder_(builder), turned_(layout == Layout::kByColumns) {
  std::vector<Index> sizes = batch;
  sizes.push_back(turned_ ? cols : rows);
  sizes.push_back(turned_ ? rows : cols);
  std::vector<std::optional<int64_t>> strides(sizes.size());
  if (layout != Layout::kApart) strides.back() = 1;
  buffer_ = builder.buffer(name, dtype, std::move(sizes), std::move(strides));
}

Expr Matrices::tile(const std::vector<Index>& batch, const Index& row, const Index& col, const Index& rows,
                    const Index& cols, DType dtype) const {
  if (!turned_) return converted(builder_.load(buffer_, places(batch, {row, col}), rows, cols), dtype);
  const Expr there = converted(builder_.load(buffer_, places(batch, {col, row}), cols, rows), dtype);
  return builder_.op(tile::Opcode::kTranspose, {there});
}

void Matrices::add_argument(jit::PackedArguments& arguments, const View& matrices, Layout layout) {
  arguments.buffer(matrices.data,
                   layout == Layout::kByColumns ? transposed(matrices).strides : matrices.strides);
}

PairedMatrices::PairedMatrices(Builder& builder, const std::string& name, DType dtype, Layout layout,
                               const std::vector<Index>& batch, const Index& rows, const Index& cols,
                               PairsAlong along)
    : builder_(builder),
      dtype_(dtype),
      turned_(layout == Layout::kByColumns),
      along_last_(turned_ == (along == PairsAlong::kRows)),
      seconds_((along == PairsAlong::kRows ? rows : cols) / 2) {
  const auto buffer = [&](const std::string& which, const Index& count) {
    std::vector<Index> sizes = batch;
    const Index other = along == PairsAlong::kRows ? cols : rows;
    sizes.push_back(along_last_ ? other : count);
    sizes.push_back(along_last_ ? count : other);
    std::vector<std::optional<int64_t>> strides(sizes.size());
    if (layout != Layout::kApart) strides.back() = along_last_ ? 2 : 1;
    return builder.buffer(name + which, dtype, std::move(sizes), std::move(strides));
  };
  first_ = buffer("_first", ceil_div(along == PairsAlong::kRows ? rows : cols, 2));
  second_ = buffer("_second", seconds_);
}

Expr PairedMatrices::pairs(const std::vector<Place>& at, const Index& rows, const Index& cols,
                           bool have_second) const {
  const auto number = [&](int buffer) {
    const Expr loaded = builder_.load(buffer, at, rows, cols);
    return builder_.cast(dtype_ == DType::kBF16 ? builder_.bitcast(loaded, DType::kI16) : loaded,
                         DType::kI32);
  };
  const Expr upper =
      builder_.op(tile::Opcode::kShl, {number(first_), builder_.constant(DType::kI32, int64_t{16})});
  if (!have_second) return upper;
  return upper | (number(second_) & builder_.constant(DType::kI32, int64_t{0xffff}));
}

void PairedMatrices::copy(const std::vector<Index>& batch, const Index& row, const Index& col,
                          const Index& rows, const Index& cols, int local) const {
  // As the matrix lies in memory.
  const Index &from_row = turned_ ? col : row, &from_col = turned_ ? row : col,
              &all_rows = turned_ ? cols : rows, &all_cols = turned_ ? rows : cols;
  const auto copy = [&](const Index& start, const Index& count, bool have_second) {
    const Index here = along_last_ ? from_col + start : from_row + start;
    Expr tile = pairs(places(batch, {along_last_ ? from_row : here, along_last_ ? here : from_col}),
                      along_last_ ? all_rows : count, along_last_ ? count : all_cols, have_second);
    if (turned_) tile = builder_.op(tile::Opcode::kTranspose, {tile});
    const bool to_rows = turned_ == along_last_;
    builder_.store(local, {to_rows ? start : Index(0), to_rows ? Index(0) : start}, tile);
  };
  const Index &count = along_last_ ? all_cols : all_rows, &first = along_last_ ? from_col : from_row;
  const Index whole = min(count, seconds_ - first);
  copy(0, whole, true);
  copy(whole, count - whole, false);
}

void PairedMatrices::add_arguments(jit::PackedArguments& arguments, const View& matrices, Layout layout,
                                   PairsAlong along) {
  std::vector<int64_t> strides = matrices.strides;
  int64_t& stride = strides[strides.size() - (along == PairsAlong::kRows ? 2 : 1)];
  auto* const second =
      static_cast<std::byte*>(matrices.data) + stride * static_cast<int64_t>(size_of(matrices.dtype));
  stride *= 2;
  if (layout == Layout::kByColumns) std::swap(strides.back(), strides[strides.size() - 2]);
  arguments.buffer(matrices.data, strides);
  arguments.buffer(second, strides);
}

bool hold_pairs(DType panels, DType matrices) { return panels == DType::kI32 && matrices != DType::kI32; }

int panel_buffer(Builder& builder, const std::string& name, DType dtype, const std::vector<Index>& batch,
                 const Index& k, const Index& n, int64_t columns) {
  std::vector<Index> sizes = batch;
  for (const Index& size : {ceil_div(n, columns), k, Index(columns)}) sizes.push_back(size);
  std::vector<std::optional<int64_t>> strides(sizes.size());
  strides[sizes.size() - 2] = columns;
  strides[sizes.size() - 1] = 1;
  return builder.buffer(name, dtype, std::move(sizes), std::move(strides));
}

View panels_of(const View& matrices, DType dtype, int64_t columns, void* memory) {
  std::vector<int64_t> sizes(matrices.sizes.begin(), matrices.sizes.end() - 2);
  int64_t k = matrices.sizes[sizes.size()];
  const int64_t n = matrices.sizes.back();
  if (hold_pairs(dtype, matrices.dtype)) k = ceil_div(k, 2);
  for (const int64_t size : {ceil_div(n, columns), k, columns}) sizes.push_back(size);
  return contiguous(dtype, memory, std::move(sizes));
}

Launch pack(const View& matrices, const View& panels) {
  static KernelTable& table = *new KernelTable;  // outlives every thread
  const size_t rank = matrices.sizes.size();
  const int64_t k = panels.sizes[rank - 1], columns = panels.sizes.back();
  int64_t blocks = ceil_div(k, kPart) * panels.sizes[rank - 2];
  jit::PackedArguments arguments;
  for (size_t d = 0; d < rank; ++d) {
    arguments.size(matrices.sizes[d]);
    if (d + 2 < rank) blocks *= matrices.sizes[d];
  }
  const Layout layout = layout_of(matrices);
  if (hold_pairs(panels.dtype, matrices.dtype))
    PairedMatrices::add_arguments(arguments, matrices, layout, PairsAlong::kRows);
  else
    Matrices::add_argument(arguments, matrices, layout);
  arguments.buffer(panels.data, panels.strides);
  KernelTable::Key key;
  for (const DType type : {matrices.dtype, panels.dtype}) key.add(type);
  key.add(layout);
  key.add(columns);
  key.add(rank);
  auto code = table.find(key, [&] { return pack_kernel(matrices, panels.dtype, columns, layout); });
  const auto bytes = static_cast<double>(panels.elements()) * 2 * static_cast<double>(size_of(panels.dtype));
  return {std::move(code), arguments, blocks, bytes};
}

View pack_panels(const View& matrices, DType dtype, int64_t columns, const TakeMemory& take,
                 std::vector<Launch>& launches) {
  View panels = panels_of(matrices, dtype, columns, nullptr);
  panels = temporary(take, dtype, std::move(panels.sizes));
  launches.push_back(pack(matrices, panels));
  return panels;
}

}  // namespace anynpu::ops
