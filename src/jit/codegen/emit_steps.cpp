// The parts of a schedule: scalars, loops, matrix products, nests, scans.

#include <algorithm>
#include <utility>

#include "jit/codegen/kernel_emitter.h"

namespace anynpu::jit {

namespace {

/// From what cost on a loop waits for its own operations rather than for memory.
constexpr int kDear = 12;

}  // namespace

// Steps.

void KernelEmitter::steps(const std::vector<Step>& steps) {
  for (const Step& step : steps) {
    forget();
    switch (step.kind) {
      case Step::Kind::kScalar:
        scalar(*step.instruction);
        break;
      case Step::Kind::kNest:
        nest(step.nest);
        break;
      case Step::Kind::kLoop:
        loop(step);
        break;
      case Step::Kind::kTranspose:
        transpose(step);
        break;
      case Step::Kind::kMatmul:
        matmul(step);
        break;
      case Step::Kind::kYield:
        break;  // by its loop
    }
  }
}

void KernelEmitter::scalar(const Instruction& instruction) {
  const Values results = elements(instruction, {i64(0), i64(0), 1});
  for (size_t i = 0; i < results.size(); ++i) registers_[instruction.results[i]] = results[i];
}

void KernelEmitter::loop(const Step& step) {
  const Instruction& instruction = *step.instruction;
  const Body& inner = instruction.body[0];
  const size_t count = instruction.operands.size();
  std::vector<llvm::AllocaInst*> scalars(count);
  for (size_t k = 0; k < count; ++k) {
    const Value argument = inner.arguments[k];
    if (type(argument).is_scalar()) {
      scalars[k] = variable(e.type(type(argument).dtype, 1));
      b.CreateStore(eval_scalar(instruction.operands[k]), scalars[k]);
    } else {
      copy(region(instruction.operands[k]), region(argument), type(argument));
      in_memory_.insert(argument);
    }
  }
  llvm::Value *first = index(instruction.first), *last = index(instruction.last);
  for_range(first, last, *instruction.step.constant(), [&](llvm::Value* counter) {
    counters_[instruction.counter] = counter;
    for (size_t k = 0; k < count; ++k)
      if (scalars[k] != nullptr)
        registers_[inner.arguments[k]] = b.CreateLoad(scalars[k]->getAllocatedType(), scalars[k]);
    in_scope([&] {
      counter_scopes_[instruction.counter] = scopes_.size() - 1;
      steps(step.body);
      carry(instruction, scalars);
    });
  });
  forget();
  for (size_t k = 0; k < count; ++k) {
    const Value result = instruction.results[k];
    if (scalars[k] != nullptr)
      registers_[result] = b.CreateLoad(scalars[k]->getAllocatedType(), scalars[k]);
    else
      regions_[result] = region(inner.arguments[k]).data, in_memory_.insert(result);
  }
}

void KernelEmitter::carry(const Instruction& instruction, const std::vector<llvm::AllocaInst*>& scalars) {
  const Body& inner = instruction.body[0];
  const auto& yielded = inner.instructions.back().operands;
  Values moved(yielded.size());
  std::vector<std::optional<Region>> sources(yielded.size());
  for (size_t k = 0; k < yielded.size(); ++k) {
    const Type& shape = type(yielded[k]);
    if (scalars[k] != nullptr) {
      moved[k] = eval_scalar(yielded[k]);
      continue;
    }
    sources[k] = region(yielded[k]);
    const bool is_argument = std::ranges::find(inner.arguments, yielded[k]) != inner.arguments.end();
    if (is_argument && yielded[k] != inner.arguments[k]) {  // which is overwritten in this turn
      const Region aside = new_region(shape.rows, shape.cols, shape.dtype);
      copy(*sources[k], aside, shape);
      sources[k] = aside;
    }
  }
  for (size_t k = 0; k < yielded.size(); ++k) {
    if (scalars[k] != nullptr)
      b.CreateStore(moved[k], scalars[k]);
    else if (yielded[k] != inner.arguments[k])
      copy(*sources[k], region(inner.arguments[k]), type(yielded[k]));
  }
}

void KernelEmitter::copy(const Region& from, const Region& to, const Type& shape) {
  llvm::Value* rows = b.CreateBinaryIntrinsic(llvm::Intrinsic::smax, index(shape.rows), i64(0));
  llvm::Value* bytes =
      b.CreateMul(b.CreateMul(rows, from.stride), i64(static_cast<int64_t>(tile::size_of(shape.dtype))));
  b.CreateMemCpy(to.data, llvm::Align(64), from.data, llvm::Align(64), bytes);
}

void KernelEmitter::transpose(const Step& step) {
  const Instruction& instruction = *step.instruction;
  const Value operand = instruction.operands[0], result = instruction.results[0];
  if (!step.nest.loops.empty())
    return transpose_in_registers(
        operand, [&](llvm::Value* elements, const Cursor& at) { take_in_registers(step, elements, at); });
  const Type& shape = type(operand);
  const Region to = region(result);
  in_memory_.insert(result);
  if (shape.is_scalar()) return store_vector(shape.dtype, to.data, eval_scalar(operand));
  if (!in_memory_.contains(operand))
    return transpose_in_registers(operand, [&](llvm::Value* elements, const Cursor& at) {
      store_vector(shape.dtype, address(to, at.row, at.col), elements);
    });
  const Region from = region(operand);
  const int lanes = target_.registers.lanes;
  llvm::Type* vector = vector_in_memory(shape.dtype, lanes);
  llvm::Value *rows = index(shape.rows), *cols = index(shape.cols);
  const auto at_most = [&](llvm::Value* i, llvm::Value* count) {
    return b.CreateBinaryIntrinsic(llvm::Intrinsic::smin, i, b.CreateSub(count, i64(1)));
  };
  for_range(i64(0), rows, lanes, [&](llvm::Value* r) {
    for_range(i64(0), cols, lanes, [&](llvm::Value* c) {
      Values square;
      for (int i = 0; i < lanes; ++i) {
        llvm::Value* row = at_most(b.CreateAdd(r, i64(i)), rows);
        square.push_back(b.CreateAlignedLoad(vector, address(from, row, c), align(shape.dtype)));
      }
      transpose(square);
      // What is past the last row goes to that row, before what belongs there.
      for (int i = lanes; i-- > 0;) {
        llvm::Value* row = at_most(b.CreateAdd(c, i64(i)), cols);
        b.CreateAlignedStore(square[static_cast<size_t>(i)], address(to, row, r), align(shape.dtype));
      }
    });
  });
}

void KernelEmitter::transpose_in_registers(Value operand,
                                           const std::function<void(llvm::Value*, const Cursor&)>& take) {
  llvm::Value *rows = extent(type(operand).rows), *cols = extent(type(operand).cols);
  const int lanes = target_.registers.lanes;
  const auto left = [&](llvm::Value* count, llvm::Value* from) {
    return b.CreateBinaryIntrinsic(llvm::Intrinsic::smin, b.CreateSub(count, from), i64(lanes));
  };
  for_range(i64(0), rows, lanes, [&](llvm::Value* r) {
    for_range(i64(0), cols, lanes, [&](llvm::Value* c) {
      llvm::Value *rows_left = left(rows, r), *cols_left = left(cols, c);
      llvm::Value* whole =
          b.CreateAnd(b.CreateICmpEQ(rows_left, i64(lanes)), b.CreateICmpEQ(cols_left, i64(lanes)));
      // Of a part, the last row and the last column are repeated.
      const auto square = [&](llvm::Value* active_cols, llvm::Value* active_rows) {
        const auto nth = [&](llvm::Value* first, int i, llvm::Value* active) {
          llvm::Value* n = i64(i);
          if (active != nullptr)
            n = b.CreateBinaryIntrinsic(llvm::Intrinsic::smin, n, b.CreateSub(active, i64(1)));
          return b.CreateAdd(first, n);
        };
        Values elements;
        for (int i = 0; i < lanes; ++i) {
          forget();
          elements.push_back(eval(operand, {nth(r, i, active_rows), c, lanes, active_cols}));
        }
        transpose(elements);
        for (int i = lanes; i-- > 0;)
          take(elements[static_cast<size_t>(i)], {nth(c, i, active_cols), r, lanes, active_rows});
      };
      when(whole, [&] { square(nullptr, nullptr); });
      when(b.CreateNot(whole), [&] { square(cols_left, rows_left); });
    });
  });
  forget();
}

void KernelEmitter::take_in_registers(const Step& step, llvm::Value* elements, const Cursor& at) {
  forget();
  column_memo_[step.instruction->results[0]] = elements;
  for (const Instruction* part : step.nest.loops[0].parts) this->part(*part, at);
}

/// Each stage shuffles row i with row i + n / 2 into rows 2 i and 2 i + 1: the bits of an element's row and
/// column, as one number, are rotated by one.
void KernelEmitter::transpose(Values& rows) {
  const size_t count = rows.size();
  llvm::SmallVector<int> halves[2];
  for (size_t i = 0; i < count; ++i)
    for (size_t half = 0; half < 2; ++half)
      halves[half].push_back(static_cast<int>(half * count / 2 + i / 2 + i % 2 * count));
  for (size_t stage = 1; stage < count; stage *= 2) {
    Values next;
    for (size_t i = 0; i < count; ++i)
      next.push_back(b.CreateShuffleVector(rows[i / 2], rows[i / 2 + count / 2], halves[i % 2]));
    rows = std::move(next);
  }
}

void KernelEmitter::forget() {
  row_memo_.clear();
  column_memo_.clear();
}

// Nests.

void KernelEmitter::nest(const Nest& nest) {
  for (const ColumnLoop& loop : nest.loops)
    for (const Instruction* part : loop.parts)
      if (tile::info(part->opcode).shape == Shape::kReduceRows) start_column_reduction(*part);
  if (nest.rows.is(1)) {
    row(nest, i64(0));
  } else {
    for_range(i64(0), index(nest.rows), 1, [&](llvm::Value* r) { row(nest, r); });
    row_memo_.clear();
  }
  for (const ColumnLoop& loop : nest.loops)
    for (const Instruction* part : loop.parts)
      if (tile::info(part->opcode).shape == Shape::kReduceRows) end_column_reduction(*part);
  nest_registers_to_scope(nest);
}

void KernelEmitter::row(const Nest& nest, llvm::Value* r) {
  row_memo_.clear();
  for (const ColumnLoop& loop : nest.loops) {
    if (loop.cols.is(1)) {
      column_memo_.clear();
      for (const Instruction* part : loop.parts) this->part(*part, {r, i64(0), 1});
      in_memory_.merge(kept_);
      continue;
    }
    Block *preheader = make_block("columns"), *start = make_block("start");
    b.CreateBr(preheader);
    b.SetInsertPoint(preheader);
    b.CreateBr(start);
    b.SetInsertPoint(start);
    preheader_ = preheader;
    start_ = start;
    columns(loop, r);
    preheader_ = nullptr;
    column_memo_.clear();
    in_memory_.merge(kept_);
  }
}

void KernelEmitter::nest_registers_to_scope(const Nest& nest) {
  if (!nest.rows.is(1)) return;
  for (const ColumnLoop& loop : nest.loops)
    for (const Instruction* part : loop.parts)
      for (const Value result : part->results)
        if (storage(result) == Storage::kRegister)
          if (const auto found = row_memo_.find(result); found != row_memo_.end())
            registers_[result] = found->second;
}

bool KernelEmitter::is_row_reduction(const Instruction& instruction) {
  return tile::info(instruction.opcode).shape == Shape::kReduceCols;
}

void KernelEmitter::part(const Instruction& instruction, const Cursor& at) {
  switch (tile::info(instruction.opcode).shape) {
    case Shape::kReduceRows:
      return take_column_reduction(instruction, at);
    case Shape::kReduceCols:
      return reduce_one(instruction, at);
    case Shape::kScanCols:
      return scan(instruction, at);
    default:
      break;
  }
  if (instruction.opcode == Opcode::kStore || instruction.opcode == Opcode::kAccumulate)
    return store(instruction, at);
  compute(instruction.results[0], at);
  auto& memo = at.lanes == 1 && type(instruction.results[0]).cols.is(1) ? row_memo_ : column_memo_;
  for (const Value result : instruction.results) {
    if (storage(result) == Storage::kRow || storage(result) == Storage::kTile)
      keep(result, memo.at(result), at);
  }
}

void KernelEmitter::keep(Value value, llvm::Value* elements, const Cursor& at) {
  const Region region = this->region(value);
  kept_.insert(value);
  llvm::Value* row = storage(value) == Storage::kRow || type(value).rows.is(1) ? i64(0) : at.row;
  store_vector(region.dtype, address(region, row, at.col), elements);
}

void KernelEmitter::reduce_one(const Instruction& instruction, const Cursor& at) {
  const DType dtype = type(instruction.operands[0]).dtype;
  const Values state = e.take(instruction.opcode, dtype, e.identity(instruction.opcode, dtype, 1),
                              eval(instruction.operands[0], at), i64(0));
  give_row_result(instruction, state, at.row);
}

void KernelEmitter::give_row_result(const Instruction& instruction, const Values& state, llvm::Value* r) {
  for (size_t i = 0; i < instruction.results.size(); ++i) {
    const Value result = instruction.results[i];
    row_memo_[result] = state[i];
    if (storage(result) == Storage::kTile) keep(result, state[i], {r, i64(0), 1});
  }
}

void KernelEmitter::columns(const ColumnLoop& loop, llvm::Value* r) {
  bool reduces = false;
  for (const Instruction* part : loop.parts) reduces |= is_row_reduction(*part);
  start_scans(loop);
  llvm::Value* cols = b.CreateBinaryIntrinsic(llvm::Intrinsic::smax, index(loop.cols), i64(0));
  if (reduces) return reduced_columns(loop, r, cols);
  whole_columns(loop, r, cols);
}

void KernelEmitter::whole_columns(const ColumnLoop& loop, llvm::Value* r, llvm::Value* cols) {
  const int64_t lanes = target_.registers.lanes;
  const auto whole = [&](llvm::Value* c) { chunk(loop, {r, c, target_.registers.lanes}); };
  const auto masked = [&](llvm::Value* c, llvm::Value* active) {
    chunk(loop, {r, c, target_.registers.lanes, active});
  };
  const bool masks =
      std::ranges::all_of(kernel_.buffers, [&](const Buffer& buffer) { return target_.masks(buffer.dtype); });
  llvm::Value* done = i64(0);
  if (loop.cost >= kDear) {
    done = b.CreateAnd(cols, i64(-2 * lanes));
    for_range(i64(0), done, 2 * lanes, [&](llvm::Value* c) {
      in_turns([&] { whole(c); }, [&] { whole(b.CreateAdd(c, i64(lanes))); });
    });
    if (masks)
      return for_range(done, cols, lanes, [&](llvm::Value* c) {
        masked(c, b.CreateBinaryIntrinsic(llvm::Intrinsic::smin, b.CreateSub(cols, c), i64(lanes)));
      });
  }
  llvm::Value* paired = done;
  done = b.CreateAnd(cols, i64(-lanes));
  for_range(paired, done, lanes, whole);
  llvm::Value* left = b.CreateSub(cols, done);
  when(b.CreateICmpSGT(left, i64(0)), [&] { masked(done, left); });
}

void KernelEmitter::chunk(const ColumnLoop& loop, const Cursor& at) {
  column_memo_.clear();
  for (const Instruction* part : loop.parts)
    if (!is_row_reduction(*part)) this->part(*part, at);
}

// Scans: the row goes to memory, and is summed up there.

void KernelEmitter::start_scans(const ColumnLoop& loop) {
  for (const Instruction* part : loop.parts)
    if (tile::info(part->opcode).shape == Shape::kScanCols) {
      const DType dtype = type(part->results[0]).dtype;
      llvm::AllocaInst*& running = scans_[part];
      if (running == nullptr) running = variable(e.type(dtype, 1));
      b.CreateStore(e.identity(scanned(part->opcode), dtype, 1)[0], running);
    }
}

Opcode KernelEmitter::scanned(Opcode opcode) {
  constexpr int kApart = static_cast<int>(Opcode::kRowScanSum) - static_cast<int>(Opcode::kRowSum);
  return static_cast<Opcode>(static_cast<int>(opcode) - kApart);
}

void KernelEmitter::scan(const Instruction& instruction, const Cursor& at) {
  const Value result = instruction.results[0];
  const DType dtype = type(result).dtype;
  if (type(result).cols.is(1)) {
    const Opcode opcode = scanned(instruction.opcode);
    const Values state =
        e.merge(opcode, dtype, e.identity(opcode, dtype, 1), {eval(instruction.operands[0], at)});
    return give_row_result(instruction, state, at.row);
  }
  llvm::AllocaInst* running = scans_.at(&instruction);
  const Region region = this->region(result);
  kept_.insert(result);
  llvm::Value* row = storage(result) == Storage::kRow || type(result).rows.is(1) ? i64(0) : at.row;
  llvm::Value* place = address(region, row, at.col);
  store_vector(dtype, place, eval(instruction.operands[0], at));
  for_range(i64(0), at.active != nullptr ? at.active : i64(at.lanes), 1, [&](llvm::Value* lane) {
    llvm::Value* address = b.CreateGEP(e.memory_type(dtype), place, lane);
    llvm::Value* sum =
        e.merge(scanned(instruction.opcode), dtype, {b.CreateLoad(running->getAllocatedType(), running)},
                {load_vector(dtype, address, 1)})[0];
    b.CreateStore(sum, running);
    store_vector(dtype, address, sum);
  });
}

}  // namespace anynpu::jit
