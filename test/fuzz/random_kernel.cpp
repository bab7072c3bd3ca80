#include "fuzz/random_kernel.h"

#include <algorithm>
#include <array>
#include <utility>

#include "fuzz/generator.h"

namespace anynpu::tile {
namespace {

constexpr DType kDTypesList[] = {DType::kBool, DType::kU8,  DType::kI8,   DType::kI16, DType::kI32,
                                 DType::kI64,  DType::kF16, DType::kBF16, DType::kF32, DType::kF64};

constexpr DType kIntegersList[] = {DType::kU8, DType::kI8, DType::kI16, DType::kI32, DType::kI64};

bool join(const Type& a, const Type& b) {
  return (a.rows == b.rows || a.rows.is(1) || b.rows.is(1)) &&
         (a.cols == b.cols || a.cols.is(1) || b.cols.is(1));
}

}  // namespace

Kernel Generator::program() {
  choose_shape();
  if (chance(15)) values_.push_back(builder_.scalar("s", any_dtype()));
  const int loads = between(1, 4);
  for (int i = 0; i < loads; ++i) values_.push_back(load());
  const int operations = between(1, 14);
  for (int i = 0; i < operations; ++i) operate(true);
  const int stores = between(1, 3);
  for (int i = 0; i < stores; ++i) store(pick());
  for (const Expr& value : faulty_) store(value);
  return with_locals(builder_.finish());
}

Workload Generator::workload() {
  Kernel made = program();
  return make_workload(std::move(made), {row_count_, col_count_, depth_}, Layout::kRandom, random_);
}

DType Generator::any_dtype() { return one_of(kDTypesList); }
DType Generator::any_integer() { return one_of(kIntegersList); }

// The rows that a block works on: one, up to four, or all of them.
void Generator::choose_shape() {
  const int rows[] = {1, 2, 3, 5, 33, 70}, cols[] = {1, 2, 7, 8, 16, 31, 32, 33, 64, 100, 257};
  r_ = builder_.size("r");
  c_ = builder_.size("c");
  k_ = builder_.size("k");
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
      most_rows_ = 4;
      first_row_ = 4 * Index::block();
      builder_.grid(ceil_div(*r_, 4));
      break;
    default:
      rows_ = most_rows_ = *r_;
      if (chance(5)) row_count_ = 4099;
      if (row_count_ > 1000) col_count_ = std::min<int64_t>(col_count_, 40);
      first_row_ = 0;
  }
  depth_ = one_of(std::array{0, 1, 3, 4, 5, 8, 31, 64});
}

/// An operand of a type of elements that an operation takes.
Expr Generator::fitting(Opcode opcode, const Expr& value) {
  const DTypes accepted = info(opcode).dtypes;
  DType dtype = value.dtype();
  while (!accepted.contains(dtype)) dtype = any_dtype();
  return as(value, dtype);
}

Expr Generator::as(const Expr& value, DType dtype) {
  if (value.dtype() == dtype) return value;
  const bool saturates = kIntegers.contains(dtype) && !kBits.contains(value.dtype()) && chance(30);
  return builder_.cast(value, dtype, saturates);
}

void Generator::operate(bool loops) {
  switch (between(0, 12)) {
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
      values_.push_back(as(pick(), any_dtype()));
      return;
    case 8:
      return scan();
    case 9:
      return special();
    case 10:
      if (loops && chance(40)) return loop();
      return binary();
    case 11:
      // Of more, the interpreter would take minutes.
      if (chance(20) && row_count_ * col_count_ <= 20000) return product();
      return reduction();
    default:
      if (chance(70)) return through_local();
      return binary();
  }
}

Opcode Generator::any_unary() {
  return static_cast<Opcode>(between(static_cast<int>(Opcode::kNeg), static_cast<int>(Opcode::kNdtr)));
}
Opcode Generator::any_binary() {
  return static_cast<Opcode>(between(static_cast<int>(Opcode::kAdd), static_cast<int>(Opcode::kGe)));
}

void Generator::unary() {
  const Opcode opcode = any_unary();
  values_.push_back(builder_.op(opcode, {fitting(opcode, pick())}));
}

void Generator::binary() {
  const Opcode opcode = any_binary();
  const Expr a = fitting(opcode, pick());
  const Expr& other = pick();
  if (!join(a.type(), other.type())) return;
  values_.push_back(builder_.op(opcode, {a, as(other, a.dtype())}));
}

void Generator::select_or_fma() {
  const Expr a = pick(), b = pick(), c = pick();
  if (!join(a.type(), b.type()) || !join(b.type(), c.type()) || !join(a.type(), c.type())) return;
  if (chance(50)) {
    values_.push_back(builder_.op(Opcode::kSelect, {as(a, DType::kBool), b, as(c, b.dtype())}));
  } else {
    const DType dtype = chance(70) ? DType::kF32 : DType::kF64;
    values_.push_back(builder_.op(Opcode::kFma, {as(a, dtype), as(b, dtype), as(c, dtype)}));
  }
}

void Generator::reduction() {
  const auto opcode =
      static_cast<Opcode>(between(static_cast<int>(Opcode::kRowSum), static_cast<int>(Opcode::kColMoments)));
  for (const Expr& result : builder_.ops(opcode, {fitting(opcode, pick())})) values_.push_back(result);
}

void Generator::scan() {
  const auto opcode = static_cast<Opcode>(
      between(static_cast<int>(Opcode::kRowScanSum), static_cast<int>(Opcode::kRowScanMin)));
  values_.push_back(builder_.op(opcode, {fitting(opcode, pick())}));
}

void Generator::special() {
  const Expr value = pick();
  switch (between(0, 5)) {
    case 5: {  // twice, as there are few tiles that fit a turned one
      const Expr turned = builder_.op(Opcode::kTranspose, {value});
      values_.push_back(builder_.op(Opcode::kTranspose, {chance(50) ? turned : as(turned, DType::kF32)}));
      return;
    }
    case 0:
      values_.push_back(
          builder_.iota(chance(50) ? Axis::kRows : Axis::kCols, chance(50) ? rows_ : *c_, any_integer()));
      return;
    case 1:
      values_.push_back(builder_.index(first_row_ * 3 + *c_, any_integer()));
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
void Generator::bitcast(Expr value) {
  const DType to = any_dtype();
  if (value.dtype() == DType::kBool || to == DType::kBool) return;
  if (size_of(to) != size_of(value.dtype())) value = as(value, same_size(to));
  if (!kBits.contains(value.dtype())) {
    const Expr number = kFloats.contains(value.dtype()) ? value : as(value, DType::kF32);
    value = select(number == number, value, value.like(0));
  }
  values_.push_back(builder_.bitcast(value, to));
}

DType Generator::same_size(DType dtype) {
  DType other = dtype;
  do other = any_dtype();
  while (other == DType::kBool || size_of(other) != size_of(dtype));
  return other;
}

/// Part by part, of `step` rows or columns: in a loop of as many turns as there are parts at most.
void Generator::loop_over(const Span& all, int64_t step, const std::function<void(const Span&)>& body) {
  builder_.loop(0, all.most, step, {}, [&](const Index& i, const auto&) -> std::vector<Expr> {
    body({all.first + i, min(step, all.count - i), step});
    return {};
  });
}

void Generator::loop() {
  std::vector<Expr> start = {pick()};
  if (chance(50)) start.push_back(pick());
  const std::vector<Expr> outside = values_;
  const auto results =
      builder_.loop(chance(80) ? 0 : 2, chance(70) ? Index(between(0, 4)) : *c_ % 5, between(1, 2), start,
                    [&](const Index& i, const std::vector<Expr>& carried) {
                      values_.insert(values_.end(), carried.begin(), carried.end());
                      values_.push_back(builder_.index(i, any_integer()));
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

Kernel random_program(uint64_t seed) { return Generator(seed).program(); }
Workload random_kernel(uint64_t seed) { return Generator(seed).workload(); }

}  // namespace anynpu::tile
