#pragma once

#include "ops/iteration.h"
#include "ops/launch.h"

namespace anynpu::ops {

/// A copy of tensors of the same sizes, none of them 0, converted.
Launch copied(const View& to, const View& from);

}  // namespace anynpu::ops
