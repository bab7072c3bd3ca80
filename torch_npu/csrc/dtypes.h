#pragma once

#include <c10/core/ScalarType.h>

#include <optional>

#include "tile/dtype.h"

namespace torch_npu {

/// The type of elements in kernels of our own; nothing where they have none of that type.
inline std::optional<anynpu::tile::DType> dtype_of(c10::ScalarType type) {
  using anynpu::tile::DType;
  switch (type) {
    case c10::ScalarType::Bool:
      return DType::kBool;
    case c10::ScalarType::Byte:
      return DType::kU8;
    case c10::ScalarType::Char:
      return DType::kI8;
    case c10::ScalarType::Short:
      return DType::kI16;
    case c10::ScalarType::Int:
      return DType::kI32;
    case c10::ScalarType::Long:
      return DType::kI64;
    case c10::ScalarType::Half:
      return DType::kF16;
    case c10::ScalarType::BFloat16:
      return DType::kBF16;
    case c10::ScalarType::Float:
      return DType::kF32;
    case c10::ScalarType::Double:
      return DType::kF64;
    default:
      return std::nullopt;
  }
}

}  // namespace torch_npu
