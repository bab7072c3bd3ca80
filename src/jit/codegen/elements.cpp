#include "jit/codegen/elements.h"

#include <llvm/IR/IntrinsicsX86.h>

#include <cmath>

#include "base/error.h"
#include "jit/codegen/lanes.h"
#include "tile/philox.h"

namespace anynpu::jit {

using Values = std::vector<llvm::Value*>;

namespace {

bool is_float(DType dtype) { return dtype == DType::kF32 || dtype == DType::kF64; }
bool is_unsigned(DType dtype) { return dtype == DType::kU8 || dtype == DType::kBool; }

const char* name_in_libm(Opcode opcode) {
  switch (opcode) {
#define ANYNPU_CASE(opcode, name) \
  case Opcode::opcode:            \
    return #name;
    ANYNPU_TILE_UNARY_FUNCTIONS(ANYNPU_CASE)
    ANYNPU_TILE_BINARY_FUNCTIONS(ANYNPU_CASE)
#undef ANYNPU_CASE
    default:
      raise(ErrorCode::kInternal, "jit: no code for ", tile::info(opcode).name);
  }
}

/// A transcendental function of f32, inline.
llvm::Value* inlined(llvm::IRBuilder<>& builder, Opcode opcode, llvm::Value* a, llvm::Value* second) {
  const EmittingLanes lanes(builder, lanes_of(a));
  const FloatLanes<float> x(a), y(second);
  switch (opcode) {
#define ANYNPU_CASE(opcode, name) \
  case Opcode::opcode:            \
    return tile::math::name(x).value;
    ANYNPU_TILE_UNARY_FUNCTIONS(ANYNPU_CASE)
#undef ANYNPU_CASE
#define ANYNPU_CASE(opcode, name) \
  case Opcode::opcode:            \
    return tile::math::name(x, y).value;
    ANYNPU_TILE_BINARY_FUNCTIONS(ANYNPU_CASE)
#undef ANYNPU_CASE
    default:
      raise(ErrorCode::kInternal, "jit: no code for ", tile::info(opcode).name);
  }
}

}  // namespace

int lanes_of(const llvm::Value* value) {
  const auto* vector = llvm::dyn_cast<llvm::FixedVectorType>(value->getType());
  return vector != nullptr ? static_cast<int>(vector->getNumElements()) : 1;
}

llvm::Type* Elements::memory_type(DType dtype) const {
  switch (dtype) {
    case DType::kBool:
    case DType::kU8:
    case DType::kI8:
      return b.getInt8Ty();
    case DType::kI16:
    case DType::kBF16:
      return b.getInt16Ty();
    case DType::kI32:
      return b.getInt32Ty();
    case DType::kI64:
      return b.getInt64Ty();
    case DType::kF16:
      return b.getHalfTy();
    case DType::kF32:
      return b.getFloatTy();
    case DType::kF64:
      break;
  }
  return b.getDoubleTy();
}

llvm::Type* Elements::type(DType dtype, int lanes) const {
  llvm::Type* element = dtype == DType::kBool ? b.getInt1Ty() : memory_type(dtype);
  return lanes == 1 ? element : llvm::FixedVectorType::get(element, static_cast<unsigned>(lanes));
}

llvm::Value* Elements::constant(DType dtype, const tile::Literal& literal, int lanes) const {
  llvm::Type* type = this->type(dtype, lanes);
  if (const auto* integer = std::get_if<int64_t>(&literal))
    return llvm::ConstantInt::get(type, static_cast<uint64_t>(*integer), true);
  const double number = std::get<double>(literal);
  if (dtype == DType::kBF16)
    return llvm::ConstantInt::get(type, tile::to_bfloat16(static_cast<float>(number)).bits);
  return llvm::ConstantFP::get(type, number);
}

llvm::Value* Elements::splat(llvm::Value* scalar, int lanes) const {
  return lanes == 1 || lanes_of(scalar) != 1 ? scalar
                                             : b.CreateVectorSplat(static_cast<unsigned>(lanes), scalar);
}

llvm::Value* Elements::iota(int lanes) const {
  if (lanes == 1) return b.getInt64(0);
  std::vector<uint64_t> numbers(static_cast<size_t>(lanes));
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = i;
  return llvm::ConstantDataVector::get(b.getContext(), numbers);
}

/// Calls a scalar function for each element, by way of memory.
llvm::Value* Elements::call_for_each(const char* name, const Values& operands) {
  const int lanes = lanes_of(operands[0]);
  llvm::Type* element = operands[0]->getType()->getScalarType();
  const llvm::FunctionCallee function = module_.getOrInsertFunction(
      name, llvm::FunctionType::get(element, std::vector<llvm::Type*>(operands.size(), element), false));
  if (lanes == 1) return b.CreateCall(function, operands);
  llvm::Value* result = llvm::PoisonValue::get(operands[0]->getType());
  for (int i = 0; i < lanes; ++i) {
    Values scalars;
    for (llvm::Value* operand : operands)
      scalars.push_back(b.CreateExtractElement(operand, b.getInt64(static_cast<uint64_t>(i))));
    result =
        b.CreateInsertElement(result, b.CreateCall(function, scalars), b.getInt64(static_cast<uint64_t>(i)));
  }
  return result;
}

llvm::Value* Elements::unary(Opcode opcode, DType dtype, llvm::Value* a) {
  using llvm::Intrinsic::ID;
  const auto call = [&](ID id) { return b.CreateUnaryIntrinsic(id, a); };
  switch (opcode) {
    case Opcode::kNeg:
      return is_float(dtype) ? b.CreateFNeg(a) : b.CreateNeg(a);
    case Opcode::kAbs:
      if (is_float(dtype)) return call(llvm::Intrinsic::fabs);
      return is_unsigned(dtype) ? a : b.CreateBinaryIntrinsic(llvm::Intrinsic::abs, a, b.getFalse());
    case Opcode::kNot:
      return b.CreateNot(a);
    case Opcode::kFloor:
      return call(llvm::Intrinsic::floor);
    case Opcode::kCeil:
      return call(llvm::Intrinsic::ceil);
    case Opcode::kTrunc:
      return call(llvm::Intrinsic::trunc);
    case Opcode::kRound:
      return call(llvm::Intrinsic::roundeven);
    case Opcode::kSqrt:
      return call(llvm::Intrinsic::sqrt);
    default:
      if (dtype == DType::kF32) return inlined(b, opcode, a, a);
      return call_for_each(name_in_libm(opcode), {a});
  }
}

llvm::Value* Elements::binary(Opcode opcode, DType dtype, llvm::Value* a, llvm::Value* c) {
  const bool floats = is_float(dtype), unsigneds = is_unsigned(dtype);
  const auto pick = [&](llvm::Intrinsic::ID of_signed, llvm::Intrinsic::ID of_unsigned) {
    return b.CreateBinaryIntrinsic(unsigneds ? of_unsigned : of_signed, a, c);
  };
  switch (opcode) {
    case Opcode::kAdd:
      return floats ? b.CreateFAdd(a, c) : b.CreateAdd(a, c);
    case Opcode::kSub:
      return floats ? b.CreateFSub(a, c) : b.CreateSub(a, c);
    case Opcode::kMul:
      return floats ? b.CreateFMul(a, c) : b.CreateMul(a, c);
    case Opcode::kDiv:
      return floats ? b.CreateFDiv(a, c) : divide(dtype, a, c, false);
    case Opcode::kRem:
      return floats ? call_for_each(dtype == DType::kF32 ? "fmodf" : "fmod", {a, c})
                    : divide(dtype, a, c, true);
    case Opcode::kMin:
      return floats ? extreme(false, a, c) : pick(llvm::Intrinsic::smin, llvm::Intrinsic::umin);
    case Opcode::kMax:
      return floats ? extreme(true, a, c) : pick(llvm::Intrinsic::smax, llvm::Intrinsic::umax);
    case Opcode::kAnd:
      return b.CreateAnd(a, c);
    case Opcode::kOr:
      return b.CreateOr(a, c);
    case Opcode::kXor:
      return b.CreateXor(a, c);
    case Opcode::kShl:
    case Opcode::kShr:
    case Opcode::kShrLogical:
      return shift(opcode, dtype, a, c);
    case Opcode::kMulHigh: {
      llvm::Type* wide = type(DType::kI64, lanes_of(a));
      llvm::Value* product = b.CreateMul(b.CreateZExt(a, wide), b.CreateZExt(c, wide));
      return b.CreateTrunc(b.CreateLShr(product, 32), a->getType());
    }
    default:
      if (dtype == DType::kF32) return inlined(b, opcode, a, c);
      return call_for_each(name_in_libm(opcode), {a, c});
  }
}

/// Where one is NaN or both are zeros, an x86 instruction gives its second operand: so two of them, with the
/// operands in either order, tell these cases. LLVM's own code has a chain of dependent instructions thrice
/// as long, for which reductions wait.
llvm::Value* Elements::extreme(bool greatest, llvm::Value* a, llvm::Value* c) {
  if (!target_.isa)
    return b.CreateBinaryIntrinsic(greatest ? llvm::Intrinsic::maximum : llvm::Intrinsic::minimum, a, c);
  llvm::Type* const floats = a->getType();
  llvm::Type* const words =
      type(floats->getScalarSizeInBits() == 64 ? DType::kI64 : DType::kI32, lanes_of(a));
  const auto instruction = [&](llvm::Value* x, llvm::Value* y) {
    llvm::Value* first = greatest ? b.CreateFCmpOGT(x, y) : b.CreateFCmpOLT(x, y);
    return b.CreateBitCast(b.CreateSelect(first, x, y), words);
  };
  llvm::Value *one = instruction(a, c), *other = instruction(c, a);
  if (!greatest) return b.CreateBitCast(b.CreateOr(one, other), floats);  // -0, and of a NaN a NaN
  llvm::Value* both = b.CreateBitCast(b.CreateAnd(one, other), floats);   // +0
  return b.CreateSelect(b.CreateFCmpUNO(a, c), llvm::ConstantFP::getNaN(floats), both);
}

/// Of integers; what the processor traps at is replaced by a division by 1.
llvm::Value* Elements::divide(DType dtype, llvm::Value* a, llvm::Value* c, bool remainder) {
  llvm::Constant* zero = llvm::Constant::getNullValue(a->getType());
  llvm::Value* by_zero = b.CreateICmpEQ(c, zero);
  llvm::Value* one = llvm::ConstantInt::get(a->getType(), 1);
  llvm::Value* quotient = nullptr;
  if (is_unsigned(dtype)) {
    quotient = b.CreateUDiv(a, b.CreateSelect(by_zero, one, c));
  } else {
    llvm::Value* by_minus_one = b.CreateICmpEQ(c, llvm::Constant::getAllOnesValue(a->getType()));
    quotient = b.CreateSDiv(a, b.CreateSelect(b.CreateOr(by_zero, by_minus_one), one, c));
    quotient = b.CreateSelect(by_minus_one, b.CreateNeg(a), quotient);
  }
  quotient = b.CreateSelect(by_zero, zero, quotient);
  return remainder ? b.CreateSub(a, b.CreateMul(quotient, c)) : quotient;
}

llvm::Value* Elements::shift(Opcode opcode, DType dtype, llvm::Value* a, llvm::Value* c) {
  const uint64_t width = tile::size_of(dtype) * 8;
  llvm::Value* outside = b.CreateICmpUGE(c, llvm::ConstantInt::get(a->getType(), width));
  llvm::Value* most = llvm::ConstantInt::get(a->getType(), width - 1);
  llvm::Value* by = b.CreateSelect(outside, most, c);
  if (opcode == Opcode::kShr && !is_unsigned(dtype)) return b.CreateAShr(a, by);
  llvm::Value* shifted = opcode == Opcode::kShl ? b.CreateShl(a, by) : b.CreateLShr(a, by);
  return b.CreateSelect(outside, llvm::Constant::getNullValue(a->getType()), shifted);
}

llvm::Value* Elements::compare(Opcode opcode, DType dtype, llvm::Value* a, llvm::Value* c) {
  using Predicate = llvm::CmpInst::Predicate;
  const bool unsigneds = is_unsigned(dtype);
  const auto predicate = [&]() -> Predicate {
    switch (opcode) {
      case Opcode::kEq:
        return is_float(dtype) ? Predicate::FCMP_OEQ : Predicate::ICMP_EQ;
      case Opcode::kNe:
        return is_float(dtype) ? Predicate::FCMP_UNE : Predicate::ICMP_NE;
      case Opcode::kLt:
        return is_float(dtype) ? Predicate::FCMP_OLT : unsigneds ? Predicate::ICMP_ULT : Predicate::ICMP_SLT;
      case Opcode::kLe:
        return is_float(dtype) ? Predicate::FCMP_OLE : unsigneds ? Predicate::ICMP_ULE : Predicate::ICMP_SLE;
      case Opcode::kGt:
        return is_float(dtype) ? Predicate::FCMP_OGT : unsigneds ? Predicate::ICMP_UGT : Predicate::ICMP_SGT;
      default:
        return is_float(dtype) ? Predicate::FCMP_OGE : unsigneds ? Predicate::ICMP_UGE : Predicate::ICMP_SGE;
    }
  };
  return b.CreateCmp(predicate(), a, c);
}

llvm::Value* Elements::fma(llvm::Value* a, llvm::Value* c, llvm::Value* d) {
  return b.CreateIntrinsic(llvm::Intrinsic::fma, {a->getType()}, {a, c, d});
}

llvm::Value* Elements::product_added(Opcode opcode, llvm::Value* a, llvm::Value* c, llvm::Value* sum) {
  const bool integers = sum->getType()->isIntOrIntVectorTy();
  if (opcode == Opcode::kMatmulPairs)
    return integers ? i16_pairs_added(a, c, sum) : bf16_pairs_added(a, c, sum);
  return integers ? b.CreateAdd(sum, b.CreateMul(a, c)) : fma(a, c, sum);
}

llvm::Value* Elements::bf16_pairs_added(llvm::Value* a, llvm::Value* c, llvm::Value* sum) {
  const int lanes = lanes_of(sum);
  if (target_.isa == Isa::kAvx512Dot && lanes == 16) {
    llvm::Type* pairs = llvm::FixedVectorType::get(b.getBFloatTy(), 32);
    return b.CreateIntrinsic(llvm::Intrinsic::x86_avx512bf16_dpbf16ps_512, {},
                             {sum, b.CreateBitCast(a, pairs), b.CreateBitCast(c, pairs)});
  }
  llvm::Type *words = type(DType::kI32, lanes), *floats = type(DType::kF32, lanes);
  const auto word = [&](uint64_t bits) { return llvm::ConstantInt::get(words, bits); };
  const auto flushed = [&](llvm::Value* bits) {
    llvm::Value* tiny = b.CreateICmpEQ(b.CreateAnd(bits, word(0x7f800000)), word(0));
    return b.CreateBitCast(b.CreateSelect(tiny, b.CreateAnd(bits, word(0x80000000)), bits), floats);
  };
  const auto add = [&](const auto& half) {
    sum = flushed(b.CreateBitCast(fma(flushed(half(a)), flushed(half(c)), sum), words));
  };
  sum = flushed(b.CreateBitCast(sum, words));
  add([&](llvm::Value* pair) { return b.CreateAnd(pair, word(0xffff0000)); });
  add([&](llvm::Value* pair) { return b.CreateShl(pair, 16); });
  return sum;
}

llvm::Value* Elements::i16_pairs_added(llvm::Value* a, llvm::Value* c, llvm::Value* sum) {
  const int lanes = lanes_of(sum);
  if (target_.isa == Isa::kAvx512Dot && lanes == 16)
    return b.CreateIntrinsic(llvm::Intrinsic::x86_avx512_vpdpwssd_512, {}, {sum, a, c});
  if (target_.isa && lanes * 4 == target_.registers.bytes) {
    llvm::Type* pairs = type(DType::kI16, 2 * lanes);
    const auto id =
        lanes == 16 ? llvm::Intrinsic::x86_avx512_pmaddw_d_512 : llvm::Intrinsic::x86_avx2_pmadd_wd;
    return b.CreateAdd(sum,
                       b.CreateIntrinsic(id, {}, {b.CreateBitCast(a, pairs), b.CreateBitCast(c, pairs)}));
  }
  const auto product = [&](const auto& half) { return b.CreateMul(half(a), half(c)); };
  sum = b.CreateAdd(sum, product([&](llvm::Value* pair) { return b.CreateAShr(pair, 16); }));
  return b.CreateAdd(sum,
                     product([&](llvm::Value* pair) { return b.CreateAShr(b.CreateShl(pair, 16), 16); }));
}

llvm::Value* Elements::to_float(DType from, llvm::Value* value) {
  const int lanes = lanes_of(value);
  if (from == DType::kF16) return b.CreateFPExt(value, type(DType::kF32, lanes));
  if (from != DType::kBF16) return value;
  llvm::Value* bits = b.CreateShl(b.CreateZExt(value, type(DType::kI32, lanes)), 16);
  return b.CreateBitCast(bits, type(DType::kF32, lanes));
}

llvm::Value* Elements::to_bfloat16(llvm::Value* value) {
  const int lanes = lanes_of(value);
  llvm::Type* words = type(DType::kI32, lanes);
  const auto word = [&](uint64_t bits) { return llvm::ConstantInt::get(words, bits); };
  llvm::Value* bits = b.CreateBitCast(value, words);
  llvm::Value* odd = b.CreateAnd(b.CreateLShr(bits, 16), word(1));
  llvm::Value* rounded = b.CreateAdd(b.CreateAdd(bits, word(0x7fff)), odd);
  llvm::Value* ones_of_nan = b.CreateSExt(b.CreateFCmpUNO(value, value), words);  // a NaN of all ones
  return b.CreateTrunc(b.CreateLShr(b.CreateOr(rounded, ones_of_nan), 16), type(DType::kBF16, lanes));
}

llvm::Value* Elements::to_integer(llvm::Value* value, DType to) {
  const int lanes = lanes_of(value);
  const DType whole_type = to == DType::kI64 ? DType::kI64 : DType::kI32;
  llvm::Type* whole = type(whole_type, lanes);
  const double end = to == DType::kI64 ? 0x1p63 : 0x1p31;
  llvm::Value* truncated = b.CreateUnaryIntrinsic(llvm::Intrinsic::trunc, value);
  llvm::Value* inside = b.CreateAnd(b.CreateFCmpOGE(truncated, llvm::ConstantFP::get(value->getType(), -end)),
                                    b.CreateFCmpOLT(truncated, llvm::ConstantFP::get(value->getType(), end)));
  llvm::Value* safe = b.CreateSelect(inside, truncated, llvm::Constant::getNullValue(value->getType()));
  const uint64_t least = whole_type == DType::kI64 ? uint64_t{1} << 63 : uint64_t{1} << 31;
  llvm::Value* integer =
      b.CreateSelect(inside, b.CreateFPToSI(safe, whole), llvm::ConstantInt::get(whole, least));
  return b.CreateTrunc(integer, type(to, lanes));
}

llvm::Value* Elements::to_integer_saturated(llvm::Value* value, DType to) {
  llvm::Type* integer = type(to, lanes_of(value));
  const auto id = to == DType::kU8 ? llvm::Intrinsic::fptoui_sat : llvm::Intrinsic::fptosi_sat;
  return b.CreateIntrinsic(id, {integer, value->getType()}, {value});
}

llvm::Value* Elements::convert(DType from, DType to, bool saturate, llvm::Value* value) {
  if (from == to) return value;
  const int lanes = lanes_of(value);
  const bool from_integer = tile::kBits.contains(from), to_integer = tile::kBits.contains(to);
  if (!from_integer) value = to_float(from, value);
  if (to == DType::kBool) {
    llvm::Constant* zero = llvm::Constant::getNullValue(value->getType());
    return from_integer ? b.CreateICmpNE(value, zero) : b.CreateFCmpUNE(value, zero);
  }
  if (from_integer && to_integer) return b.CreateIntCast(value, type(to, lanes), !is_unsigned(from));
  if (to_integer) return saturate ? to_integer_saturated(value, to) : this->to_integer(value, to);
  llvm::Type* floats = type(to == DType::kF64 ? DType::kF64 : DType::kF32, lanes);
  if (from_integer)
    value = is_unsigned(from) ? b.CreateUIToFP(value, floats) : b.CreateSIToFP(value, floats);
  else
    value = b.CreateFPCast(value, floats);
  if (to == DType::kF16) return b.CreateFPTrunc(value, type(to, lanes));
  return to == DType::kBF16 ? to_bfloat16(value) : value;
}

/// For tile/philox.h.
static tile::WideProduct<IntLanes<float>> wide_product(uint32_t constant, IntLanes<float> x) {
  llvm::IRBuilder<>& b = builder_of_lanes();
  llvm::Type* wide = EmittingLanes::current().vector(b.getInt64Ty());
  llvm::Value* product = b.CreateMul(b.CreateZExt(x.value, wide), llvm::ConstantInt::get(wide, constant));
  return {IntLanes<float>(b.CreateTrunc(b.CreateLShr(product, 32), IntLanes<float>::type())),
          IntLanes<float>(b.CreateTrunc(product, IntLanes<float>::type()))};
}

Values Elements::philox(llvm::Value* seed, llvm::Value* offset, llvm::Value* subsequence) {
  using Words = IntLanes<float>;
  const int lanes = lanes_of(subsequence);
  const EmittingLanes scope(b, lanes);
  const auto low = [&](llvm::Value* wide) { return Words(b.CreateTrunc(splat(wide, lanes), Words::type())); };
  const auto high = [&](llvm::Value* wide) { return low(b.CreateLShr(wide, 32)); };
  Values values;
  for (const Words words : tile::philox4x32<Words>(
           {low(seed), high(seed)}, {low(offset), high(offset), low(subsequence), high(subsequence)}))
    values.push_back(words.value);
  return values;
}

std::vector<DType> Elements::components(Opcode opcode, DType dtype) {
  switch (opcode) {
    case Opcode::kRowArgmax:
    case Opcode::kRowArgmin:
      return {DType::kI64, dtype};
    case Opcode::kRowMoments:
      return {dtype, dtype, dtype};  // mean, squares, count
    default:
      return {dtype};
  }
}

Values Elements::identity(Opcode opcode, DType dtype, int lanes) {
  const bool floats = is_float(dtype);
  const auto extreme = [&](bool greatest) -> llvm::Value* {
    llvm::Type* type = this->type(dtype, lanes);
    if (floats) return llvm::ConstantFP::getInfinity(type, !greatest);
    const auto bits = static_cast<unsigned>(type->getScalarSizeInBits());
    const llvm::APInt value =
        is_unsigned(dtype) ? (greatest ? llvm::APInt::getMaxValue(bits) : llvm::APInt::getMinValue(bits))
        : greatest         ? llvm::APInt::getSignedMaxValue(bits)
                           : llvm::APInt::getSignedMinValue(bits);
    return llvm::ConstantInt::get(type, value);
  };
  llvm::Value* zero = llvm::Constant::getNullValue(type(dtype, lanes));
  switch (opcode) {
    case Opcode::kRowProd:
      return {floats ? llvm::ConstantFP::get(type(dtype, lanes), 1)
                     : llvm::ConstantInt::get(type(dtype, lanes), 1)};
    case Opcode::kRowMax:
      return {extreme(false)};
    case Opcode::kRowMin:
      return {extreme(true)};
    case Opcode::kRowArgmax:
    case Opcode::kRowArgmin:
      return {llvm::Constant::getAllOnesValue(type(DType::kI64, lanes)), zero};
    case Opcode::kRowMoments:
      return {zero, zero, zero};
    default:
      return {zero};
  }
}

Values Elements::take(Opcode opcode, DType dtype, const Values& state, llvm::Value* x,
                      llvm::Value* position) {
  if (opcode == Opcode::kRowArgmax || opcode == Opcode::kRowArgmin)
    return merge(opcode, dtype, state, {position, x});
  if (opcode != Opcode::kRowMoments) return merge(opcode, dtype, state, {x});
  llvm::Value* one = llvm::ConstantFP::get(x->getType(), 1);
  llvm::Value* count = b.CreateFAdd(state[2], one);
  Values next = take_moments(state[0], state[1], x, b.CreateFDiv(one, count));
  next.push_back(count);
  return next;
}

Values Elements::take_moments(llvm::Value* mean, llvm::Value* squares, llvm::Value* x, llvm::Value* share) {
  llvm::Value* distance = b.CreateFSub(x, mean);
  llvm::Value* next = fma(distance, share, mean);
  return {next, fma(distance, b.CreateFSub(x, next), squares)};
}

Values Elements::merge(Opcode opcode, DType dtype, const Values& a, const Values& c) {
  switch (opcode) {
    case Opcode::kRowSum:
      return {binary(Opcode::kAdd, dtype, a[0], c[0])};
    case Opcode::kRowProd:
      return {binary(Opcode::kMul, dtype, a[0], c[0])};
    case Opcode::kRowMax:
      return {binary(Opcode::kMax, dtype, a[0], c[0])};
    case Opcode::kRowMin:
      return {binary(Opcode::kMin, dtype, a[0], c[0])};
    case Opcode::kRowMoments: {
      llvm::Constant* zero = llvm::Constant::getNullValue(a[0]->getType());
      llvm::Value *count = b.CreateFAdd(a[2], c[2]), *distance = b.CreateFSub(c[0], a[0]);
      llvm::Value* share = b.CreateFDiv(c[2], count);
      llvm::Value* mean = fma(distance, share, a[0]);
      llvm::Value* squares =
          fma(b.CreateFMul(distance, distance), b.CreateFMul(a[2], share), b.CreateFAdd(a[1], c[1]));
      llvm::Value *a_empty = b.CreateFCmpOEQ(a[2], zero), *c_empty = b.CreateFCmpOEQ(c[2], zero);
      const auto pick = [&](llvm::Value* both, size_t i) {
        return b.CreateSelect(c_empty, a[i], b.CreateSelect(a_empty, c[i], both));
      };
      return {pick(mean, 0), pick(squares, 1), pick(count, 2)};
    }
    default:
      break;
  }
  // Positions of the extreme element; -1 of none.
  llvm::Constant* zero = llvm::Constant::getNullValue(a[0]->getType());
  llvm::Value *a_none = b.CreateICmpSLT(a[0], zero), *c_none = b.CreateICmpSLT(c[0], zero);
  llvm::Value* better = compare(opcode == Opcode::kRowArgmax ? Opcode::kGt : Opcode::kLt, dtype, c[1], a[1]);
  llvm::Value* equal = compare(Opcode::kEq, dtype, a[1], c[1]);
  if (is_float(dtype)) {
    llvm::Value *a_nan = b.CreateFCmpUNO(a[1], a[1]), *c_nan = b.CreateFCmpUNO(c[1], c[1]);
    equal = b.CreateOr(equal, b.CreateAnd(a_nan, c_nan));
    better = b.CreateOr(better, b.CreateAnd(c_nan, b.CreateNot(a_nan)));
  }
  llvm::Value* takes_c = b.CreateOr(better, b.CreateAnd(equal, b.CreateICmpSLT(c[0], a[0])));
  takes_c = b.CreateOr(a_none, b.CreateAnd(takes_c, b.CreateNot(c_none)));
  return {b.CreateSelect(takes_c, c[0], a[0]), b.CreateSelect(takes_c, c[1], a[1])};
}

Values Elements::merge_even_moments(const Values& a, const Values& c) {
  llvm::Value *half = llvm::ConstantFP::get(a[0]->getType(), 0.5), *distance = b.CreateFSub(c[0], a[0]);
  llvm::Value* squares =
      fma(b.CreateFMul(distance, distance), b.CreateFMul(a[2], half), b.CreateFAdd(a[1], c[1]));
  return {fma(distance, half, a[0]), squares, b.CreateFAdd(a[2], c[2])};
}

}  // namespace anynpu::jit
