#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/iteration.h"
#include "ops/launch.h"
#include "ops/operand.h"

namespace anynpu::ops {

/// The type of elements of that many bytes, 1, 2, 4 or 8, that are moved and never computed with.
DType bits_of(size_t bytes);

/// A copy of the elements of `from` into `to`, over dimensions of these sizes, the innermost first and none
/// of them 0. Types are converted as by a cast of tile IR; elements of one type keep their bits. `from` may
/// be a number, of the type that its elements are computed in.
Launch prepare_copy(std::span<const int64_t> sizes, const Operand& to, const Operand& from);
/// The same of tensors of the same sizes, none of them 0.
Launch prepare_copy(const View& to, const View& from);
/// `view` with dimensions [first, last) as one; where no one stride goes along them, that of a copy, which
/// `launches` then make.
View merged_or_copied(const View& view, size_t first, size_t last, const TakeMemory& take,
                      std::vector<Launch>& launches);

}  // namespace anynpu::ops
