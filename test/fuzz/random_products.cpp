#include <array>
#include <utility>

#include "fuzz/generator.h"

namespace anynpu::tile {
namespace {

struct ProductTypes {
  Opcode opcode;
  DType factors, sums;
};
constexpr ProductTypes kProductTypes[] = {{Opcode::kMatmul, DType::kF32, DType::kF32},
                                          {Opcode::kMatmul, DType::kF64, DType::kF64},
                                          {Opcode::kMatmul, DType::kI32, DType::kI32},
                                          {Opcode::kMatmulPairs, DType::kI32, DType::kF32},
                                          {Opcode::kMatmulPairs, DType::kI32, DType::kI32}};

}  // namespace

/// A product of matrices of the rows of a block: in one piece, a value from then on, or in parts, which are
/// stored or added up.
void Generator::product() {
  const ProductTypes types = one_of(kProductTypes);
  const Span rows = all(rows_), cols = all(chance(60) ? *c_ : Index(one_of(std::array{1, 8, 17, 24, 40}))),
             depth = all(chance(50) ? *k_ : Index(one_of(std::array{1, 4, 5, 9})));
  const Product product = {types.opcode,
                           types.factors,
                           types.sums,
                           matrix(types.factors, rows, depth),
                           matrix(types.factors, depth, cols),
                           matrix(types.sums, rows, cols),
                           rows,
                           cols,
                           depth};
  if (chance(50)) return multiply_parts(product);
  const Expr value = multiplied(product, rows, cols);
  const bool goes_on = cols.count == *c_;
  if (goes_on) values_.push_back(value);
  if (!goes_on || chance(60)) give(product, value, rows, cols);
}

Generator::Matrix Generator::matrix(DType dtype, const Span& rows, const Span& cols) {
  if (chance(10)) return {};
  const Matrix from = matrix_in_memory(any_dtype(), rows, cols);
  if (chance(50)) return from;
  const DType stored = chance(70) ? dtype : any_dtype();
  const bool turned = chance(30);
  const Matrix to = {local(stored, {turned ? cols.most : rows.most, turned ? rows.most : cols.most}), turned};
  const auto fill = [&](const Span& some) {
    const Expr tile = part(from, stored, some, cols);
    if (turned)
      builder_.store(to.buffer, {0, some.first}, builder_.op(Opcode::kTranspose, {tile}));
    else
      builder_.store(to.buffer, {some.first, 0}, tile);
  };
  if (chance(50))
    fill(rows);
  else
    loop_over(rows, between(1, 7), fill);
  return to;
}

Generator::Matrix Generator::matrix_in_memory(DType dtype, const Span& rows, const Span& cols) {
  const bool of_block = rows.count == rows_, turned = chance(30);
  const Index count = of_block ? *r_ : rows.most;
  const int from = memory(dtype, {turned ? cols.most : count, turned ? count : cols.most}, true);
  return {from, turned, of_block ? first_row_ : Index(0)};
}

/// Each block has rows of its own.
Generator::Matrix Generator::matrix_to_write(DType dtype, const Span& rows, const Span& cols) {
  const bool of_block = rows.count == rows_;
  const Index all = of_block ? *r_ : builder_.kernel().grid * rows.most;
  return {memory(dtype, {all, cols.most}, false), false, of_block ? first_row_ : Index::block() * rows.most};
}

/// Of those types of elements; which conversion comes before or after turning it.
Expr Generator::part(const Matrix& matrix, DType dtype, const Span& rows, const Span& cols) {
  if (matrix.buffer < 0) return computed(dtype, rows, cols);
  const Index row = matrix.first_row + rows.first;
  if (!matrix.turned)
    return as(builder_.load(matrix.buffer, {row, cols.first}, rows.count, cols.count), dtype);
  const Expr there = builder_.load(matrix.buffer, {cols.first, row}, cols.count, rows.count);
  if (chance(50)) return builder_.op(Opcode::kTranspose, {as(there, dtype)});
  return as(builder_.op(Opcode::kTranspose, {there}), dtype);
}

Expr Generator::computed(DType dtype, const Span& rows, const Span& cols) {
  const Expr row = builder_.iota(Axis::kRows, rows.count) + builder_.index(rows.first);
  const Expr col = builder_.iota(Axis::kCols, cols.count) - builder_.index(cols.first);
  return as(row * 3.0 - col, dtype);
}

/// Read in place, or copied: to a local buffer that is then written again, or computed.
Expr Generator::operand(const Product& product, const Matrix& matrix, const Span& rows, const Span& cols) {
  const DType dtype = product.factors;
  if (product.opcode == Opcode::kMatmulPairs && chance(60))  // pairs of numbers of any size
    return builder_.bitcast(part(matrix, DType::kF32, rows, cols), dtype);
  const Expr tile = part(matrix, dtype, rows, cols);
  if (chance(10)) {
    const Opcode opcode = any_unary();
    return as(builder_.op(opcode, {fitting(opcode, tile)}), dtype);
  }
  if (!chance(25)) return tile;
  const int offset = between(0, 3);
  const int copy = local(dtype, {rows.most + offset, cols.most + between(0, 3)});
  builder_.store(copy, {offset, 0}, tile);
  const Expr copied = builder_.load(copy, {offset, 0}, rows.count, cols.count);
  if (chance(25))
    builder_.store(copy, {offset, 0},
                   builder_.broadcast(builder_.constant(dtype, 3.0), rows.count, cols.count));
  return copied;
}

/// What products are added to.
Expr Generator::addend(const Product& product, const Span& rows, const Span& cols) {
  switch (between(0, 3)) {
    case 0:
      return part(product.addend, product.sums_type, rows, cols);
    case 1: {
      const int row = memory(product.sums_type, {1, product.cols.most}, true);
      return builder_.broadcast(builder_.load(row, {0, cols.first}, 1, cols.count), rows.count, cols.count);
    }
    default:
      return builder_.broadcast(builder_.constant(product.sums_type, 0.0), rows.count, cols.count);
  }
}

/// Of some rows and columns: over all of depth at once, or in a loop over parts of it.
Expr Generator::multiplied(const Product& product, const Span& rows, const Span& cols) {
  const auto over = [&](const Span& depth, const Expr& sums) {
    return builder_.op(product.opcode, {operand(product, product.left, rows, depth),
                                        operand(product, product.right, depth, cols), sums});
  };
  const Expr start = addend(product, rows, cols);
  const Span& depth = product.depth;
  if (chance(65)) return over(depth, start);
  const int64_t step = one_of(std::array{1, 2, 8});
  return builder_.loop(0, depth.most, step, {start}, [&](const Index& k, const std::vector<Expr>& sums) {
    return std::vector{over({depth.first + k, min(step, depth.count - k), step}, sums[0])};
  })[0];
}

/// Rows and columns by so many as registers hold, or more, or fewer.
void Generator::multiply_parts(Product product) {
  const int rows = one_of(std::array{1, 2, 6, 7}), cols = one_of(std::array{8, 16, 24, 33});
  const auto block = [&](const Span& some_rows, const Span& some_cols) {
    give(product, multiplied(product, some_rows, some_cols), some_rows, some_cols);
  };
  const auto all_blocks = [&] {
    switch (between(0, 3)) {
      case 0:
        return loop_over(product.rows, rows, [&](const Span& some) { block(some, product.cols); });
      case 1:
        return loop_over(product.cols, cols, [&](const Span& some) { block(product.rows, some); });
      case 2:
        return loop_over(product.rows, rows, [&](const Span& some_rows) {
          loop_over(product.cols, cols, [&](const Span& some_cols) { block(some_rows, some_cols); });
        });
      default:
        return loop_over(product.cols, cols, [&](const Span& some_cols) {
          loop_over(product.rows, rows, [&](const Span& some_rows) { block(some_rows, some_cols); });
        });
    }
  };
  if (chance(50)) return all_blocks();
  product.sums = local(product.sums_type, {product.rows.most, product.cols.most});
  const Span all_rows = product.rows, all_cols = product.cols;
  builder_.store(product.sums, {0, 0}, addend(product, all_rows, all_cols));
  loop_over(product.depth, one_of(std::array{1, 5, 16}), [&](const Span& some) {
    product.depth = some;
    all_blocks();
  });
  const Expr sums = builder_.load(std::exchange(product.sums, -1), {0, 0}, all_rows.count, all_cols.count);
  give(product, sums, all_rows, all_cols);
}

/// With a chain of elementwise operations, of numbers, rows and matrices in memory.
Expr Generator::finished(const Product& product, Expr value, const Span& rows, const Span& cols) {
  for (int i = between(0, 3); i > 0; --i) {
    if (chance(40)) {
      const Opcode opcode = any_unary();
      value = builder_.op(opcode, {fitting(opcode, value)});
      continue;
    }
    const Opcode opcode = any_binary();
    const Expr left = fitting(opcode, value);
    Expr right = left.like(1);
    if (chance(70)) {
      const Span one = {0, 1, 1};
      const bool one_row = chance(30);
      const Matrix other = matrix_in_memory(any_dtype(), one_row ? one : product.rows, product.cols);
      right = part(other, left.dtype(), one_row ? one : rows, cols);
    }
    value = builder_.op(opcode, {left, right});
  }
  return chance(30) ? as(value, any_dtype()) : value;
}

void Generator::give(const Product& product, const Expr& value, const Span& rows, const Span& cols) {
  if (product.sums >= 0) return builder_.accumulate(product.sums, {rows.first, cols.first}, value);
  const auto write = [&](const Expr& result) {
    const Matrix to = matrix_to_write(result.dtype(), product.rows, product.cols);
    const std::vector<Place> places = {to.first_row + rows.first, cols.first};
    if (kNumbers.contains(result.dtype()) && chance(20))
      builder_.accumulate(to.buffer, places, result);
    else
      builder_.store(to.buffer, places, result);
  };
  write(finished(product, value, rows, cols));
  if (chance(15)) write(value);
}

}  // namespace anynpu::tile
