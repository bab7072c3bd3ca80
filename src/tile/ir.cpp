#include "tile/ir.h"

#include <algorithm>
#include <limits>
#include <type_traits>

#include "base/error.h"
#include "tile/lane.h"

namespace anynpu::tile {
namespace {

using Shape = OpcodeInfo::Shape;

constexpr DTypes kLogical = kBits;
constexpr DTypes kOrdered = kComputed;  // false < true

constexpr OpcodeInfo unary(Opcode opcode, std::string_view name, DTypes dtypes) {
  return {opcode, name, Shape::kElementwise, 1, dtypes};
}
constexpr OpcodeInfo binary(Opcode opcode, std::string_view name, DTypes dtypes) {
  return {opcode, name, Shape::kElementwise, 2, dtypes};
}
constexpr OpcodeInfo compare(Opcode opcode, std::string_view name) {
  return {opcode, name, Shape::kCompare, 2, kOrdered, DType::kBool};
}
constexpr OpcodeInfo special(Opcode opcode, std::string_view name, int operands, DTypes dtypes = kAll) {
  return {opcode, name, Shape::kSpecial, operands, dtypes};
}
constexpr OpcodeInfo rows(Opcode opcode, std::string_view name, DTypes dtypes,
                          std::optional<DType> result = std::nullopt) {
  return {opcode, name, Shape::kReduceCols, 1, dtypes, result};
}
constexpr OpcodeInfo cols(Opcode opcode, std::string_view name, DTypes dtypes,
                          std::optional<DType> result = std::nullopt) {
  return {opcode, name, Shape::kReduceRows, 1, dtypes, result};
}
constexpr OpcodeInfo scan(Opcode opcode, std::string_view name) {
  return {opcode, name, Shape::kScanCols, 1, kNumbers};
}

constexpr OpcodeInfo kOpcodeTable[] = {
    special(Opcode::kIota, "iota", 0, kIntegers),
    special(Opcode::kIndex, "index", 0, kIntegers),
    special(Opcode::kLoad, "load", 0),
    special(Opcode::kStore, "store", 1),
    special(Opcode::kAccumulate, "accumulate", 1, kNumbers),

    unary(Opcode::kNeg, "neg", kNumbers),
    unary(Opcode::kAbs, "abs", kNumbers),
    unary(Opcode::kNot, "not", kLogical),
    unary(Opcode::kFloor, "floor", kFloats),
    unary(Opcode::kCeil, "ceil", kFloats),
    unary(Opcode::kTrunc, "trunc", kFloats),
    unary(Opcode::kRound, "round", kFloats),
    unary(Opcode::kSqrt, "sqrt", kFloats),
    unary(Opcode::kExp, "exp", kFloats),
    unary(Opcode::kExp2, "exp2", kFloats),
    unary(Opcode::kExpm1, "expm1", kFloats),
    unary(Opcode::kLog, "log", kFloats),
    unary(Opcode::kLog2, "log2", kFloats),
    unary(Opcode::kLog10, "log10", kFloats),
    unary(Opcode::kLog1p, "log1p", kFloats),
    unary(Opcode::kSin, "sin", kFloats),
    unary(Opcode::kCos, "cos", kFloats),
    unary(Opcode::kTan, "tan", kFloats),
    unary(Opcode::kAsin, "asin", kFloats),
    unary(Opcode::kAcos, "acos", kFloats),
    unary(Opcode::kAtan, "atan", kFloats),
    unary(Opcode::kSinh, "sinh", kFloats),
    unary(Opcode::kCosh, "cosh", kFloats),
    unary(Opcode::kTanh, "tanh", kFloats),
    unary(Opcode::kAsinh, "asinh", kFloats),
    unary(Opcode::kAcosh, "acosh", kFloats),
    unary(Opcode::kAtanh, "atanh", kFloats),
    unary(Opcode::kErf, "erf", kFloats),
    unary(Opcode::kErfc, "erfc", kFloats),
    unary(Opcode::kNdtr, "ndtr", kFloats),
    special(Opcode::kCast, "cast", 1),
    special(Opcode::kBitcast, "bitcast", 1),

    binary(Opcode::kAdd, "add", kNumbers),
    binary(Opcode::kSub, "sub", kNumbers),
    binary(Opcode::kMul, "mul", kNumbers),
    binary(Opcode::kDiv, "div", kNumbers),
    binary(Opcode::kRem, "rem", kNumbers),
    binary(Opcode::kMin, "min", kOrdered),
    binary(Opcode::kMax, "max", kOrdered),
    binary(Opcode::kPow, "pow", kFloats),
    binary(Opcode::kAtan2, "atan2", kFloats),
    binary(Opcode::kAnd, "and", kLogical),
    binary(Opcode::kOr, "or", kLogical),
    binary(Opcode::kXor, "xor", kLogical),
    binary(Opcode::kShl, "shl", kIntegers),
    binary(Opcode::kShr, "shr", kIntegers),
    binary(Opcode::kShrLogical, "shr_logical", kIntegers),
    binary(Opcode::kMulHigh, "mul_high", DTypes(DType::kI32)),
    compare(Opcode::kEq, "eq"),
    compare(Opcode::kNe, "ne"),
    compare(Opcode::kLt, "lt"),
    compare(Opcode::kLe, "le"),
    compare(Opcode::kGt, "gt"),
    compare(Opcode::kGe, "ge"),
    {Opcode::kFma, "fma", Shape::kElementwise, 3, kFloats},
    special(Opcode::kSelect, "select", 3),

    special(Opcode::kBroadcast, "broadcast", 1),
    rows(Opcode::kRowSum, "row_sum", kNumbers),
    rows(Opcode::kRowProd, "row_prod", kNumbers),
    rows(Opcode::kRowMax, "row_max", kOrdered),
    rows(Opcode::kRowMin, "row_min", kOrdered),
    rows(Opcode::kRowArgmax, "row_argmax", kOrdered, DType::kI64),
    rows(Opcode::kRowArgmin, "row_argmin", kOrdered, DType::kI64),
    rows(Opcode::kRowMoments, "row_moments", kFloats),
    cols(Opcode::kColSum, "col_sum", kNumbers),
    cols(Opcode::kColProd, "col_prod", kNumbers),
    cols(Opcode::kColMax, "col_max", kOrdered),
    cols(Opcode::kColMin, "col_min", kOrdered),
    cols(Opcode::kColArgmax, "col_argmax", kOrdered, DType::kI64),
    cols(Opcode::kColArgmin, "col_argmin", kOrdered, DType::kI64),
    cols(Opcode::kColMoments, "col_moments", kFloats),
    scan(Opcode::kRowScanSum, "row_scan_sum"),
    scan(Opcode::kRowScanProd, "row_scan_prod"),
    scan(Opcode::kRowScanMax, "row_scan_max"),
    scan(Opcode::kRowScanMin, "row_scan_min"),
    special(Opcode::kTranspose, "transpose", 1),
    special(Opcode::kMatmul, "matmul", 3, DTypes(DType::kF32, DType::kF64, DType::kI32)),
    special(Opcode::kMatmulPairs, "matmul_pairs", 3, DTypes(DType::kF32, DType::kI32)),
    special(Opcode::kPhilox, "philox", 3, DTypes(DType::kI64)),
    special(Opcode::kLoop, "loop", -1),
    special(Opcode::kYield, "yield", -1),
};
static_assert(std::size(kOpcodeTable) == kOpcodes);
static_assert([] {
  for (int i = 0; i < kOpcodes; ++i)
    if (static_cast<int>(kOpcodeTable[i].opcode) != i) return false;
  return true;
}());

bool same_bits(const Literal& a, const Literal& b) {
  const auto* x = std::get_if<double>(&a);
  const auto* y = std::get_if<double>(&b);
  if (x == nullptr || y == nullptr) return a == b;
  return std::bit_cast<uint64_t>(*x) == std::bit_cast<uint64_t>(*y);
}

std::string names(DTypes dtypes) {
  std::string text;
  for (int i = 0; i < kDTypes; ++i)
    if (const auto dtype = static_cast<DType>(i); dtypes.contains(dtype))
      text.append(text.empty() ? "" : ", ").append(name_of(dtype));
  return text;
}

/// The rules of one instruction.
class Inference {
 public:
  Inference(const Kernel& kernel, const Instruction& instruction)
      : kernel_(kernel), instruction_(instruction), info_(info(instruction.opcode)) {}

  std::vector<Type> types() const {
    const auto count = static_cast<int>(instruction_.operands.size());
    if (info_.operands >= 0 && count != info_.operands)
      fail("takes ", info_.operands, " operands, not ", count);
    switch (info_.shape) {
      case Shape::kElementwise:
      case Shape::kCompare:
        return {elementwise()};
      case Shape::kReduceCols:
      case Shape::kReduceRows:
        return reduced();
      case Shape::kScanCols:
        return {accepted(0)};
      case Shape::kSpecial:
        break;
    }
    return special();
  }

 private:
  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    raise(ErrorCode::kInvalidArgument, "tile ", info_.name, ": ", parts...);
  }
  std::string text(const Type& type) const { return text_of(kernel_, type); }
  const Type& operand(size_t i) const { return kernel_.type(instruction_.operands[i]); }

  /// An operand of a type of elements that the operation takes.
  const Type& accepted(size_t i) const { return accepted(i, info_.dtypes); }
  const Type& accepted(size_t i, DTypes dtypes) const {
    const Type& type = operand(i);
    if (!dtypes.contains(type.dtype))
      fail("operand ", i, " is ", text(type), "; accepted are ", names(dtypes));
    return type;
  }

  /// The extent that both have, where 1 stretches.
  Index joined(const Index& a, const Index& b, size_t i, std::string_view what) const {
    if (a == b || b.is(1)) return a;
    if (a.is(1)) return b;
    fail("operand ", i, " is ", text(operand(i)), ", but the operands before it have ",
         tile::text_of(kernel_, a), " ", what);
  }

  Type joined_from(size_t begin, Type type) const {
    for (size_t i = begin; i < instruction_.operands.size(); ++i) {
      const Type& other = operand(i);
      type.rows = joined(type.rows, other.rows, i, "rows");
      type.cols = joined(type.cols, other.cols, i, "columns");
    }
    return type;
  }

  Type elementwise() const {
    Type type = accepted(0);
    for (size_t i = 1; i < instruction_.operands.size(); ++i)
      if (operand(i).dtype != type.dtype)
        fail("operand ", i, " is ", text(operand(i)), ", but the first is ", text(type),
             "; one type of elements is accepted");
    type = joined_from(1, type);
    if (info_.result) type.dtype = *info_.result;
    return type;
  }

  std::vector<Type> reduced() const {
    Type type = accepted(0);
    (info_.shape == Shape::kReduceCols ? type.cols : type.rows) = 1;
    if (info_.result) type.dtype = *info_.result;
    const bool two = instruction_.opcode == Opcode::kRowMoments || instruction_.opcode == Opcode::kColMoments;
    return std::vector<Type>(two ? 2 : 1, type);
  }

  std::vector<Type> special() const {
    switch (instruction_.opcode) {
      case Opcode::kIota:
        return iota();
      case Opcode::kIndex:
        return scalar_of_index();
      case Opcode::kLoad:
        return memory(), masks(instruction_.type), std::vector{instruction_.type};
      case Opcode::kStore:
      case Opcode::kAccumulate:
        return stored();
      case Opcode::kCast:
        return cast();
      case Opcode::kBitcast:
        return bitcast();
      case Opcode::kSelect:
        return select();
      case Opcode::kBroadcast:
        return broadcast();
      case Opcode::kTranspose:
        return {{operand(0).dtype, operand(0).cols, operand(0).rows}};
      case Opcode::kMatmul:
      case Opcode::kMatmulPairs:
        return matmul();
      case Opcode::kPhilox:
        return philox();
      case Opcode::kLoop:
        return loop();
      default:
        return {};
    }
  }

  std::vector<Type> iota() const {
    const Type& type = instruction_.type;
    require_dtype(type);
    if (!(instruction_.axis == Axis::kRows ? type.cols : type.rows).is(1))
      fail("gives ", text(type), "; one ", instruction_.axis == Axis::kRows ? "column" : "row",
           " is accepted");
    return {type};
  }

  std::vector<Type> scalar_of_index() const {
    if (!instruction_.type.is_scalar()) fail("gives ", text(instruction_.type), "; a scalar is accepted");
    require_dtype(instruction_.type);
    return {instruction_.type};
  }

  void require_dtype(const Type& type) const {
    if (!info_.dtypes.contains(type.dtype))
      fail("gives ", text(type), "; accepted are ", names(info_.dtypes));
  }

  const Buffer& memory() const {
    if (!kernel_.has_buffer(instruction_.buffer)) fail("names no buffer of the kernel");
    const Buffer& buffer = kernel_.buffer(instruction_.buffer);
    const Type& type = instruction_.opcode == Opcode::kLoad ? instruction_.type : operand(0);
    if (type.dtype != buffer.dtype)
      fail(text(type), " does not fit %", buffer.name, " of ", name_of(buffer.dtype));
    if (instruction_.places.size() != buffer.sizes.size())
      fail("%", buffer.name, " has ", buffer.sizes.size(), " dimensions, not ", instruction_.places.size());
    if (buffer.sizes.size() < 2 && !type.rows.is(1))
      fail(text(type), " has several rows, but %", buffer.name, " has no dimension for them");
    if (buffer.sizes.empty() && !type.cols.is(1))
      fail(text(type), " has several columns, but %", buffer.name, " has no dimension for them");
    for (const Place& place : instruction_.places)
      if (const auto* value = std::get_if<Value>(&place)) {
        const Type& positions = kernel_.type(*value);
        if (positions.dtype != DType::kI32 && positions.dtype != DType::kI64)
          fail("positions are ", text(positions), "; accepted are i32, i64");
        require_fits(positions, type, "positions");
      }
    return buffer;
  }

  /// `part` covers `whole`, where 1 stretches.
  void require_fits(const Type& part, const Type& whole, std::string_view what) const {
    if (!(part.rows.is(1) || part.rows == whole.rows) || !(part.cols.is(1) || part.cols == whole.cols))
      fail(what, " are ", text(part), " for ", text(whole));
  }

  void masks(const Type& type) const {
    if (instruction_.mask) {
      const Type& mask = kernel_.type(*instruction_.mask);
      if (mask.dtype != DType::kBool) fail("the mask is ", text(mask), "; accepted is bool");
      require_fits(mask, type, "mask values");
    }
    if (!instruction_.otherwise) return;
    const Type& otherwise = kernel_.type(*instruction_.otherwise);
    if (!instruction_.mask || otherwise.dtype != type.dtype)
      fail("what is loaded elsewhere is ", text(otherwise), "; accepted with a mask is ",
           name_of(type.dtype));
    require_fits(otherwise, type, "values elsewhere");
  }

  std::vector<Type> stored() const {
    accepted(0);
    const Buffer& buffer = memory();
    for (size_t d = 0; d < buffer.strides.size(); ++d)
      if (buffer.strides[d] == 0 && !buffer.sizes[d].is(1))
        fail("%", buffer.name, " repeats its elements along dimension ", d);
    masks(operand(0));
    if (instruction_.otherwise) fail("takes no value elsewhere");
    return {};
  }

  std::vector<Type> cast() const {
    Type type = operand(0);
    const DType from = type.dtype, to = instruction_.type.dtype;
    const bool to_integer = kBits.contains(to), from_integer = kBits.contains(from);
    const Rounding only = to_integer ? Rounding::kTowardZero : Rounding::kNearestEven;
    const bool saturates = instruction_.rounding == Rounding::kSaturate && kIntegers.contains(to);
    if (instruction_.rounding != only && !saturates)
      fail("from ", name_of(from), " to ", name_of(to), " rounds ",
           to_integer ? "toward zero or saturates" : "to nearest even", " only");
    if (saturates && from_integer) fail("from ", name_of(from), " does not saturate: cast after min and max");
    type.dtype = to;
    return {type};
  }

  std::vector<Type> bitcast() const {
    Type type = operand(0);
    const DType to = instruction_.type.dtype;
    if (size_of(type.dtype) != size_of(to) || type.dtype == DType::kBool || to == DType::kBool)
      fail("from ", text(type), " to ", name_of(to), ": types of one size other than bool are accepted");
    type.dtype = to;
    return {type};
  }

  std::vector<Type> select() const {
    if (operand(0).dtype != DType::kBool) fail("operand 0 is ", text(operand(0)), "; accepted is bool");
    if (operand(1).dtype != operand(2).dtype)
      fail("operand 2 is ", text(operand(2)), ", but operand 1 is ", text(operand(1)));
    Type type = joined_from(1, operand(0));
    type.dtype = operand(1).dtype;
    return {type};
  }

  std::vector<Type> broadcast() const {
    Type type = instruction_.type;
    type.dtype = operand(0).dtype;
    require_fits(operand(0), type, "operands");
    return {type};
  }

  /// operand 0 (m x k) times operand 1 (k x n) plus operand 2 (m x n).
  std::vector<Type> matmul() const {
    const bool pairs = instruction_.opcode == Opcode::kMatmulPairs;
    const Type &a = operand(0), &b = operand(1), &c = accepted(2);
    const DType factors = pairs ? DType::kI32 : c.dtype;
    if (a.dtype != factors || b.dtype != factors || !(a.cols == b.rows) || !(a.rows == c.rows) ||
        !(b.cols == c.cols))
      fail(text(a), " times ", text(b), " plus ", text(c), ": m x k times k x n plus m x n is accepted, ",
           pairs ? "the factors of i32" : "of one type");
    return {c};
  }

  /// Seed and offset, scalars, and a tile of subsequences: four tiles of 32 random bits each.
  std::vector<Type> philox() const {
    for (size_t i = 0; i < 3; ++i)
      if (accepted(i); i < 2 && !operand(i).is_scalar())
        fail("operand ", i, " is ", text(operand(i)), "; a scalar is accepted");
    Type type = operand(2);
    type.dtype = DType::kI32;
    return std::vector<Type>(4, type);
  }

  std::vector<Type> loop() const {
    if (instruction_.body.size() != 1) fail("has ", instruction_.body.size(), " bodies; one is accepted");
    const auto step = instruction_.step.constant();
    if (!step || *step < 1)
      fail("steps by ", tile::text_of(kernel_, instruction_.step), "; a constant of 1 or more is accepted");
    const Body& body = instruction_.body[0];
    if (body.arguments.size() != instruction_.operands.size())
      fail("starts ", instruction_.operands.size(), " arguments, but its body has ", body.arguments.size());
    if (body.instructions.empty() || body.instructions.back().opcode != Opcode::kYield)
      fail("its body does not end with yield");
    const auto& yielded = body.instructions.back().operands;
    if (yielded.size() != body.arguments.size())
      fail("its body has ", body.arguments.size(), " arguments, but yields ", yielded.size());
    std::vector<Type> types;
    for (size_t i = 0; i < yielded.size(); ++i) {
      const Type& argument = kernel_.type(body.arguments[i]);
      for (const auto& [type, what] :
           {std::pair{operand(i), "starts"}, {kernel_.type(yielded[i]), "goes on"}})
        if (!(type == argument))
          fail("argument ", i, " is ", text(argument), ", but ", what, " as ", text(type));
      types.push_back(argument);
    }
    return types;
  }

  const Kernel& kernel_;
  const Instruction& instruction_;
  const OpcodeInfo& info_;
};

}  // namespace

Buffer local_buffer(std::string name, DType dtype, std::vector<Index> sizes) {
  Buffer made = {std::move(name), dtype, std::move(sizes), {}};
  made.strides.resize(made.sizes.size());
  std::optional<int64_t> stride = 1;
  for (size_t d = made.sizes.size(); d-- > 0;) {
    made.strides[d] = stride;
    const auto size = made.sizes[d].constant();
    stride = stride && size ? std::optional(*stride * *size) : std::nullopt;
  }
  return made;
}

bool Kernel::has_buffer(int number) const {
  return number >= 0 && static_cast<size_t>(number) < buffers.size() + locals.size();
}

const Buffer& Kernel::buffer(int number) const {
  const auto at = static_cast<size_t>(number);
  return is_local(number) ? locals.at(at - buffers.size()) : buffers[at];
}

Value Kernel::add_value(Type type, std::string name) {
  values.push_back({std::move(type), std::move(name)});
  return static_cast<Value>(values.size() - 1);
}

Value Kernel::constant(DType dtype, Literal literal) {
  visit(dtype, [&]<class T>(std::type_identity<T>) {
    if constexpr (std::is_integral_v<T>) {
      const auto* integer = std::get_if<int64_t>(&literal);
      require(integer != nullptr && *integer >= std::numeric_limits<T>::lowest() &&
                  *integer <= static_cast<int64_t>(std::numeric_limits<T>::max()),
              ErrorCode::kInvalidArgument, "tile constant: the literal is not in the range of ",
              name_of(dtype));
    } else {
      if (const auto* integer = std::get_if<int64_t>(&literal)) literal = static_cast<double>(*integer);
      literal = static_cast<double>(widen(convert<T>(std::get<double>(literal))));
    }
  });
  for (size_t i = 0; i < values.size(); ++i)
    if (values[i].literal && values[i].type.dtype == dtype && same_bits(*values[i].literal, literal))
      return static_cast<Value>(i);
  const Value value = add_value({dtype});
  values.back().literal = literal;
  return value;
}

const OpcodeInfo& info(Opcode opcode) { return kOpcodeTable[static_cast<int>(opcode)]; }

std::optional<Opcode> opcode_named(std::string_view name) {
  const auto found = std::ranges::find(kOpcodeTable, name, &OpcodeInfo::name);
  return found != std::end(kOpcodeTable) ? std::optional(found->opcode) : std::nullopt;
}

std::vector<Type> infer_types(const Kernel& kernel, const Instruction& instruction) {
  return Inference(kernel, instruction).types();
}

}  // namespace anynpu::tile
