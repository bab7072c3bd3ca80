#include <array>
#include <utility>

#include "fuzz/generator.h"
#include "tile/verify.h"

namespace anynpu::tile {

/// `repeats`: may be one column, over and over.
int Generator::memory(DType dtype, std::vector<Index> sizes, bool repeats) {
  std::optional<int64_t> stride = 1;
  if (chance(50)) stride = std::nullopt;
  if (chance(15)) stride = 2;
  if (repeats && chance(15)) stride = 0;
  return builder_.buffer("b" + std::to_string(++buffers_), dtype, std::move(sizes), {std::nullopt, stride});
}

/// Of ?r or 1 rows and ?c or 1 columns.
int Generator::buffer(DType dtype, bool one_row, bool one_col, bool repeats) {
  return memory(dtype, {one_row ? Index(1) : *r_, one_col ? Index(1) : *c_}, repeats);
}

/// Local once the program is made.
int Generator::local(DType dtype, std::vector<Index> sizes) {
  const Buffer made = local_buffer("l" + std::to_string(++buffers_), dtype, std::move(sizes));
  const int number = builder_.buffer(made.name, dtype, made.sizes, made.strides);
  locals_.insert(number);
  return number;
}

Expr Generator::load() {
  beyond_ = false;
  const Expr loaded = any_load();
  if (beyond_) faulty_.push_back(loaded);
  return loaded;
}

Expr Generator::any_load() {
  const DType dtype = any_dtype();
  const bool one_row = chance(15), one_col = chance(15);
  const int from = buffer(dtype, one_row, one_col, true);
  const Index rows = one_row ? Index(1) : rows_, cols = one_col ? Index(1) : *c_;
  std::vector<Place> places = {one_row ? Index(0) : first_row_, Index(0)};
  if (!one_col && chance(10)) places[1] = positions(Axis::kCols, cols, *c_);
  if (!one_row && chance(10)) places[0] = chance(50) ? positions(Axis::kRows, rows, *r_) : row_of_data(rows);
  if (!chance(15)) return builder_.load(from, places, rows, cols);
  const Expr mask = bool_of(rows, cols);
  std::optional<Expr> otherwise;
  if (chance(60))
    otherwise = chance(50) ? builder_.constant(dtype, 1.0) : as(builder_.iota(Axis::kCols, cols), dtype);
  return builder_.load_where(mask, from, places, rows, cols, otherwise);
}

/// A tile of positions below `limit`, in another order, and now and then beyond it.
Place Generator::positions(Axis axis, const Index& count, const Index& limit) {
  if (!chance(1)) return positions_below(axis, count, limit);
  beyond_ = true;
  const Expr numbers = builder_.iota(axis, count) * 3.0 + 1.0;
  return (chance(50) ? numbers : builder_.cast(numbers, DType::kI32)).value();
}

Place Generator::positions_below(Axis axis, const Index& count, const Index& limit) {
  const Expr numbers = builder_.iota(axis, count) * 3.0 + 1.0;
  const Expr moved = builder_.op(Opcode::kRem, {numbers, builder_.index(max(1, limit))});
  return (chance(50) ? moved : builder_.cast(moved, DType::kI32)).value();
}

/// The row at a position that is computed; of several rows, the first of all.
Place Generator::row_of_data(const Index& rows) {
  const Expr number = builder_.index(rows.is(1) ? first_row_ * 5 + 2 : Index(0));
  const Expr row = builder_.op(Opcode::kRem, {number, builder_.index(max(1, *r_))});
  return rows.is(1) || rows == *r_ ? Index::scalar(static_cast<int>(row.value())) : first_row_;
}

/// A mask for a tile of that size.
Expr Generator::bool_of(const Index& rows, const Index& cols) {
  if (!values_.empty() && chance(40))
    if (const Expr data = pick(); (data.type().rows.is(1) || data.type().rows == rows) &&
                                  (data.type().cols.is(1) || data.type().cols == cols))
      return as(data, DType::kBool);
  Expr numbers = builder_.iota(Axis::kCols, cols);
  if (chance(50)) numbers = numbers + builder_.iota(Axis::kRows, rows);
  return builder_.op(Opcode::kRem, {numbers, numbers.like(3)}) == 0.0;
}
void Generator::store(const Expr& value) {
  const Type type = value.type();
  const bool has_rows = type.rows == rows_, has_cols = type.cols == *c_ || (type.cols.is(1));
  if (!has_rows || !has_cols) {
    if (!(type.rows.is(1) && rows_.is(1))) return store_broadcast(value);
  }
  write(value);
}
void Generator::store_broadcast(const Expr& value) {
  const Type type = value.type();
  if ((type.rows.is(1) || type.rows == rows_) && (type.cols.is(1) || type.cols == *c_))
    write(builder_.broadcast(value, rows_, *c_));
}
void Generator::write(const Expr& value) {
  const bool one_col = value.type().cols.is(1);
  const bool adds = kNumbers.contains(value.dtype()) && chance(15);
  const int to = buffer(value.dtype(), false, one_col, false);
  std::vector<Place> places = {first_row_, Index(0)};
  if (!one_col && chance(10)) places[1] = positions(Axis::kCols, value.type().cols, *c_);
  if (rows_ == *r_ && chance(10)) places[0] = positions(Axis::kRows, value.type().rows, *r_);
  std::optional<Expr> mask;
  if (chance(15)) mask = bool_of(value.type().rows, value.type().cols);
  if (adds)
    builder_.accumulate(to, places, value, mask);
  else
    builder_.store(to, places, value, mask);
}

Generator::Span Generator::all(const Index& extent) const {
  return {0, extent, extent == rows_ ? most_rows_ : extent};
}

/// A value to a local buffer, whole or what memory has in its place part by part; there some of it is
/// changed, and it comes back.
void Generator::through_local() {
  const Expr value = pick();
  const DType dtype = value.dtype();
  const Span rows = all(value.type().rows), cols = all(value.type().cols);
  const int to = local(dtype, {rows.most, cols.most});
  if (chance(50)) {
    builder_.store(to, {0, 0}, value);
  } else {
    const Matrix from = matrix_in_memory(dtype, rows, cols);
    loop_over(rows, between(1, 5),
              [&](const Span& some) { builder_.store(to, {some.first, 0}, part(from, dtype, some, cols)); });
  }
  if (chance(60)) change_local(to, rows, cols);
  values_.push_back(from_local(to, rows, cols));
  if (chance(50)) overwrite(to, rows, cols);
}

/// With something else: what was read before stays as it was.
void Generator::overwrite(int buffer, const Span& rows, const Span& cols) {
  const DType dtype = builder_.kernel().buffer(buffer).dtype;
  const Expr other = pick();
  const bool fits = (other.type().rows.is(1) || other.type().rows == rows.count) &&
                    (other.type().cols.is(1) || other.type().cols == cols.count);
  const Expr value = fits ? as(other, dtype) : builder_.constant(dtype, 1.0);
  builder_.store(buffer, {0, 0}, builder_.broadcast(value, rows.count, cols.count));
}

void Generator::change_local(int buffer, const Span& rows, const Span& cols) {
  const DType dtype = builder_.kernel().buffer(buffer).dtype;
  const auto one = [&] { return builder_.broadcast(builder_.constant(dtype, 1.0), rows.count, cols.count); };
  switch (between(0, 3)) {
    case 0:
      return loop_over(rows, between(1, 5), [&](const Span& some) {
        const Expr before = builder_.load(buffer, {some.first, 0}, some.count, cols.count);
        const Opcode opcode = any_unary();
        builder_.store(buffer, {some.first, 0}, as(builder_.op(opcode, {fitting(opcode, before)}), dtype));
      });
    case 1:
      return builder_.store(buffer, {0, 0}, one(), bool_of(rows.count, cols.count));
    case 2:
      return builder_.store(buffer, {0, positions_below(Axis::kCols, cols.count, cols.count)}, one());
    default:
      if (kNumbers.contains(dtype)) builder_.accumulate(buffer, {0, 0}, one());
  }
}

Expr Generator::from_local(int buffer, const Span& rows, const Span& cols) {
  const auto whole = [&] { return builder_.load(buffer, {0, 0}, rows.count, cols.count); };
  switch (between(0, 4)) {
    case 0:
      return builder_.load_where(bool_of(rows.count, cols.count), buffer, {0, 0}, rows.count, cols.count);
    case 1:
      return builder_.load(buffer, {0, positions_below(Axis::kCols, cols.count, cols.count)}, rows.count,
                           cols.count);
    case 2: {
      const Matrix to = matrix_to_write(builder_.kernel().buffer(buffer).dtype, rows, cols);
      loop_over(rows, between(1, 5), [&](const Span& some) {
        builder_.store(to.buffer, {to.first_row + some.first, 0},
                       builder_.load(buffer, {some.first, 0}, some.count, cols.count));
      });
      return whole();
    }
    case 3:
      return through_turned(buffer, rows, cols);
    default:
      return whole();
  }
}

/// Turned in another local buffer, and turned back; beside it something is added to a third one.
Expr Generator::through_turned(int buffer, const Span& rows, const Span& cols) {
  const DType dtype = builder_.kernel().buffer(buffer).dtype;
  const auto all_of = [&](int number) { return builder_.load(number, {0, 0}, cols.count, rows.count); };
  const auto turn = [&](const Expr& value) { return builder_.op(Opcode::kTranspose, {value}); };
  const auto filled = [&] {
    return builder_.broadcast(builder_.constant(dtype, 1.0), cols.count, rows.count);
  };
  const bool adds = kNumbers.contains(dtype) && chance(50);
  const int turned = local(dtype, {cols.most, rows.most});
  const int sums = adds ? local(dtype, {cols.most, rows.most}) : -1;
  if (adds) builder_.store(sums, {0, 0}, filled());
  builder_.store(turned, {0, 0}, turn(builder_.load(buffer, {0, 0}, rows.count, cols.count)));
  if (adds) {
    builder_.accumulate(sums, {0, 0}, filled());
    values_.push_back(turn(all_of(sums)));
  }
  return turn(all_of(turned));
}

/// The program with buffers of the block in place of those that are to be local.
Kernel Generator::with_locals(Kernel kernel) const {
  std::vector<int> numbers;
  std::vector<Buffer> tensors;
  const int count = static_cast<int>(kernel.buffers.size() - locals_.size());
  for (size_t i = 0; i < kernel.buffers.size(); ++i) {
    const bool is_local = locals_.contains(static_cast<int>(i));
    auto& list = is_local ? kernel.locals : tensors;
    numbers.push_back(static_cast<int>(list.size()) + (is_local ? count : 0));
    list.push_back(std::move(kernel.buffers[i]));
  }
  kernel.buffers = std::move(tensors);
  const std::function<void(Body&)> renumber = [&](Body& body) {
    for (Instruction& instruction : body.instructions) {
      if (instruction.buffer >= 0) instruction.buffer = numbers[static_cast<size_t>(instruction.buffer)];
      for (Body& inner : instruction.body) renumber(inner);
    }
  };
  renumber(kernel.body);
  verify(kernel);
  return kernel;
}

}  // namespace anynpu::tile
