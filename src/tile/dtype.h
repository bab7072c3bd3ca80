#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <type_traits>

#include "base/half.h"

namespace anynpu::tile {

/// Element types of memory and tiles. f16 and bf16 are stored, moved, selected and converted; arithmetic
/// takes f32, so that each operation rounds once.
enum class DType : uint8_t { kBool, kU8, kI8, kI16, kI32, kI64, kF16, kBF16, kF32, kF64 };
constexpr int kDTypes = 10;

struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

constexpr std::string_view name_of(DType dtype) {
  constexpr std::string_view kNames[] = {"bool", "u8",  "i8",   "i16", "i32",
                                         "i64",  "f16", "bf16", "f32", "f64"};
  return kNames[static_cast<int>(dtype)];
}

constexpr std::optional<DType> dtype_named(std::string_view name) {
  for (int i = 0; i < kDTypes; ++i)
    if (name_of(static_cast<DType>(i)) == name) return static_cast<DType>(i);
  return std::nullopt;
}

/// Bytes of an element.
constexpr size_t size_of(DType dtype) {
  constexpr uint8_t kSizes[] = {1, 1, 1, 2, 4, 8, 2, 2, 4, 8};
  return kSizes[static_cast<int>(dtype)];
}

/// A set of element types.
class DTypes {
 public:
  template <class... Ts>
  constexpr explicit DTypes(Ts... dtypes) : bits_(((1u << static_cast<int>(dtypes)) | ... | 0u)) {}
  constexpr bool contains(DType dtype) const { return (bits_ >> static_cast<int>(dtype) & 1) != 0; }
  constexpr DTypes operator|(DTypes other) const { return DTypes(bits_ | other.bits_, Raw{}); }

 private:
  struct Raw {};
  constexpr DTypes(uint32_t bits, Raw) : bits_(bits) {}
  uint32_t bits_;
};

inline constexpr DTypes kIntegers(DType::kU8, DType::kI8, DType::kI16, DType::kI32, DType::kI64);
inline constexpr DTypes kFloats(DType::kF32, DType::kF64);
inline constexpr DTypes kBits = kIntegers | DTypes(DType::kBool);
inline constexpr DTypes kNumbers = kIntegers | kFloats;
inline constexpr DTypes kComputed = kNumbers | DTypes(DType::kBool);
inline constexpr DTypes kAll = kComputed | DTypes(DType::kF16, DType::kBF16);

/// Calls `function` with std::type_identity of the C++ type of the elements.
template <class Function>
decltype(auto) visit(DType dtype, Function&& function) {
  switch (dtype) {
    case DType::kBool:
      return function(std::type_identity<bool>());
    case DType::kU8:
      return function(std::type_identity<uint8_t>());
    case DType::kI8:
      return function(std::type_identity<int8_t>());
    case DType::kI16:
      return function(std::type_identity<int16_t>());
    case DType::kI32:
      return function(std::type_identity<int32_t>());
    case DType::kI64:
      return function(std::type_identity<int64_t>());
    case DType::kF16:
      return function(std::type_identity<Half>());
    case DType::kBF16:
      return function(std::type_identity<BFloat16>());
    case DType::kF32:
      return function(std::type_identity<float>());
    case DType::kF64:
      break;
  }
  return function(std::type_identity<double>());
}

}  // namespace anynpu::tile
