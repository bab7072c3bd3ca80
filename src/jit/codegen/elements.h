#pragma once

#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/Module.h>

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "jit/codegen/emit.h"
#include "tile/lane.h"

namespace anynpu::jit {

using tile::DType;
using tile::Opcode;

/// Emits the elements of operations: vectors of `lanes` elements, or scalars where lanes is 1. bool is i1,
/// and bf16 its bits.
class Elements {
 public:
  Elements(llvm::IRBuilder<>& builder, llvm::Module& module, const Target& target)
      : b(builder), module_(module), target_(target) {}

  llvm::Type* type(DType dtype, int lanes) const;
  llvm::Type* memory_type(DType dtype) const;  ///< of one element
  llvm::Value* constant(DType dtype, const tile::Literal& literal, int lanes) const;
  llvm::Value* splat(llvm::Value* scalar, int lanes) const;
  /// 0, 1, 2, ... as i64.
  llvm::Value* iota(int lanes) const;

  llvm::Value* unary(Opcode opcode, DType dtype, llvm::Value* a);
  llvm::Value* binary(Opcode opcode, DType dtype, llvm::Value* a, llvm::Value* b);
  llvm::Value* compare(Opcode opcode, DType dtype, llvm::Value* a, llvm::Value* b);
  llvm::Value* fma(llvm::Value* a, llvm::Value* b, llvm::Value* c);
  /// c + a * b, of the products' opcodes.
  llvm::Value* product_added(Opcode opcode, llvm::Value* a, llvm::Value* b, llvm::Value* c);
  llvm::Value* convert(DType from, DType to, bool saturate, llvm::Value* value);
  std::vector<llvm::Value*> philox(llvm::Value* seed, llvm::Value* offset, llvm::Value* subsequence);

  // Reductions, by their row_ opcode; a state has one value for each of `components`.
  static std::vector<DType> components(Opcode opcode, DType dtype);
  std::vector<llvm::Value*> identity(Opcode opcode, DType dtype, int lanes);
  std::vector<llvm::Value*> take(Opcode opcode, DType dtype, const std::vector<llvm::Value*>& state,
                                 llvm::Value* element, llvm::Value* position);
  /// The same of row_moments, but for the count, for states of which `share` is 1 / count after it.
  std::vector<llvm::Value*> take_moments(llvm::Value* mean, llvm::Value* squares, llvm::Value* element,
                                         llvm::Value* share);
  std::vector<llvm::Value*> merge(Opcode opcode, DType dtype, const std::vector<llvm::Value*>& a,
                                  const std::vector<llvm::Value*>& b);
  /// The same of row_moments, for states of as many elements, which may be none.
  std::vector<llvm::Value*> merge_even_moments(const std::vector<llvm::Value*>& a,
                                               const std::vector<llvm::Value*>& b);

 private:
  llvm::Value* bf16_pairs_added(llvm::Value* a, llvm::Value* b, llvm::Value* c);
  llvm::Value* i16_pairs_added(llvm::Value* a, llvm::Value* b, llvm::Value* c);
  llvm::Value* extreme(bool greatest, llvm::Value* a, llvm::Value* b);
  llvm::Value* divide(DType dtype, llvm::Value* a, llvm::Value* b, bool remainder);
  llvm::Value* shift(Opcode opcode, DType dtype, llvm::Value* a, llvm::Value* b);
  llvm::Value* call_for_each(const char* name, const std::vector<llvm::Value*>& operands);
  llvm::Value* to_float(DType from, llvm::Value* value);
  llvm::Value* to_integer(llvm::Value* value, DType to);
  llvm::Value* to_integer_saturated(llvm::Value* value, DType to);
  llvm::Value* to_bfloat16(llvm::Value* value);

  llvm::IRBuilder<>& b;
  llvm::Module& module_;
  const Target& target_;
};

/// The number of elements of an LLVM value.
int lanes_of(const llvm::Value* value);

}  // namespace anynpu::jit
