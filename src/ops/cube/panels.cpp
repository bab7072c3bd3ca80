#include "ops/cube/panels.h"

#include <optional>
#include <utility>

#include "jit/jit.h"

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

bool hold_pairs(DType panels, const View& matrices) {
  return panels == DType::kI32 && matrices.dtype != DType::kI32;
}
std::optional<Pairs> pairs_in(DType panels, const View& matrices) {
  return hold_pairs(panels, matrices) ? pairs_of(matrices, PairsAlong::kRows) : std::nullopt;
}

tile::Kernel pack_kernel(const View& matrices, DType dtype, int64_t columns, Layout layout) {
  Builder builder("PackPanels");
  std::vector<Index> sizes, batch;
  for (size_t d = 0; d + 2 < matrices.sizes.size(); ++d) sizes.push_back(builder.size(concat("batch", d)));
  const Index size = builder.size("k"), n = builder.size("n"),
              k = hold_pairs(dtype, matrices) ? ceil_div(size, 2) : size;
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
  const auto pairs = pairs_in(dtype, matrices);
  const Matrices from(builder, "matrices", matrices.dtype, layout, sizes, size, n, pairs);
  const int to = panel_buffer(builder, "panels", dtype, sizes, k, n, columns);
  const int local = builder.local("panel", dtype, {kPart, columns});
  from.copy(batch, first, panel * columns, depth, cols, dtype, local);
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
                   const std::vector<Index>& batch, const Index& rows, const Index& cols,
                   std::optional<Pairs> pairs)
    : builder_(builder), dtype_(dtype), turned_(layout == Layout::kByColumns), pairs_(pairs) {
  const auto buffer = [&](const std::string& name, DType dtype, const Index& rows, const Index& cols,
                          int64_t last_stride) {
    std::vector<Index> sizes = batch;
    sizes.push_back(turned_ ? cols : rows);
    sizes.push_back(turned_ ? rows : cols);
    std::vector<std::optional<int64_t>> strides(sizes.size());
    if (layout != Layout::kApart) strides.back() = last_stride;
    return builder.buffer(name, dtype, std::move(sizes), std::move(strides));
  };
  if (!pairs) {
    buffer_ = buffer(name, dtype, rows, cols, 1);
    return;
  }
  const bool of_rows = pairs->along == PairsAlong::kRows;
  const int64_t apart = turned_ == of_rows ? 2 : 1;  // in the last dimension
  const Index& all = of_rows ? rows : cols;
  const auto some = [&](const std::string& name, DType dtype, const Index& count, int64_t last_stride) {
    return buffer(name, dtype, of_rows ? count : rows, of_rows ? cols : count, last_stride);
  };
  whole_ = all / 2;
  buffer_ = some(name + "_first", dtype, ceil_div(all, 2), apart);
  second_ = pairs->are_words ? some(name + "_pairs", DType::kI32, whole_, 1)
                             : some(name + "_second", dtype, whole_, apart);
}

Expr Matrices::tile(const std::vector<Index>& batch, const Index& row, const Index& col, const Index& rows,
                    const Index& cols, DType dtype) const {
  if (!turned_) return converted(builder_.load(buffer_, places(batch, {row, col}), rows, cols), dtype);
  const Expr there = converted(builder_.load(buffer_, places(batch, {col, row}), cols, rows), dtype);
  return builder_.op(tile::Opcode::kTranspose, {there});
}

Expr Matrices::pairs_at(const std::vector<Place>& at, const Index& rows, const Index& cols,
                        bool have_second) const {
  const auto load = [&](int buffer) { return builder_.load(buffer, at, rows, cols); };
  const auto number = [&](int buffer) {
    const Expr loaded = load(buffer);
    return builder_.cast(dtype_ == DType::kBF16 ? builder_.bitcast(loaded, DType::kI16) : loaded,
                         DType::kI32);
  };
  const Expr half = builder_.constant(DType::kI32, int64_t{16});
  const auto upper = [&](const Expr& number) { return builder_.op(tile::Opcode::kShl, {number, half}); };
  if (!have_second) return upper(number(buffer_));
  if (!pairs_->are_words)
    return upper(number(buffer_)) | (number(second_) & builder_.constant(DType::kI32, int64_t{0xffff}));
  const Expr words = load(second_);
  return upper(words) | builder_.op(tile::Opcode::kShrLogical, {words, half});
}

void Matrices::copy(const std::vector<Index>& batch, const Index& row, const Index& col, const Index& rows,
                    const Index& cols, DType dtype, int local, const std::vector<Index>& to) const {
  if (!pairs_) return builder_.store(local, places(to, {0, 0}), tile(batch, row, col, rows, cols, dtype));
  const bool of_rows = pairs_->along == PairsAlong::kRows;
  const auto copy = [&](const Index& start, const Index& count, bool have_second) {
    const Index start_row = of_rows ? start : Index(0), start_col = of_rows ? Index(0) : start,
                from_row = row + start_row, from_col = col + start_col, these_rows = of_rows ? count : rows,
                these_cols = of_rows ? cols : count;
    const Expr pairs =
        turned_ ? builder_.op(tile::Opcode::kTranspose, {pairs_at(places(batch, {from_col, from_row}),
                                                                  these_cols, these_rows, have_second)})
                : pairs_at(places(batch, {from_row, from_col}), these_rows, these_cols, have_second);
    builder_.store(local, places(to, {start_row, start_col}), pairs);
  };
  const Index count = of_rows ? rows : cols, whole = min(count, whole_ - (of_rows ? row : col));
  copy(0, whole, true);
  copy(whole, count - whole, false);
}

void Matrices::add_argument(jit::PackedArguments& arguments, const View& matrices, Layout layout,
                            std::optional<Pairs> pairs) {
  View view = layout == Layout::kByColumns ? transposed(matrices) : matrices;
  if (!pairs) return arguments.buffer(view.data, view.strides);
  const bool along_last = (pairs->along == PairsAlong::kRows) == (layout == Layout::kByColumns);
  const size_t along = view.strides.size() - (along_last ? 1 : 2);
  const int64_t second = view.strides[along] * static_cast<int64_t>(size_of(view.dtype));
  view.strides[along] *= 2;
  arguments.buffer(view.data, view.strides);
  if (!pairs->are_words) return arguments.buffer(static_cast<std::byte*>(view.data) + second, view.strides);
  for (int64_t& stride : view.strides) stride /= 2;
  arguments.buffer(view.data, view.strides);
}

std::optional<Pairs> pairs_of(const View& matrices, PairsAlong along) {
  if (!multiplies_pairs(matrices.dtype)) return std::nullopt;
  const size_t rank = matrices.sizes.size(), of_pair = rank - (along == PairsAlong::kRows ? 2 : 1);
  bool are_words = matrices.dtype == DType::kBF16 && matrices.strides[of_pair] == 1 &&
                   reinterpret_cast<uintptr_t>(matrices.data) % sizeof(int32_t) == 0;
  for (size_t d = 0; d < rank; ++d) are_words &= d == of_pair || matrices.strides[d] % 2 == 0;
  return Pairs{along, are_words};
}

void add_to(KernelTable::Key& key, const std::optional<Pairs>& pairs) {
  key.add(static_cast<uint8_t>(!pairs ? 0 : pairs->are_words ? 2 : 1));
}

bool multiplies_pairs(DType dtype) {
  return dtype == DType::kI8 || (dtype == DType::kBF16 && jit::isa_of_machine() == jit::Isa::kAvx512Dot);
}

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
  if (hold_pairs(dtype, matrices)) k = ceil_div(k, 2);
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
  const auto pairs = pairs_in(panels.dtype, matrices);
  Matrices::add_argument(arguments, matrices, layout, pairs);
  arguments.buffer(panels.data, panels.strides);
  KernelTable::Key key;
  for (const DType type : {matrices.dtype, panels.dtype}) key.add(type);
  key.add(layout);
  add_to(key, pairs);
  key.add(columns);
  key.add(rank);
  auto code = table.find(key, [&] { return pack_kernel(matrices, panels.dtype, columns, layout); });
  const auto bytes = static_cast<double>(panels.elements()) * 2 * static_cast<double>(size_of(panels.dtype));
  return {std::move(code), arguments, blocks, bytes};
}

View pack_panels(const View& matrices, DType dtype, int64_t columns, const TakeMemory& take,
                 std::vector<Launch>& launches) {
  View panels = panels_of(matrices, dtype, columns, nullptr);
  if (matrices.dtype == dtype && matrices.sizes.back() == columns && matrices.strides.back() == 1 &&
      matrices.strides[matrices.strides.size() - 2] == columns) {  // it is one panel
    panels.data = matrices.data;
    panels.strides = matrices.strides;
    panels.strides.insert(panels.strides.end() - 2, 0);
    return panels;
  }
  panels = temporary(take, dtype, std::move(panels.sizes));
  launches.push_back(pack(matrices, panels));
  return panels;
}

}  // namespace anynpu::ops
