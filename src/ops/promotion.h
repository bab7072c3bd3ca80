#pragma once

#include <cstdint>
#include <span>

#include "ops/iteration.h"
#include "ops/operand.h"

namespace anynpu::ops {

/// What takes part in the promotion of an operator's operands, and how much it weighs: a heavier one yields
/// to the type of a lighter one only where that is of a higher kind (bool, integer, float).
struct Promotable {
  enum class Weight : uint8_t { kNumber, kZeroDimensional, kTensor };
  DType dtype;
  Weight weight = Weight::kTensor;
};

/// The type that holds the values of both, as in PyTorch: of an integer and a float the float, of u8 and i8
/// i16, of f16 and bf16 f32.
DType promoted(DType a, DType b);
/// The common type of operands, of which there is one at least, as in PyTorch. A float that is a number
/// counts as f32.
DType promoted(std::span<const Promotable> operands);

/// The same of tensors that all weigh the same.
DType promoted(std::span<const View> operands);

/// Whether a type of integers has that one.
bool holds(DType dtype, int64_t integer);

/// Whether a result of type `from` is let into a tensor of type `to`: not where a kind would be lost.
bool can_cast(DType from, DType to);

}  // namespace anynpu::ops
