#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tile/ir.h"

namespace anynpu::tile {

class Builder;

/// A value of the kernel that a Builder makes; operators append operations to it. Literals on one side take
/// the other side's type of elements.
class Expr {
 public:
  Expr(Builder* builder, Value value) : builder_(builder), value_(value) {}
  Value value() const { return value_; }
  Builder& builder() const { return *builder_; }
  Type type() const;  ///< a copy: more values move the kernel's
  DType dtype() const { return type().dtype; }
  /// A constant of this value's type of elements.
  Expr like(double literal) const;

 private:
  Builder* builder_;
  Value value_;
};

/// Appends instructions to a kernel, checking each at once.
class Builder {
 public:
  explicit Builder(std::string name) { kernel_.name = std::move(name); }
  Builder(const Builder&) = delete;

  // The signature.
  Index size(const std::string& name);
  /// A buffer; without strides the last one is 1 and the others come with the call.
  int buffer(const std::string& name, DType dtype, std::vector<Index> sizes);
  int buffer(const std::string& name, DType dtype, std::vector<Index> sizes,
             std::vector<std::optional<int64_t>> strides);
  /// Memory of a block's own; what buffers there are is known by then.
  int local(const std::string& name, DType dtype, std::vector<Index> sizes);
  Expr scalar(const std::string& name, DType dtype);
  void grid(const Index& blocks) { kernel_.grid = blocks; }

  // Values.
  Expr constant(DType dtype, double literal);
  Expr constant(DType dtype, int64_t literal);
  Expr iota(Axis axis, const Index& count, DType dtype = DType::kI64);
  Expr index(const Index& index, DType dtype = DType::kI64);
  Expr load(int buffer, std::vector<Place> places, const Index& rows, const Index& cols);
  Expr load_where(const Expr& mask, int buffer, std::vector<Place> places, const Index& rows,
                  const Index& cols, std::optional<Expr> otherwise = std::nullopt);
  void store(int buffer, std::vector<Place> places, const Expr& value,
             std::optional<Expr> mask = std::nullopt);
  void accumulate(int buffer, std::vector<Place> places, const Expr& value,
                  std::optional<Expr> mask = std::nullopt);
  Expr cast(const Expr& value, DType dtype, bool saturate = false);
  Expr bitcast(const Expr& value, DType dtype);
  Expr broadcast(const Expr& value, const Index& rows, const Index& cols);
  /// An operation without attributes; the second form gives all results.
  Expr op(Opcode opcode, std::initializer_list<Expr> operands) { return ops(opcode, operands)[0]; }
  std::vector<Expr> ops(Opcode opcode, std::initializer_list<Expr> operands);

  /// `body` gets the counter and what the loop carries, and gives what it carries on.
  std::vector<Expr> loop(
      const Index& first, const Index& last, int64_t step, const std::vector<Expr>& start,
      const std::function<std::vector<Expr>(const Index&, const std::vector<Expr>&)>& body);

  const Kernel& kernel() const { return kernel_; }
  /// The kernel, verified.
  Kernel finish();

 private:
  std::vector<Expr> append(Instruction instruction);

  Kernel kernel_;
  Body* body_ = &kernel_.body;
};

inline Type Expr::type() const { return builder_->kernel().type(value_); }
inline Expr Expr::like(double literal) const { return builder_->constant(dtype(), literal); }

inline Expr operator-(const Expr& a) { return a.builder().op(Opcode::kNeg, {a}); }
#define ANYNPU_TILE_OPERATOR(symbol, opcode)                                          \
  inline Expr operator symbol(const Expr& a, const Expr& b) {                         \
    return a.builder().op(Opcode::opcode, {a, b});                                    \
  }                                                                                   \
  inline Expr operator symbol(const Expr& a, double b) { return a symbol a.like(b); } \
  inline Expr operator symbol(double a, const Expr& b) { return b.like(a) symbol b; }
ANYNPU_TILE_OPERATOR(+, kAdd)
ANYNPU_TILE_OPERATOR(-, kSub)
ANYNPU_TILE_OPERATOR(*, kMul)
ANYNPU_TILE_OPERATOR(/, kDiv)
ANYNPU_TILE_OPERATOR(==, kEq)
ANYNPU_TILE_OPERATOR(!=, kNe)
ANYNPU_TILE_OPERATOR(<, kLt)
ANYNPU_TILE_OPERATOR(<=, kLe)
ANYNPU_TILE_OPERATOR(>, kGt)
ANYNPU_TILE_OPERATOR(>=, kGe)
ANYNPU_TILE_OPERATOR(&, kAnd)
ANYNPU_TILE_OPERATOR(|, kOr)
ANYNPU_TILE_OPERATOR(^, kXor)
#undef ANYNPU_TILE_OPERATOR

#define ANYNPU_TILE_FUNCTION(opcode, name) \
  inline Expr name(const Expr& a) { return a.builder().op(Opcode::opcode, {a}); }
ANYNPU_TILE_FUNCTION(kAbs, abs)
ANYNPU_TILE_FUNCTION(kFloor, floor)
ANYNPU_TILE_FUNCTION(kCeil, ceil)
ANYNPU_TILE_FUNCTION(kSqrt, sqrt)
ANYNPU_TILE_FUNCTION(kRowSum, row_sum)
ANYNPU_TILE_FUNCTION(kRowMax, row_max)
ANYNPU_TILE_FUNCTION(kColSum, col_sum)
ANYNPU_TILE_UNARY_FUNCTIONS(ANYNPU_TILE_FUNCTION)
#undef ANYNPU_TILE_FUNCTION

inline Expr min(const Expr& a, const Expr& b) { return a.builder().op(Opcode::kMin, {a, b}); }
inline Expr max(const Expr& a, const Expr& b) { return a.builder().op(Opcode::kMax, {a, b}); }
inline Expr fma(const Expr& a, const Expr& b, const Expr& c) {
  return a.builder().op(Opcode::kFma, {a, b, c});
}
inline Expr select(const Expr& mask, const Expr& a, const Expr& b) {
  return a.builder().op(Opcode::kSelect, {mask, a, b});
}

}  // namespace anynpu::tile
