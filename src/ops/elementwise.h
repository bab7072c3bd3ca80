#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ops/formula.h"
#include "ops/launch.h"
#include "ops/operand.h"
#include "tile/ir.h"

namespace anynpu::ops {

/// A number that an operator takes beside tensors: of the type that is computed with.
struct Number {
  std::string_view name;
  std::optional<double> otherwise = {};  ///< what it is where a call does not say
};

/// What an operator's kernels are made for, among a few: its place in `values` is the formula's place.
struct Choice {
  std::string_view name;
  std::vector<std::string_view> values;
};

/// An operator whose elements follow from the operands' elements at the same place. Operands are broadcast,
/// and promoted to a common type (but masks); results are rounded to it once.
struct Elementwise {
  std::string_view name, doc;  ///< `doc`: what it computes
  /// Of the operands, then the numbers. With a choice, one for each of its values.
  std::vector<Formula> formulas;
  DTypes dtypes;                    ///< common types that there are kernels for
  DTypes with_number = tile::kAll;  ///< of these, those with an operand that is a number
  int operands = 1;
  uint8_t masks = 0;    ///< bit i: operand i is bool and takes no part in promotion
  uint8_t follows = 0;  ///< bit i: operand i takes no part in promotion, and is converted to the compute type
  std::vector<Number> numbers = {};
  std::optional<Choice> choice = {};
  bool compares = false;        ///< the result is bool
  DTypes accepts = tile::kAll;  ///< types that an operand may have
  bool promotes = true;         ///< operands may be of several types
  bool gives_floats = false;    ///< operands that are promoted to bool or integers are converted to floats
  bool casts = false;    ///< a result of another type than the common one is accepted, and converted to
  bool cancels = false;  ///< sums of the formula may: errors are relative to the largest operand
  /// Formulas over double are the reference for arguments within.
  struct Domain {
    double least, most;
  } domain = {-100, 100};
  std::string_view aten = "";  ///< PyTorch's operators of that name, all overloads; empty: none
};

inline bool is_mask(const Elementwise& op, size_t operand) { return (op.masks >> operand & 1) != 0; }
inline bool follows(const Elementwise& op, size_t operand) { return (op.follows >> operand & 1) != 0; }
/// What operands are converted to that are promoted to that type.
inline DType common_type(const Elementwise& op, DType promoted, DType usual_float = DType::kF32) {
  return op.gives_floats && tile::kBits.contains(promoted) ? usual_float : promoted;
}
inline size_t results_of(const Elementwise& op) { return op.formulas[0].results; }

/// All of them, by name.
std::span<const Elementwise> elementwise_ops();
const Elementwise& elementwise_op(std::string_view name);

/// One call: sizes, the innermost dimension first, none of them 0; the results, then the operands. Results
/// may lie where operands do, index by index.
struct ElementwiseCall {
  const Elementwise& op;
  size_t choice = 0;
  DType common = DType::kF32;
  std::span<const int64_t> sizes;
  std::span<const Operand> operands;
  std::span<const tile::Literal> numbers;  ///< of the compute type
};

/// The kernel for calls of that kind: of any sizes and strides, but for which operands are numbers, which lie
/// one after another or stay along the innermost dimension, and how many dimensions there are.
tile::Kernel elementwise_kernel(const ElementwiseCall& call);

/// The call's kernel with its arguments.
Launch prepare(const ElementwiseCall& call);

}  // namespace anynpu::ops
