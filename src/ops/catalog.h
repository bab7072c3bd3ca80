#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ops/operand.h"

namespace anynpu::ops {

/// What the rows say of an operator, for documentation.
struct Entry {
  std::string_view name, doc;
  DTypes dtypes;      ///< common types that there are kernels for
  std::string types;  ///< how the common type and those of results follow from the operands'
  std::string error;  ///< how far results may be from the exact ones; empty: they are exact
};

/// All operators, table by table.
std::vector<Entry> catalog();

}  // namespace anynpu::ops
