#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "abi/aclnn/executor.h"

namespace anynpu::aclnn {

// What plans check of tensors. All of them fail naming the argument, what was given and what is accepted.

std::string text_of(std::span<const int64_t> sizes);
std::string names_of(tile::DTypes dtypes);

/// The sizes that the tensors among `operands` are broadcast to.
std::vector<int64_t> broadcast_of(std::span<const Bound* const> operands);
void check_shape(const Bound& tensor, std::span<const int64_t> sizes);
void check_type(const Bound& tensor, tile::DTypes accepted);

/// A copy of tensors of one shape that is not empty, converted.
ops::Launch copied(const ops::View& to, const ops::View& from);

}  // namespace anynpu::aclnn
