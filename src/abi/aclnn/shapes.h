#pragma once

#include <cstdint>
#include <ostream>
#include <span>
#include <vector>

#include "abi/aclnn/executor.h"

namespace anynpu::aclnn {

// What plans check of tensors. All of them fail naming the argument, what was given and what is accepted.

/// Prints as [2, 3].
struct Listed {
  std::span<const int64_t> values;
};
std::ostream& operator<<(std::ostream& out, Listed list);
/// Prints as f16, f32.
struct NamesOf {
  tile::DTypes dtypes;
};
std::ostream& operator<<(std::ostream& out, NamesOf names);

/// The sizes that the tensors among `operands` are broadcast to.
std::vector<int64_t> broadcast_of(std::span<const Bound* const> operands);
void check_shape(const Bound& tensor, std::span<const int64_t> sizes);
/// The dimension that `dim` names, counted from the end where it is negative, of a tensor of that many; one
/// without dimensions counts as having one.
size_t wrapped_dim(const char* name, int64_t dim, size_t dims);
void check_type(const Bound& tensor, tile::DTypes accepted);

}  // namespace anynpu::aclnn
