#pragma once

#include <string>
#include <vector>

#include "tile/ir.h"

namespace anynpu::jit {

using tile::Index;
using tile::Instruction;
using tile::Value;

/// Where the elements of a value are.
enum class Storage : uint8_t {
  kComputed,  ///< nowhere: computed where they are used
  kRegister,  ///< one column: in a register while its nest works on a row; 1 x 1: in a register from then on
  kRow,       ///< in memory for one row, while its nest works on that row
  kTile,      ///< in memory
};

/// A loop over the columns of a row.
struct ColumnLoop {
  int phase;                              ///< uses what reductions and scans of earlier phases give
  Index cols;                             ///< 1: no loop
  std::vector<const Instruction*> parts;  ///< stores, reductions and scans, what defines kept values, and
                                          ///< loads of memory that it writes; in program order
  int cost = 0;                           ///< about how many instructions an element takes
};

/// A loop over rows; in each the column loops, by phase.
struct Nest {
  Index rows;
  std::vector<ColumnLoop> loops;
};

/// A part of a body, in order.
struct Step {
  enum class Kind : uint8_t { kScalar, kNest, kLoop, kTranspose, kMatmul, kYield } kind;
  const Instruction* instruction = nullptr;  ///< not of nests
  /// Of a product of matrices or a transpose: the loop that takes its elements, where no other one does.
  Nest nest = {1, {}};
  std::vector<Step> body = {};  ///< of loops
};

/// What is computed in which loop. Elementwise chains are computed where their results are used, in
/// registers. What loops other than its own use is computed again there when that costs little, else kept in
/// memory.
struct Schedule {
  std::vector<Step> steps;
  std::vector<Storage> storage;  ///< by value
  Storage of(Value value) const { return storage[number_of(value)]; }
};

/// The schedule of a verified kernel, which must outlive it.
Schedule schedule(const tile::Kernel& kernel);

/// Every value that an instruction needs where it is computed: operands, positions, masks, scalars of
/// indices.
std::vector<Value> needs(const tile::Kernel& kernel, const Instruction& instruction);

/// One line a loop: its phase, its columns, and its parts. For tests and for people.
std::string text_of(const tile::Kernel& kernel, const Schedule& schedule);

}  // namespace anynpu::jit
