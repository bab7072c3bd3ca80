#pragma once

#include <cstdint>

namespace anynpu::tile {

/// Operations. What each computes stands in ir.cpp's table (operands, types) and lane.h (values).
enum class Opcode : uint8_t {
  // Values that come from no tensor.
  kIota,   ///< 0, 1, 2, ... along the rows or the columns
  kIndex,  ///< an index expression as a scalar
  // Memory.
  kLoad,
  kStore,
  kAccumulate,  ///< adds to memory; where positions repeat, one after another, rows before columns
  // One operand, element by element.
  kNeg,
  kAbs,
  kNot,
  kFloor,
  kCeil,
  kTrunc,
  kRound,
  kSqrt,
  kExp,
  kExp2,
  kExpm1,
  kLog,
  kLog2,
  kLog10,
  kLog1p,
  kSin,
  kCos,
  kTan,
  kAsin,
  kAcos,
  kAtan,
  kSinh,
  kCosh,
  kTanh,
  kAsinh,
  kAcosh,
  kAtanh,
  kErf,
  kErfc,
  kNdtr,
  kCast,
  kBitcast,
  // Two.
  kAdd,
  kSub,
  kMul,
  kDiv,
  kRem,
  kMin,
  kMax,
  kPow,
  kAtan2,
  kAnd,
  kOr,
  kXor,
  kShl,
  kShr,
  kShrLogical,
  kMulHigh,
  kEq,
  kNe,
  kLt,
  kLe,
  kGt,
  kGe,
  // Three.
  kFma,
  kSelect,
  // Whole tiles.
  kBroadcast,
  kRowSum,
  kRowProd,
  kRowMax,
  kRowMin,
  kRowArgmax,
  kRowArgmin,
  kRowMoments,
  kColSum,
  kColProd,
  kColMax,
  kColMin,
  kColArgmax,
  kColArgmin,
  kColMoments,
  kRowScanSum,
  kRowScanProd,
  kRowScanMax,
  kRowScanMin,
  kTranspose,  ///< rows become columns
  kMatmul,     ///< adds a product of matrices to a tile
  /// The same of matrices of pairs along what is summed over: each element, of 32 bits, is two numbers, the
  /// one in its upper half first. They are bf16 where sums are f32, and subnormal numbers, sums too, count as
  /// zero, as in processors' dot products; where sums are i32 they are i16.
  kMatmulPairs,
  kPhilox,
  // Control.
  kLoop,
  kYield,  ///< ends a loop's body
};
constexpr int kOpcodes = static_cast<int>(Opcode::kYield) + 1;
constexpr bool is_product(Opcode opcode) {
  return opcode == Opcode::kMatmul || opcode == Opcode::kMatmulPairs;
}

/// The transcendental operations of one operand, and of two, with their names: in tile/math.h for f32, and in
/// tile/math_f64.h, most of them libm's.
#define ANYNPU_TILE_LIBM_FUNCTIONS(each)                                                                    \
  each(kExp, exp) each(kExp2, exp2) each(kExpm1, expm1) each(kLog, log) each(kLog2, log2)                   \
      each(kLog10, log10) each(kLog1p, log1p) each(kSin, sin) each(kCos, cos) each(kTan, tan)               \
          each(kAsin, asin) each(kAcos, acos) each(kAtan, atan) each(kSinh, sinh) each(kCosh, cosh)         \
              each(kTanh, tanh) each(kAsinh, asinh) each(kAcosh, acosh) each(kAtanh, atanh) each(kErf, erf) \
                  each(kErfc, erfc)
#define ANYNPU_TILE_UNARY_FUNCTIONS(each) ANYNPU_TILE_LIBM_FUNCTIONS(each) each(kNdtr, ndtr)
#define ANYNPU_TILE_BINARY_FUNCTIONS(each) each(kPow, pow) each(kAtan2, atan2)

}  // namespace anynpu::tile
