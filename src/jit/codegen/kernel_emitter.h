#pragma once

#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/Module.h>

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "jit/codegen/elements.h"
#include "jit/codegen/emit.h"
#include "jit/codegen/schedule.h"

namespace anynpu::jit {

using tile::Body;
using tile::Buffer;
using tile::Kernel;
using tile::Place;
using tile::Type;
using Block = llvm::BasicBlock;
using Values = std::vector<llvm::Value*>;
using Shape = tile::OpcodeInfo::Shape;

/// Where elements are computed: a row, and `lanes` columns from `col` on, of which `active` count (null:
/// all).
struct Cursor {
  llvm::Value *row, *col;
  int lanes;
  llvm::Value* active = nullptr;
};

/// A region of scratch memory in the function.
struct Region {
  llvm::Value *data, *stride;  ///< stride of a row, in elements
  DType dtype;
};

/// Emits the function of a kernel, as its schedule says.
class KernelEmitter {
 public:
  KernelEmitter(const Kernel& kernel, const Target& target, llvm::Module& module, const std::string& name);

  std::vector<Scratch> run();

 private:
  llvm::ConstantInt* i64(int64_t value) { return b.getInt64(static_cast<uint64_t>(value)); }
  const Type& type(Value value) const { return kernel_.type(value); }
  Storage storage(Value value) const { return schedule_.of(value); }

  // Control.

  Block* make_block(const char* name) { return Block::Create(b.getContext(), name, function_); }

  /// for (i = first; i < last; i += step)
  void for_range(llvm::Value* first, llvm::Value* last, int64_t step,
                 const std::function<void(llvm::Value*)>& body);
  /// The same, of a body that takes values and gives the next ones. Returns the last ones.
  Values for_range(llvm::Value* first, llvm::Value* last, int64_t step, Values carried,
                   const std::function<Values(llvm::Value*, const Values&)>& body);

  void when(llvm::Value* condition, const std::function<void()>& then);

  /// Emits both. Where they are straight code, their instructions take turns: a processor looks only so far
  /// ahead, and one chain of dependent operations leaves its units idle. The second may use what the first
  /// computes, but no memory that the first writes.
  void in_turns(const std::function<void()>& first, const std::function<void()>& second);

  /// Emits a block of the grid or a turn of a loop, at whose start is computed what all of it uses.
  void in_scope(const std::function<void()>& body);

  /// A variable of the function, which becomes a register.
  llvm::AllocaInst* variable(llvm::Type* type, unsigned count = 1);

  // Arguments and scratch.

  /// At the start of the function, so that it is there everywhere.
  llvm::Value* argument(size_t number, bool is_address = false);

  void load_arguments();

  Region new_region(const Index& rows, const Index& cols, DType dtype);
  llvm::Value* padded(llvm::Value* count);

  Region region(Value value);
  llvm::Value* address(const Region& region, llvm::Value* row, llvm::Value* col);

  // Indices.

  llvm::Value* index(const Index& index);
  /// Of a division, computed once, at the start of the innermost scope that it depends on.
  llvm::Value* quotient(const Index& index);
  std::optional<size_t> scope_of(
      const Index& index) const;  ///< nothing: it depends on memory, or none is open
  llvm::Value* floor_div(llvm::Value* x, llvm::Value* y);

  // Elements of values.

  llvm::Value* eval_scalar(Value value) { return eval(value, {i64(0), i64(0), 1}); }

  /// The elements of a value at a cursor; what a tile has once, it has everywhere.
  llvm::Value* eval(Value value, Cursor at);

  /// A row's scalar, computed ahead of the open column loop.
  llvm::Value* eval_for_row(Value value, llvm::Value* row);

  llvm::Value* compute(Value value, const Cursor& at);

  const Instruction* definition(Value value);
  void collect_definitions(const Body& body);

  Values elements(const Instruction& instruction, const Cursor& at);

  llvm::Value* iota(const Instruction& instruction, const Cursor& at);

  // Memory.

  llvm::Value* from_memory(DType dtype, llvm::Value* value);
  llvm::Value* to_memory(DType dtype, llvm::Value* value);
  llvm::Type* vector_in_memory(DType dtype, int lanes);
  llvm::Align align(DType dtype) { return llvm::Align(tile::size_of(dtype)); }

  llvm::Value* load_vector(DType dtype, llvm::Value* address, int lanes);
  void store_vector(DType dtype, llvm::Value* address, llvm::Value* value);
  /// Which of the lanes are active, as a mask.
  llvm::Value* active_mask(const Cursor& at);

  /// How an instruction reaches its buffer at a cursor.
  struct Access {
    const Buffer* buffer;
    const Values* strides;          ///< of its dimensions
    llvm::Value *address, *stride;  ///< of the first lane, without what tiles of positions add
    std::vector<std::pair<int, llvm::Value*>> positions;  ///< dimension and vector, from tiles
    llvm::Value* inside = nullptr;  ///< whether positions from data are in range, where uniform; or null
    std::optional<int64_t> known_stride;  ///< of the columns; of one element 1
  };

  Access access(const Instruction& instruction, const Cursor& at);
  static bool is_from_data(const Index& place);

  void check(Access& access, const Instruction& instruction, int d, llvm::Value* position, const Cursor& at);
  void fault(int buffer, int dimension, llvm::Value* position);

  bool is_contiguous(const Instruction& instruction, const Access& access) const;
  /// Whether each lane is one of the tile's, at `stride` from the one before it.
  static bool is_whole(const Instruction& instruction, const Access& access, const Cursor& at);
  llvm::Value* lane_address(const Access& access, int lane);
  /// Whether the positions of all lanes are in range; and the elements there, when they are.
  llvm::Value* every_second(const Access& access, const Cursor& at);
  llvm::Value* all_inside(const Access& access, const Cursor& at);
  llvm::Value* gathered(const Access& access, const Cursor& at);
  /// The active lanes that a mask does not exclude and whose positions are in range, one by one.
  void load_lanes(const Instruction& instruction, const Access& access, const Cursor& at,
                  llvm::AllocaInst* staged);

  llvm::Value* load(const Instruction& instruction, const Cursor& at);

  /// To the first cache.
  void fetch(llvm::Value* address);

  llvm::Value* load_inside(const Instruction& instruction, const Access& access, const Cursor& at);

  void store(const Instruction& instruction, const Cursor& at);

  void store_inside(const Instruction& instruction, const Access& access, llvm::Value* value,
                    const Cursor& at);

  /// Calls `body` with the address of each active lane that a mask does not exclude and whose positions are
  /// in range, in order.
  void for_each_lane(const Instruction& instruction, const Access& access, const Cursor& at,
                     const std::function<void(llvm::Value*, llvm::Value*)>& body);

  // Steps.

  void steps(const std::vector<Step>& steps);

  void scalar(const Instruction& instruction);

  void loop(const Step& step);

  /// Moves what a turn of a loop yields to where the next one finds it.
  void carry(const Instruction& instruction, const std::vector<llvm::AllocaInst*>& scalars);

  void copy(const Region& from, const Region& to, const Type& shape);

  /// In squares of `lanes` rows and columns: from memory to memory, or to what takes the elements.
  void transpose(const Step& step);
  /// Computes the operand's elements; `take` gets those of the result, a row's `lanes` at a time.
  void transpose_in_registers(Value operand, const std::function<void(llvm::Value*, const Cursor&)>& take);
  /// Such a square in registers, by rows.
  void transpose(Values& rows);

  // Products of matrices: blocks of rows and vectors, in registers.

  /// The most that a product computes at once.
  ProductBlock register_block(const Instruction& instruction) const;

  /// `rows` rows from `row` on, and `vectors` vectors of columns from `col` on. One that is not whole ends at
  /// `last_row` and before column `cols`, and repeats the last row and the last vector.
  struct SumBlock {
    llvm::Value *row, *col;
    int rows, vectors;
    llvm::Value *last_row = nullptr, *cols = nullptr;
  };
  llvm::Value* is_whole(const SumBlock& block, llvm::Value* rows, llvm::Value* cols);
  /// Where a block's sum of that number is; they count vector by vector, row by row.
  Cursor cursor(const SumBlock& block, size_t sum);
  llvm::Value* extent(const Index& extent);

  /// A product, and what its elements go to: from the registers where one block is all of it.
  void matmul(const Step& step);
  void fetch_block(const Instruction& added, const SumBlock& block);
  void matmul_to_memory(const Instruction& instruction);
  /// Gives `take` the sums of a block; some turns before, if there are so many, comes `near_end`.
  void product(const Instruction& instruction, const SumBlock& block,
               const std::function<void(const Values&)>& take, const std::function<void()>& near_end = {});
  /// c[i, j] + a[i, k] * b[k, j]
  Values add_products(const Instruction& instruction, const SumBlock& block, llvm::Value* k,
                      const Values& sums);
  /// What a step's nest does with elements of its result.
  void take_in_registers(const Step& step, llvm::Value* elements, const Cursor& at);

  void forget();

  // Nests.

  void nest(const Nest& nest);

  /// One row of a nest.
  void row(const Nest& nest, llvm::Value* r);

  /// Registers of one-row nests are there for all that follows.
  void nest_registers_to_scope(const Nest& nest);

  static bool is_row_reduction(const Instruction& instruction);

  /// A store, a column reduction, a scan, or a value that goes to memory, at a cursor.
  void part(const Instruction& instruction, const Cursor& at);

  /// Padding after the last column is written too.
  void keep(Value value, llvm::Value* elements, const Cursor& at);

  /// A reduction over the single column of a tile.
  void reduce_one(const Instruction& instruction, const Cursor& at);

  void give_row_result(const Instruction& instruction, const Values& state, llvm::Value* r);

  void columns(const ColumnLoop& loop, llvm::Value* r);

  void chunk(const ColumnLoop& loop, const Cursor& at);

  /// The columns, `lanes` at a time, or at first twice as many where they compute much; then what is left.
  void whole_columns(const ColumnLoop& loop, llvm::Value* r, llvm::Value* cols);

  // Reductions along columns: kReduceLanes running states, in vectors.

  struct Running {
    const Instruction* instruction;
    DType dtype;
    std::vector<std::vector<llvm::AllocaInst*>> states;  ///< by vector, then by component
    std::vector<Region> partial;                         ///< by component: the result of each block
    /// Of row_moments, while all lanes have taken as many elements: 1 / that, with the next one.
    llvm::Value* share = nullptr;
  };

  void reduced_columns(const ColumnLoop& loop, llvm::Value* r, llvm::Value* cols);

  Running make_running(const Instruction& instruction, int vectors, const Index& blocks);

  Values load_state(const std::vector<llvm::AllocaInst*>& state);
  void store_state(const std::vector<llvm::AllocaInst*>& state, const Values& values);

  /// Returns whether all lanes took as many elements.
  llvm::Value* reduce_block(const ColumnLoop& loop, llvm::Value* r, std::vector<Running>& running,
                            llvm::Value* begin, llvm::Value* end);

  /// Whether it counts elements, which are as many for all lanes but in the rest of a block.
  static bool counts(const Running& running);
  /// How many elements of [begin, end), whole turns of the lanes, each of these takes; and 1 / that.
  llvm::Value* elements_of_lane(const Running& running, llvm::Value* begin, llvm::Value* end);
  llvm::Value* share_of_one(const Running& running, llvm::Value* begin, llvm::Value* end);

  Values taken(const Running& running, const Values& state, const Cursor& at);

  /// The last elements of a block, less than one for each lane: with states in memory, a vector at a time.
  void reduce_rest(const ColumnLoop& loop, llvm::Value* r, std::vector<Running>& running, llvm::Value* begin,
                   llvm::Value* end);

  /// Lane l takes lane l + 16, l + 8, ... ; the first one is the block's result.
  void finish_block(const Running& running, llvm::Value* number, llvm::Value* even);
  Values merged_lanes(const Running& running, bool even);
  llvm::Value* part_of(llvm::Value* vector, int first, int count);

  void reduce_in_memory(Opcode opcode, DType dtype, const std::vector<Region>& partial, llvm::Value* count,
                        llvm::Value* stride);

  // Reductions along rows: kReduceLanes states for each column, in memory; and the result of each block.

  struct Columns {
    std::vector<Region> states, partial;  ///< by component
    Index rows = 1, cols = 1;
  };

  void start_column_reduction(const Instruction& instruction);

  /// All states to the identity.
  void fill_states(const Instruction& instruction, const Columns& columns);

  llvm::Value* used_lanes(const Instruction& instruction, const Columns& columns);
  llvm::Value* is_used(const Instruction& instruction, const Columns& columns, int lane);

  void take_column_reduction(const Instruction& instruction, const Cursor& at);

  /// The states of some columns to the result of the block, and to the identity again.
  void end_block(const Instruction& instruction, const Columns& columns, const Cursor& at);

  void end_column_reduction(const Instruction& instruction);

  // Scans: the row goes to memory, and is summed up there.

  void start_scans(const ColumnLoop& loop);
  static Opcode scanned(Opcode opcode);

  void scan(const Instruction& instruction, const Cursor& at);

  const Kernel& kernel_;
  const Target& target_;
  const Schedule schedule_;
  llvm::Module& module_;
  llvm::IRBuilder<> b;
  Elements e;
  llvm::Function* function_ = nullptr;
  Block* entry_ = nullptr;
  // Of the open column loop: where a row's scalars are computed, and where that goes on.
  Block *preheader_ = nullptr, *start_ = nullptr;

  Values sizes_, data_;
  std::vector<Values> strides_;
  size_t first_scratch_ = 0;
  std::vector<Scratch> scratch_;
  llvm::Value* block_ = nullptr;
  std::map<int64_t, llvm::Value*> counters_;
  struct Scope {
    Block* head;
    std::vector<std::pair<Index, llvm::Value*>> quotients;
  };
  std::vector<Scope> scopes_;                 // the open ones, the grid's block first
  std::map<int64_t, size_t> counter_scopes_;  // of which one a loop's counter is
  std::map<Value, const Instruction*> definitions_;
  std::map<Value, llvm::Value*> registers_;               // 1 x 1
  std::map<Value, llvm::Value*> row_memo_, column_memo_;  // of this row; of these columns
  std::map<Value, llvm::Value*> regions_;
  std::set<Value> in_memory_, kept_;  // by loops before this one; by this one
  std::map<const Instruction*, std::vector<Region>> partials_;
  std::map<const Instruction*, Columns> column_reductions_;
  std::map<const Instruction*, llvm::AllocaInst*> scans_;
};

}  // namespace anynpu::jit
