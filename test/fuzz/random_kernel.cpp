#include "fuzz/random_kernel.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <ranges>
#include <sstream>
#include <utility>

#include "tile/builder.h"
#include "tile/lane.h"

namespace anynpu::tile {
namespace {

constexpr DType kDTypesList[] = {DType::kBool, DType::kU8,  DType::kI8,   DType::kI16, DType::kI32,
                                 DType::kI64,  DType::kF16, DType::kBF16, DType::kF32, DType::kF64};

constexpr DType kIntegersList[] = {DType::kU8, DType::kI8, DType::kI16, DType::kI32, DType::kI64};

class Generator {
 public:
  explicit Generator(uint64_t seed) : random_(seed), builder_("random") {}

  Kernel program() {
    choose_shape();
    if (chance(15)) values_.push_back(builder_.scalar("s", one_of(kDTypesList)));
    const int loads = between(1, 4);
    for (int i = 0; i < loads; ++i) values_.push_back(load());
    const int operations = between(1, 14);
    for (int i = 0; i < operations; ++i) operate(true);
    const int stores = between(1, 3);
    for (int i = 0; i < stores; ++i) store(pick());
    for (const Expr& value : faulty_) store(value);
    return builder_.finish();
  }
  Workload run() {
    Kernel made = program();
    return make_workload(std::move(made), {row_count_, col_count_}, Layout::kRandom, random_);
  }

 private:
  int between(int least, int most) { return std::uniform_int_distribution<int>(least, most)(random_); }
  bool chance(int percent) { return between(1, 100) <= percent; }
  template <class List>
  std::ranges::range_value_t<const List&> one_of(const List& list) {
    return *(std::begin(list) + between(0, static_cast<int>(std::size(list)) - 1));
  }
  const Expr& pick() {
    return values_[static_cast<size_t>(between(0, static_cast<int>(values_.size()) - 1))];
  }

  // The rows that a block works on: one, up to four, or all of them.
  void choose_shape() {
    const int rows[] = {1, 2, 3, 5, 33, 70}, cols[] = {1, 2, 7, 8, 16, 31, 32, 33, 64, 100, 257};
    r_ = builder_.size("r");
    c_ = builder_.size("c");
    row_count_ = one_of(rows);
    col_count_ = chance(4) ? one_of(std::array{4096, 4097, 9000}) : chance(3) ? 0 : one_of(cols);
    switch (between(0, 2)) {
      case 0:
        rows_ = 1;
        first_row_ = Index::block();
        builder_.grid(*r_);
        break;
      case 1:
        rows_ = min(4, *r_ - 4 * Index::block());
        first_row_ = 4 * Index::block();
        builder_.grid(ceil_div(*r_, 4));
        break;
      default:
        rows_ = *r_;
        if (chance(5)) row_count_ = 4099;
        if (row_count_ > 1000) col_count_ = std::min<int64_t>(col_count_, 40);
        first_row_ = 0;
    }
  }

  /// A buffer of ?r or 1 rows and ?c or 1 columns. `repeats`: may be one column, over and over.
  int buffer(DType dtype, bool one_row, bool one_col, bool repeats) {
    const Index rows = one_row ? Index(1) : *r_, cols = one_col ? Index(1) : *c_;
    std::optional<int64_t> stride = 1;
    if (chance(50)) stride = std::nullopt;
    if (chance(15)) stride = 2;
    if (repeats && chance(15)) stride = 0;
    return builder_.buffer("b" + std::to_string(++buffers_), dtype, {rows, cols}, {std::nullopt, stride});
  }

  Expr load() {
    beyond_ = false;
    const Expr loaded = any_load();
    if (beyond_) faulty_.push_back(loaded);
    return loaded;
  }

  Expr any_load() {
    const DType dtype = one_of(kDTypesList);
    const bool one_row = chance(15), one_col = chance(15);
    const int from = buffer(dtype, one_row, one_col, true);
    const Index rows = one_row ? Index(1) : rows_, cols = one_col ? Index(1) : *c_;
    std::vector<Place> places = {one_row ? Index(0) : first_row_, Index(0)};
    if (!one_col && chance(10)) places[1] = positions(Axis::kCols, cols, *c_);
    if (!one_row && chance(10))
      places[0] = chance(50) ? positions(Axis::kRows, rows, *r_) : row_of_data(rows);
    if (!chance(15)) return builder_.load(from, places, rows, cols);
    const Expr mask = bool_of(rows, cols);
    std::optional<Expr> otherwise;
    if (chance(60))
      otherwise = chance(50) ? builder_.constant(dtype, 1.0) : as(builder_.iota(Axis::kCols, cols), dtype);
    return builder_.load_where(mask, from, places, rows, cols, otherwise);
  }

  /// A tile of positions below `limit`, in another order, and now and then beyond it.
  Place positions(Axis axis, const Index& count, const Index& limit) {
    const Expr numbers = builder_.iota(axis, count) * 3.0 + 1.0;
    const bool beyond = chance(1);
    beyond_ |= beyond;
    const Expr moved = beyond ? numbers : builder_.op(Opcode::kRem, {numbers, builder_.index(max(1, limit))});
    return (chance(50) ? moved : builder_.cast(moved, DType::kI32)).value();
  }

  /// The row at a position that is computed; of several rows, the first of all.
  Place row_of_data(const Index& rows) {
    const Expr number = builder_.index(rows.is(1) ? first_row_ * 5 + 2 : Index(0));
    const Expr row = builder_.op(Opcode::kRem, {number, builder_.index(max(1, *r_))});
    return rows.is(1) || rows == *r_ ? Index::scalar(static_cast<int>(row.value())) : first_row_;
  }

  /// A mask for a tile of that size.
  Expr bool_of(const Index& rows, const Index& cols) {
    if (!values_.empty() && chance(40))
      if (const Expr data = pick(); (data.type().rows.is(1) || data.type().rows == rows) &&
                                    (data.type().cols.is(1) || data.type().cols == cols))
        return as(data, DType::kBool);
    Expr numbers = builder_.iota(Axis::kCols, cols);
    if (chance(50)) numbers = numbers + builder_.iota(Axis::kRows, rows);
    return builder_.op(Opcode::kRem, {numbers, numbers.like(3)}) == 0.0;
  }

  /// An operand of a type of elements that an operation takes.
  Expr fitting(Opcode opcode, const Expr& value) {
    const DTypes accepted = info(opcode).dtypes;
    DType dtype = value.dtype();
    while (!accepted.contains(dtype)) dtype = one_of(kDTypesList);
    return as(value, dtype);
  }
  Expr as(const Expr& value, DType dtype) {
    if (value.dtype() == dtype) return value;
    const bool saturates = kIntegers.contains(dtype) && !kBits.contains(value.dtype()) && chance(30);
    return builder_.cast(value, dtype, saturates);
  }

  static bool join(const Type& a, const Type& b) {
    return (a.rows == b.rows || a.rows.is(1) || b.rows.is(1)) &&
           (a.cols == b.cols || a.cols.is(1) || b.cols.is(1));
  }

  void operate(bool loops) {
    switch (between(0, 11)) {
      case 0:
      case 1:
        return unary();
      case 2:
      case 3:
      case 4:
        return binary();
      case 5:
        return select_or_fma();
      case 6:
        return reduction();
      case 7:
        values_.push_back(as(pick(), one_of(kDTypesList)));
        return;
      case 8:
        return scan();
      case 9:
        return special();
      case 10:
        if (loops && chance(40)) return loop();
        return binary();
      default:
        if (loops && chance(20)) return matmul();
        return reduction();
    }
  }

  void unary() {
    const auto opcode =
        static_cast<Opcode>(between(static_cast<int>(Opcode::kNeg), static_cast<int>(Opcode::kErfc)));
    values_.push_back(builder_.op(opcode, {fitting(opcode, pick())}));
  }

  void binary() {
    const auto opcode =
        static_cast<Opcode>(between(static_cast<int>(Opcode::kAdd), static_cast<int>(Opcode::kGe)));
    const Expr a = fitting(opcode, pick());
    const Expr& other = pick();
    if (!join(a.type(), other.type())) return;
    values_.push_back(builder_.op(opcode, {a, as(other, a.dtype())}));
  }

  void select_or_fma() {
    const Expr a = pick(), b = pick(), c = pick();
    if (!join(a.type(), b.type()) || !join(b.type(), c.type()) || !join(a.type(), c.type())) return;
    if (chance(50)) {
      values_.push_back(builder_.op(Opcode::kSelect, {as(a, DType::kBool), b, as(c, b.dtype())}));
    } else {
      const DType dtype = chance(70) ? DType::kF32 : DType::kF64;
      values_.push_back(builder_.op(Opcode::kFma, {as(a, dtype), as(b, dtype), as(c, dtype)}));
    }
  }

  void reduction() {
    const auto opcode = static_cast<Opcode>(
        between(static_cast<int>(Opcode::kRowSum), static_cast<int>(Opcode::kColMoments)));
    for (const Expr& result : builder_.ops(opcode, {fitting(opcode, pick())})) values_.push_back(result);
  }

  void scan() {
    const auto opcode = static_cast<Opcode>(
        between(static_cast<int>(Opcode::kRowScanSum), static_cast<int>(Opcode::kRowScanMin)));
    values_.push_back(builder_.op(opcode, {fitting(opcode, pick())}));
  }

  void special() {
    const Expr value = pick();
    switch (between(0, 5)) {
      case 5: {  // twice, as there are few tiles that fit a turned one
        const Expr turned = builder_.op(Opcode::kTranspose, {value});
        values_.push_back(builder_.op(Opcode::kTranspose, {chance(50) ? turned : as(turned, DType::kF32)}));
        return;
      }
      case 0:
        values_.push_back(builder_.iota(chance(50) ? Axis::kRows : Axis::kCols, chance(50) ? rows_ : *c_,
                                        one_of(kIntegersList)));
        return;
      case 1:
        values_.push_back(builder_.index(first_row_ * 3 + *c_, one_of(kIntegersList)));
        return;
      case 2:
        if ((value.type().rows.is(1) || value.type().rows == rows_) &&
            (value.type().cols.is(1) || value.type().cols == *c_))
          values_.push_back(builder_.broadcast(value, rows_, *c_));
        return;
      case 3:
        return bitcast(value);
      default:
        for (const Expr& words :
             builder_.ops(Opcode::kPhilox, {builder_.constant(DType::kI64, int64_t{42}),
                                            builder_.index(first_row_), as(value, DType::kI64)}))
          values_.push_back(words);
    }
  }

  /// To another type of the same size. Not of NaN, whose bits nothing says.
  void bitcast(Expr value) {
    const DType to = one_of(kDTypesList);
    if (value.dtype() == DType::kBool || to == DType::kBool) return;
    if (size_of(to) != size_of(value.dtype())) value = as(value, same_size(to));
    if (!kBits.contains(value.dtype())) {
      const Expr number = kFloats.contains(value.dtype()) ? value : as(value, DType::kF32);
      value = select(number == number, value, value.like(0));
    }
    values_.push_back(builder_.bitcast(value, to));
  }
  DType same_size(DType dtype) {
    DType other = dtype;
    do other = one_of(kDTypesList);
    while (other == DType::kBool || size_of(other) != size_of(dtype));
    return other;
  }

  void matmul() {
    const DType dtype = one_of(std::array{DType::kF32, DType::kF64, DType::kI32});
    const Expr c = as(pick(), dtype);
    if (!(c.type().rows == rows_) || !(c.type().cols == *c_)) return;
    const Expr a = builder_.op(Opcode::kMul, {as(builder_.iota(Axis::kRows, rows_), dtype),
                                              as(builder_.iota(Axis::kCols, 5), dtype)});
    const Expr b = builder_.op(
        Opcode::kSub, {as(builder_.iota(Axis::kCols, *c_), dtype), as(builder_.iota(Axis::kRows, 5), dtype)});
    values_.push_back(builder_.op(Opcode::kMatmul, {a, b, c}));
  }

  void loop() {
    std::vector<Expr> start = {pick()};
    if (chance(50)) start.push_back(pick());
    const std::vector<Expr> outside = values_;
    const auto results =
        builder_.loop(chance(80) ? 0 : 2, chance(70) ? Index(between(0, 4)) : *c_ % 5, between(1, 2), start,
                      [&](const Index& i, const std::vector<Expr>& carried) {
                        values_.insert(values_.end(), carried.begin(), carried.end());
                        values_.push_back(builder_.index(i, one_of(kIntegersList)));
                        const int operations = between(0, 4);
                        for (int k = 0; k < operations; ++k) operate(false);
                        std::vector<Expr> yielded = carried;
                        if (carried.size() == 2 && chance(30) && carried[0].type() == carried[1].type())
                          std::swap(yielded[0], yielded[1]);
                        for (Expr& value : yielded)
                          for (int tries = 0; tries < 6; ++tries)
                            if (const Expr& other = pick(); other.type() == value.type()) {
                              value = other;
                              break;
                            }
                        return yielded;
                      });
    values_ = outside;
    values_.insert(values_.end(), results.begin(), results.end());
  }

  void store(const Expr& value) {
    const Type type = value.type();
    const bool has_rows = type.rows == rows_, has_cols = type.cols == *c_ || (type.cols.is(1));
    if (!has_rows || !has_cols) {
      if (!(type.rows.is(1) && rows_.is(1))) return store_broadcast(value);
    }
    write(value);
  }
  void store_broadcast(const Expr& value) {
    const Type type = value.type();
    if ((type.rows.is(1) || type.rows == rows_) && (type.cols.is(1) || type.cols == *c_))
      write(builder_.broadcast(value, rows_, *c_));
  }
  void write(Expr value) {
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

  std::mt19937_64 random_;
  Builder builder_;
  std::optional<Index> r_, c_;
  Index rows_ = 1, first_row_ = 0;
  int64_t row_count_ = 1, col_count_ = 1;
  std::vector<Expr> values_;
  bool beyond_ = false;       // a position is beyond its limit
  std::vector<Expr> faulty_;  // loaded at such: stored, because code need not load what nothing uses
  int buffers_ = 0;
};

}  // namespace

Kernel random_program(uint64_t seed) { return Generator(seed).program(); }
Workload random_kernel(uint64_t seed) { return Generator(seed).run(); }

}  // namespace anynpu::tile
