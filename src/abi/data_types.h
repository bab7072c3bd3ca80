#pragma once

#include <cstddef>
#include <optional>

#include "acl/acl_base.h"
#include "tile/dtype.h"

namespace anynpu::abi {

/// A published type of elements.
struct DataType {
  aclDataType type;
  const char* name;
  size_t bits;
  std::optional<tile::DType> dtype = {};  ///< what it is in kernels; nothing where they have none
};
const DataType* find_data_type(aclDataType type);  ///< null where none is published

/// The type in kernels of what the argument has. Raises kUnsupported where there is none.
tile::DType dtype_of(aclDataType type, const char* argument);

}  // namespace anynpu::abi
