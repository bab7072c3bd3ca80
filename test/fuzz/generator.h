#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <random>
#include <ranges>
#include <set>
#include <utility>
#include <vector>

#include "tile/builder.h"
#include "workload.h"

namespace anynpu::tile {

/// Makes a program of random operations, and random memory to run it on: the same for the same seed.
class Generator {
 public:
  explicit Generator(uint64_t seed) : random_(seed), builder_("random") {}
  Kernel program();
  Workload workload();

 private:
  /// Some rows or columns: `count` from `first` on, and never more than `most`, of constants and sizes.
  struct Span {
    Index first, count, most;
  };
  /// Where a product of matrices finds one: in memory, in which row 0 is `first_row`, or nowhere: computed.
  struct Matrix {
    int buffer = -1;
    bool turned = false;  ///< rows lie as columns
    Index first_row = 0;
  };
  struct Product {
    Opcode opcode;
    DType factors, sums_type;
    Matrix left, right, addend;
    Span rows, cols, depth;
    int sums = -1;  ///< a local buffer to which parts of depth are added, or what is stored is added
  };

  int between(int least, int most) { return std::uniform_int_distribution<int>(least, most)(random_); }
  bool chance(int percent) { return between(1, 100) <= percent; }
  template <class List>
  std::ranges::range_value_t<const List&> one_of(const List& list) {
    return *(std::begin(list) + between(0, static_cast<int>(std::size(list)) - 1));
  }
  DType any_dtype();
  DType any_integer();
  const Expr& pick() {
    return values_[static_cast<size_t>(between(0, static_cast<int>(values_.size()) - 1))];
  }

  // random_kernel.cpp: the shape, and operations of values.
  void choose_shape();
  void operate(bool loops);
  Expr fitting(Opcode opcode, const Expr& value);
  Expr as(const Expr& value, DType dtype);
  Opcode any_unary();
  Opcode any_binary();
  void unary();
  void binary();
  void select_or_fma();
  void reduction();
  void scan();
  void special();
  void bitcast(Expr value);
  DType same_size(DType dtype);
  void loop();
  void loop_over(const Span& all, int64_t step, const std::function<void(const Span&)>& body);

  // random_memory.cpp: loads, stores, and what goes through a block's own memory.
  int memory(DType dtype, std::vector<Index> sizes, bool repeats);
  int local(DType dtype, std::vector<Index> sizes);
  int buffer(DType dtype, bool one_row, bool one_col, bool repeats);
  Expr load();
  Expr any_load();
  Place positions(Axis axis, const Index& count, const Index& limit);
  Place positions_below(Axis axis, const Index& count, const Index& limit);
  Place row_of_data(const Index& rows);
  Expr bool_of(const Index& rows, const Index& cols);
  void store(const Expr& value);
  void store_broadcast(const Expr& value);
  void write(const Expr& value);
  Span all(const Index& extent) const;
  void through_local();
  void change_local(int buffer, const Span& rows, const Span& cols);
  void overwrite(int buffer, const Span& rows, const Span& cols);
  Expr from_local(int buffer, const Span& rows, const Span& cols);
  Expr through_turned(int buffer, const Span& rows, const Span& cols);
  Kernel with_locals(Kernel kernel) const;

  // random_products.cpp: products of matrices.
  void product();
  Matrix matrix(DType dtype, const Span& rows, const Span& cols);
  Matrix matrix_in_memory(DType dtype, const Span& rows, const Span& cols);
  Matrix matrix_to_write(DType dtype, const Span& rows, const Span& cols);
  Expr part(const Matrix& matrix, DType dtype, const Span& rows, const Span& cols);
  Expr computed(DType dtype, const Span& rows, const Span& cols);
  Expr operand(const Product& product, const Matrix& matrix, const Span& rows, const Span& cols);
  Expr addend(const Product& product, const Span& rows, const Span& cols);
  Expr multiplied(const Product& product, const Span& rows, const Span& cols);
  void multiply_parts(Product product);
  Expr finished(const Product& product, Expr value, const Span& rows, const Span& cols);
  void give(const Product& product, const Expr& value, const Span& rows, const Span& cols);

  std::mt19937_64 random_;
  Builder builder_;
  std::optional<Index> r_, c_, k_;
  /// Of a block: its rows, how many there are at most, and the first.
  Index rows_ = 1, most_rows_ = 1, first_row_ = 0;
  int64_t row_count_ = 1, col_count_ = 1, depth_ = 1;
  std::vector<Expr> values_;
  bool beyond_ = false;       // a position is beyond its limit
  std::vector<Expr> faulty_;  // loaded at such: stored, because code need not load what nothing uses
  int buffers_ = 0;
  std::set<int> locals_;  // buffers that with_locals() makes local
};

}  // namespace anynpu::tile
