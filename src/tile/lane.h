#pragma once

// What each operation computes of one element. The interpreter runs this, and machine code gives the same
// bits.

#include <bit>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "tile/dtype.h"
#include "tile/math.h"
#include "tile/math_f64.h"
#include "tile/opcode.h"

namespace anynpu::tile {

inline float widen(Half value) { return half_to_float(value.bits); }
inline float widen(BFloat16 value) { return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16); }
template <class T>
T widen(T value) {
  return value;
}

inline BFloat16 to_bfloat16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return {static_cast<uint16_t>(bits >> 16 | 0x40)};
  return {static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

/// A float as an integer, toward zero. i64, i32: the smallest integer for NaN and out of the range. Narrower
/// types: the low bits of that i32.
template <class T, class F>
T to_integer(F value) {
  if constexpr (sizeof(T) < sizeof(int32_t)) {
    return static_cast<T>(to_integer<int32_t>(value));
  } else {
    constexpr F kEnd = -static_cast<F>(std::numeric_limits<T>::min());
    const F whole = std::trunc(value);
    return whole >= -kEnd && whole < kEnd ? static_cast<T>(whole) : std::numeric_limits<T>::min();
  }
}

/// The nearest integer of those toward zero; 0 for NaN.
template <class T, class F>
T to_integer_saturated(F value) {
  constexpr auto kLowest = std::numeric_limits<T>::lowest(), kMost = std::numeric_limits<T>::max();
  if (std::isnan(value)) return 0;
  if (value <= static_cast<F>(kLowest)) return kLowest;
  return value >= static_cast<F>(kMost) ? kMost : static_cast<T>(value);
}

/// Any type of elements as any other: floats to nearest even, to integers as to_integer(), to bool whether it
/// differs from zero; integers wrap around. f64 goes to f16 and bf16 by way of f32.
template <class To, class From>
To convert(From from) {
  const auto value = widen(from);
  using Value = std::remove_const_t<decltype(value)>;
  if constexpr (std::is_same_v<To, bool>) {
    return value != Value{};
  } else if constexpr (std::is_same_v<To, Half>) {
    return {float_to_half(static_cast<float>(value))};
  } else if constexpr (std::is_same_v<To, BFloat16>) {
    return to_bfloat16(static_cast<float>(value));
  } else if constexpr (std::is_integral_v<To> && std::is_floating_point_v<Value>) {
    return to_integer<To>(value);
  } else {
    return static_cast<To>(value);
  }
}

/// Integers in the unsigned type of their size, which wraps around.
template <class T>
using Wrapping = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;

namespace lane {

template <class T>
concept Integer = std::is_integral_v<T> && !std::is_same_v<T, bool>;
template <class T>
concept Float = std::is_floating_point_v<T>;

template <Float T>
T neg(T a) {
  return -a;
}
template <Float T>
T add(T a, T b) {
  return a + b;
}
template <Float T>
T sub(T a, T b) {
  return a - b;
}
template <Float T>
T mul(T a, T b) {
  return a * b;
}
template <Float T>
T div(T a, T b) {
  return a / b;
}
template <Float T>
T rem(T a, T b) {
  return std::fmod(a, b);
}
template <Float T>
T abs(T a) {
  return std::fabs(a);
}

template <Integer T>
T neg(T a) {
  return static_cast<T>(Wrapping<T>{0} - static_cast<Wrapping<T>>(a));
}
template <Integer T>
T add(T a, T b) {
  return static_cast<T>(static_cast<Wrapping<T>>(a) + static_cast<Wrapping<T>>(b));
}
template <Integer T>
T sub(T a, T b) {
  return static_cast<T>(static_cast<Wrapping<T>>(a) - static_cast<Wrapping<T>>(b));
}
template <Integer T>
T mul(T a, T b) {
  return static_cast<T>(static_cast<Wrapping<T>>(a) * static_cast<Wrapping<T>>(b));
}
/// Toward zero. Division by zero gives 0, and the smallest by -1 the smallest.
template <Integer T>
T div(T a, T b) {
  if (b == 0) return 0;
  if constexpr (std::is_signed_v<T>)
    if (b == -1) return neg(a);
  return static_cast<T>(a / b);
}
template <Integer T>
T rem(T a, T b) {
  return sub(a, mul(div(a, b), b));
}
template <Integer T>
T abs(T a) {
  return a < 0 ? neg(a) : a;
}

/// NaN where one of the two is; of the zeros -0 is the smaller one.
template <Float T>
T min(T a, T b) {
  if (a == b) return std::signbit(a) ? a : b;
  return std::isnan(a) || a < b ? a : b;
}
template <Float T>
T max(T a, T b) {
  if (a == b) return std::signbit(a) ? b : a;
  return std::isnan(a) || a > b ? a : b;
}
template <std::integral T>
T min(T a, T b) {
  return a < b ? a : b;
}
template <std::integral T>
T max(T a, T b) {
  return a < b ? b : a;
}

template <std::integral T>
T bit_not(T a) {
  if constexpr (std::is_same_v<T, bool>)
    return !a;
  else
    return static_cast<T>(~a);
}
template <std::integral T>
T bit_and(T a, T b) {
  return static_cast<T>(a & b);
}
template <std::integral T>
T bit_or(T a, T b) {
  return static_cast<T>(a | b);
}
template <std::integral T>
T bit_xor(T a, T b) {
  return static_cast<T>(a ^ b);
}

/// Shifts by the type's width and more, or by less than 0, shift everything out.
template <Integer T>
bool shifts_out(T b) {
  return static_cast<std::make_unsigned_t<T>>(b) >= sizeof(T) * 8;
}
template <Integer T>
T shl(T a, T b) {
  return shifts_out(b) ? T{0} : static_cast<T>(static_cast<Wrapping<T>>(a) << b);
}
template <Integer T>
T shr(T a, T b) {
  if (!shifts_out(b)) return static_cast<T>(a >> b);
  return a < 0 ? static_cast<T>(-1) : T{0};
}
template <Integer T>
T shr_logical(T a, T b) {
  return shifts_out(b) ? T{0} : static_cast<T>(static_cast<std::make_unsigned_t<T>>(a) >> b);
}
/// The upper half of the product of two unsigned numbers.
inline int32_t mul_high(int32_t a, int32_t b) {
  return static_cast<int32_t>(uint64_t{static_cast<uint32_t>(a)} * static_cast<uint32_t>(b) >> 32);
}

template <Float T>
T fma(T a, T b, T c) {
  return std::fma(a, b, c);
}

/// What processors' dot products take a number for: a subnormal one for a zero.
inline float flushed(float a) {
  return std::fabs(a) < std::numeric_limits<float>::min() ? std::copysign(0.0f, a) : a;
}

/// Adds the products of two pairs to a sum, those of the upper halves first: see Opcode::kMatmulPairs.
inline float add_products_of_pairs(int32_t a, int32_t b, float sum) {
  const auto half = [](int32_t pair, int shift) {
    return flushed(std::bit_cast<float>(static_cast<uint32_t>(pair) << shift & 0xffff0000u));
  };
  for (const int shift : {0, 16}) sum = flushed(std::fma(half(a, shift), half(b, shift), flushed(sum)));
  return sum;
}
inline int32_t add_products_of_pairs(int32_t a, int32_t b, int32_t sum) {
  const auto half = [](int32_t pair, int shift) {
    return static_cast<int32_t>(static_cast<uint32_t>(pair) << shift) >> 16;
  };
  for (const int shift : {0, 16}) sum = add(sum, mul(half(a, shift), half(b, shift)));
  return sum;
}

template <Float T>
T unary_float(Opcode opcode, T a) {
  switch (opcode) {
    case Opcode::kNeg:
      return neg(a);
    case Opcode::kAbs:
      return abs(a);
    case Opcode::kFloor:
      return std::floor(a);
    case Opcode::kCeil:
      return std::ceil(a);
    case Opcode::kTrunc:
      return std::trunc(a);
    case Opcode::kRound:
      return std::nearbyint(a);
    case Opcode::kSqrt:
      return std::sqrt(a);
#define ANYNPU_CASE(opcode, name)           \
  case Opcode::opcode:                      \
    if constexpr (std::is_same_v<T, float>) \
      return math::name(a);                 \
    else                                    \
      return f64::name(a);
      ANYNPU_TILE_UNARY_FUNCTIONS(ANYNPU_CASE)
#undef ANYNPU_CASE
    default:
      return {};
  }
}

/// By opcode; operations that the type does not have give 0.
template <class T>
T unary(Opcode opcode, T a) {
  if constexpr (std::integral<T>) {
    if (opcode == Opcode::kNot) return bit_not(a);
    if constexpr (Integer<T>) return opcode == Opcode::kNeg ? neg(a) : opcode == Opcode::kAbs ? abs(a) : T{};
    return {};
  } else {
    return unary_float(opcode, a);
  }
}

template <class T>
T binary(Opcode opcode, T a, T b) {
  if (opcode == Opcode::kMin) return min(a, b);
  if (opcode == Opcode::kMax) return max(a, b);
  if constexpr (std::integral<T>) {
    if (opcode == Opcode::kAnd) return bit_and(a, b);
    if (opcode == Opcode::kOr) return bit_or(a, b);
    if (opcode == Opcode::kXor) return bit_xor(a, b);
  }
  if constexpr (Integer<T> || Float<T>) {
    switch (opcode) {
      case Opcode::kAdd:
        return add(a, b);
      case Opcode::kSub:
        return sub(a, b);
      case Opcode::kMul:
        return mul(a, b);
      case Opcode::kDiv:
        return div(a, b);
      case Opcode::kRem:
        return rem(a, b);
      default:
        break;
    }
  }
  if constexpr (Integer<T>) {
    if (opcode == Opcode::kShl) return shl(a, b);
    if (opcode == Opcode::kShr) return shr(a, b);
    if (opcode == Opcode::kShrLogical) return shr_logical(a, b);
    if constexpr (std::is_same_v<T, int32_t>)
      if (opcode == Opcode::kMulHigh) return mul_high(a, b);
  }
  if constexpr (Float<T>) {
#define ANYNPU_IF(wanted, name)             \
  if (opcode == Opcode::wanted) {           \
    if constexpr (std::is_same_v<T, float>) \
      return math::name(a, b);              \
    else                                    \
      return f64::name(a, b);               \
  }
    ANYNPU_TILE_BINARY_FUNCTIONS(ANYNPU_IF)
#undef ANYNPU_IF
  }
  return {};
}

template <class T>
bool compare(Opcode opcode, T a, T b) {
  switch (opcode) {
    case Opcode::kEq:
      return a == b;
    case Opcode::kNe:
      return a != b;
    case Opcode::kLt:
      return a < b;
    case Opcode::kLe:
      return a <= b;
    case Opcode::kGt:
      return a > b;
    default:
      return a >= b;
  }
}

}  // namespace lane
}  // namespace anynpu::tile
