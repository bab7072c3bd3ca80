#pragma once

#include <algorithm>
#include <span>
#include <string_view>

#include "base/error.h"

namespace anynpu::ops {

/// The row of that name in a table of operators.
template <class Row>
const Row& row_named(std::span<const Row> rows, std::string_view name) {
  const auto found = std::find_if(rows.begin(), rows.end(), [&](const Row& row) { return row.name == name; });
  require(found != rows.end(), ErrorCode::kInternal, "there is no operator ", name);
  return *found;
}

}  // namespace anynpu::ops
