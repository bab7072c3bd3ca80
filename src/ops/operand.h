#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "jit/arguments.h"
#include "tile/builder.h"

namespace anynpu::ops {

using tile::DType;
using tile::DTypes;

inline constexpr DTypes kHalves(DType::kF16, DType::kBF16);
inline constexpr DTypes kAllFloats = tile::kFloats | kHalves;
inline constexpr DTypes kAllNumbers = tile::kNumbers | kHalves;

/// A tensor, or a number in its place, of a call whose dimensions are coalesced.
struct Operand {
  DType dtype = DType::kF32;
  void* data = nullptr;                   ///< null: a number
  std::span<const int64_t> strides = {};  ///< in bytes, the innermost dimension first
  tile::Literal number = 0.0;             ///< of the type that is computed with: see compute_type()
};

/// What f16 and bf16 are computed in: f32. Bool: u8. Others: themselves.
DType compute_type(DType common);

/// The greatest finite number of a type of floats.
double greatest_of(DType dtype);

/// How a tensor lies along one dimension: what kernels are made for.
enum class Lies : uint8_t { kStays, kAdjacent, kApart };
Lies lies(DType dtype, int64_t stride);  ///< in bytes

/// `value` in another type, or itself.
tile::Expr converted(const tile::Expr& value, DType dtype);
/// `value` as a tile of that type, which it is broadcast to.
tile::Expr shaped(const tile::Expr& value, const tile::Type& type);

/// Adds the argument of a kernel's buffer, whose dimensions are those of `strides` (in bytes, the innermost
/// first), the outermost first.
void add_buffer(jit::PackedArguments& arguments, const Operand& operand, std::span<const int64_t> strides);

}  // namespace anynpu::ops
