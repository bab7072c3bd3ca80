// Reductions, in the order of tile/reduce.h.

#include <numeric>

#include "jit/codegen/kernel_emitter.h"

namespace anynpu::jit {

namespace {

/// The row_ opcode of a col_ one.
Opcode row_opcode(Opcode opcode) {
  constexpr int kApart = static_cast<int>(Opcode::kColSum) - static_cast<int>(Opcode::kRowSum);
  return opcode >= Opcode::kColSum ? static_cast<Opcode>(static_cast<int>(opcode) - kApart) : opcode;
}

/// How many blocks the elements of an extent are reduced in; none are one empty block.
Index blocks_of(const Index& extent) { return max(1, ceil_div(extent, tile::kReduceBlock)); }

}  // namespace

// Reductions along columns: kReduceLanes running states, in vectors.

void KernelEmitter::reduced_columns(const ColumnLoop& loop, llvm::Value* r, llvm::Value* cols) {
  const int lanes = target_.registers.lanes, vectors = tile::kReduceLanes / lanes;
  const auto bound = loop.cols.upper_bound();
  const bool one_block = bound && *bound <= tile::kReduceBlock;
  std::vector<Running> running;
  for (const Instruction* part : loop.parts)
    if (is_row_reduction(*part))
      running.push_back(make_running(*part, vectors, one_block ? Index(1) : blocks_of(loop.cols)));
  const auto one = [&](llvm::Value* begin, llvm::Value* end, llvm::Value* number) {
    llvm::Value* even = reduce_block(loop, r, running, begin, end);
    for (const Running& each : running) finish_block(each, number, even);
  };
  if (one_block) {
    one(i64(0), cols, i64(0));
  } else {
    llvm::Value* last = b.CreateBinaryIntrinsic(llvm::Intrinsic::smax, cols, i64(1));
    for_range(i64(0), last, tile::kReduceBlock, [&](llvm::Value* begin) {
      llvm::Value* end =
          b.CreateBinaryIntrinsic(llvm::Intrinsic::smin, cols, b.CreateAdd(begin, i64(tile::kReduceBlock)));
      one(begin, end, b.CreateUDiv(begin, i64(tile::kReduceBlock)));
    });
  }
  llvm::Value* blocks = floor_div(b.CreateAdd(cols, i64(tile::kReduceBlock - 1)), i64(tile::kReduceBlock));
  column_memo_.clear();
  for (const Running& each : running) {
    if (!one_block)
      when(b.CreateICmpSGT(blocks, i64(1)),
           [&] { reduce_in_memory(each.instruction->opcode, each.dtype, each.partial, blocks, i64(1)); });
    Values state;
    for (const Region& partial : each.partial) state.push_back(load_vector(partial.dtype, partial.data, 1));
    give_row_result(*each.instruction, state, r);
  }
}

KernelEmitter::Running KernelEmitter::make_running(const Instruction& instruction, int vectors,
                                                   const Index& blocks) {
  Running running = {&instruction, type(instruction.operands[0]).dtype, {}, {}, nullptr};
  const auto components = Elements::components(instruction.opcode, running.dtype);
  for (int j = 0; j < vectors; ++j) {
    running.states.emplace_back();
    for (const DType component : components)
      running.states.back().push_back(variable(e.type(component, target_.registers.lanes)));
  }
  auto& regions = partials_[&instruction];
  if (regions.empty())
    for (const DType component : components) regions.push_back(new_region(1, blocks, component));
  running.partial = regions;
  return running;
}

Values KernelEmitter::load_state(const std::vector<llvm::AllocaInst*>& state) {
  Values values;
  for (llvm::AllocaInst* component : state)
    values.push_back(b.CreateLoad(component->getAllocatedType(), component));
  return values;
}

void KernelEmitter::store_state(const std::vector<llvm::AllocaInst*>& state, const Values& values) {
  for (size_t i = 0; i < state.size(); ++i) b.CreateStore(values[i], state[i]);
}

llvm::Value* KernelEmitter::reduce_block(const ColumnLoop& loop, llvm::Value* r,
                                         std::vector<Running>& running, llvm::Value* begin,
                                         llvm::Value* end) {
  const int lanes = target_.registers.lanes;
  const auto vectors = running[0].states.size();
  for (Running& each : running)
    for (auto& state : each.states)
      store_state(state, e.identity(each.instruction->opcode, each.dtype, lanes));
  llvm::Value* count = b.CreateSub(end, begin);
  llvm::Value* whole = b.CreateAdd(
      begin,
      b.CreateAnd(b.CreateBinaryIntrinsic(llvm::Intrinsic::smax, count, i64(0)), i64(-tile::kReduceLanes)));
  for_range(begin, whole, tile::kReduceLanes, [&](llvm::Value* c) {
    llvm::Value* next = b.CreateAdd(c, i64(tile::kReduceLanes));
    for (Running& each : running)
      if (counts(each)) each.share = share_of_one(each, begin, next);
    const auto take = [&](size_t j) {
      const Cursor at = {r, b.CreateAdd(c, i64(static_cast<int64_t>(j) * lanes)), lanes};
      chunk(loop, at);
      for (Running& each : running) store_state(each.states[j], taken(each, load_state(each.states[j]), at));
    };
    for (size_t j = 0; j < vectors; j += 2) in_turns([&] { take(j); }, [&] { take(j + 1); });
  });
  for (Running& each : running) {
    if (!counts(each)) continue;
    each.share = nullptr;
    for (auto& state : each.states) b.CreateStore(elements_of_lane(each, begin, whole), state.back());
  }
  llvm::Value* even = b.CreateICmpSGE(whole, end);
  when(b.CreateNot(even), [&] { reduce_rest(loop, r, running, whole, end); });
  return even;
}

bool KernelEmitter::counts(const Running& running) {
  return running.instruction->opcode == Opcode::kRowMoments;
}

llvm::Value* KernelEmitter::elements_of_lane(const Running& running, llvm::Value* begin, llvm::Value* end) {
  llvm::Value* count = b.CreateUDiv(b.CreateSub(end, begin), i64(tile::kReduceLanes));
  count = e.splat(b.CreateTrunc(count, b.getInt32Ty()), target_.registers.lanes);
  return b.CreateSIToFP(count, e.type(running.dtype, target_.registers.lanes));
}

llvm::Value* KernelEmitter::share_of_one(const Running& running, llvm::Value* begin, llvm::Value* end) {
  llvm::Value* count = elements_of_lane(running, begin, end);
  return b.CreateFDiv(llvm::ConstantFP::get(count->getType(), 1), count);
}

Values KernelEmitter::taken(const Running& running, const Values& state, const Cursor& at) {
  if (running.share != nullptr) {
    Values next =
        e.take_moments(state[0], state[1], eval(running.instruction->operands[0], at), running.share);
    next.push_back(state[2]);  // which is set after the loop
    return next;
  }
  llvm::Value* position = b.CreateAdd(e.splat(at.col, at.lanes), e.iota(at.lanes));
  Values next = e.take(running.instruction->opcode, running.dtype, state,
                       eval(running.instruction->operands[0], at), position);
  if (at.active != nullptr)
    for (size_t i = 0; i < next.size(); ++i) next[i] = b.CreateSelect(active_mask(at), next[i], state[i]);
  return next;
}

void KernelEmitter::reduce_rest(const ColumnLoop& loop, llvm::Value* r, std::vector<Running>& running,
                                llvm::Value* begin, llvm::Value* end) {
  const int lanes = target_.registers.lanes;
  std::vector<std::vector<llvm::AllocaInst*>> memory;  // by reduction and component
  for (Running& each : running) {
    memory.emplace_back();
    for (size_t i = 0; i < each.states[0].size(); ++i) {
      llvm::Type* vector = each.states[0][i]->getAllocatedType();
      memory.back().push_back(variable(vector, static_cast<unsigned>(each.states.size())));
      for (size_t j = 0; j < each.states.size(); ++j)
        b.CreateStore(b.CreateLoad(vector, each.states[j][i]),
                      b.CreateConstGEP1_64(vector, memory.back()[i], j));
    }
  }
  for_range(begin, end, lanes, [&](llvm::Value* c) {
    llvm::Value* number = b.CreateUDiv(b.CreateSub(c, begin), i64(lanes));
    const Cursor at = {r, c, lanes,
                       b.CreateBinaryIntrinsic(llvm::Intrinsic::smin, b.CreateSub(end, c), i64(lanes))};
    chunk(loop, at);
    for (size_t k = 0; k < running.size(); ++k) {
      Values state, places;
      for (llvm::AllocaInst* component : memory[k]) {
        places.push_back(b.CreateGEP(component->getAllocatedType(), component, number));
        state.push_back(b.CreateLoad(component->getAllocatedType(), places.back()));
      }
      const Values next = taken(running[k], state, at);
      for (size_t i = 0; i < next.size(); ++i) b.CreateStore(next[i], places[i]);
    }
  });
  for (size_t k = 0; k < running.size(); ++k)
    for (size_t i = 0; i < memory[k].size(); ++i)
      for (size_t j = 0; j < running[k].states.size(); ++j) {
        llvm::Type* vector = memory[k][i]->getAllocatedType();
        b.CreateStore(b.CreateLoad(vector, b.CreateConstGEP1_64(vector, memory[k][i], j)),
                      running[k].states[j][i]);
      }
}

void KernelEmitter::finish_block(const Running& running, llvm::Value* number, llvm::Value* even) {
  const auto finish = [&](bool even) {
    const Values state = merged_lanes(running, even);
    for (size_t i = 0; i < state.size(); ++i)
      store_vector(running.partial[i].dtype, address(running.partial[i], i64(0), number), state[i]);
  };
  if (!counts(running)) return finish(false);
  when(even, [&] { finish(true); });
  when(b.CreateNot(even), [&] { finish(false); });
}

Values KernelEmitter::merged_lanes(const Running& running, bool even) {
  const auto merged = [&](const Values& a, const Values& c) {
    return even ? e.merge_even_moments(a, c) : e.merge(running.instruction->opcode, running.dtype, a, c);
  };
  std::vector<Values> states;
  states.reserve(running.states.size());
  for (const auto& state : running.states) states.push_back(load_state(state));
  for (size_t half = states.size() / 2; half != 0; half /= 2)
    for (size_t j = 0; j < half; ++j) states[j] = merged(states[j], states[j + half]);
  Values state = states[0];
  for (int half = target_.registers.lanes / 2; half != 0; half /= 2) {
    Values low, high;
    for (llvm::Value* component : state) {
      low.push_back(part_of(component, 0, half));
      high.push_back(part_of(component, half, half));
    }
    state = merged(low, high);
  }
  return state;
}

llvm::Value* KernelEmitter::part_of(llvm::Value* vector, int first, int count) {
  if (count == 1) return b.CreateExtractElement(vector, i64(first));
  std::vector<int> lanes(static_cast<size_t>(count));
  std::iota(lanes.begin(), lanes.end(), first);
  return b.CreateShuffleVector(vector, lanes);
}

void KernelEmitter::reduce_in_memory(Opcode opcode, DType dtype, const std::vector<Region>& partial,
                                     llvm::Value* count, llvm::Value* stride) {
  llvm::AllocaInst* table = variable(b.getPtrTy(), static_cast<unsigned>(partial.size() + 1));
  for (size_t i = 0; i < partial.size(); ++i)
    b.CreateStore(partial[i].data, b.CreateConstGEP1_64(b.getPtrTy(), table, i));
  const llvm::FunctionCallee function =
      module_.getOrInsertFunction("anynpu_jit_reduce", b.getVoidTy(), b.getInt32Ty(), b.getInt32Ty(),
                                  b.getPtrTy(), b.getInt64Ty(), b.getInt64Ty());
  b.CreateCall(function, {b.getInt32(static_cast<uint32_t>(opcode)), b.getInt32(static_cast<uint32_t>(dtype)),
                          table, count, stride});
}

// Reductions along rows: kReduceLanes states for each column, in memory; and the result of each block.

void KernelEmitter::start_column_reduction(const Instruction& instruction) {
  const Type& shape = type(instruction.operands[0]);
  Columns& columns = column_reductions_[&instruction];
  if (columns.states.empty()) {
    const Opcode opcode = row_opcode(instruction.opcode);
    columns.rows = shape.rows;
    columns.cols = shape.cols;
    for (const DType component : Elements::components(opcode, shape.dtype)) {
      columns.states.push_back(new_region(tile::kReduceLanes, shape.cols, component));
      columns.partial.push_back(new_region(blocks_of(shape.rows), shape.cols, component));
    }
  }
  fill_states(instruction, columns);
}

void KernelEmitter::fill_states(const Instruction& instruction, const Columns& columns) {
  const DType dtype = type(instruction.operands[0]).dtype;
  const Values identity = e.identity(row_opcode(instruction.opcode), dtype, target_.registers.lanes);
  for (size_t i = 0; i < identity.size(); ++i) {
    llvm::Value* count = b.CreateMul(columns.states[i].stride, used_lanes(instruction, columns));
    for_range(i64(0), count, target_.registers.lanes, [&](llvm::Value* at) {
      store_vector(columns.states[i].dtype, address(columns.states[i], i64(0), at), identity[i]);
    });
  }
}

/// Of few rows some lanes take none. To leave these out changes no bit but where merging has a formula of its
/// own for them.
llvm::Value* KernelEmitter::used_lanes(const Instruction& instruction, const Columns& columns) {
  llvm::Value* used = i64(1);
  for (int half = 1; half < tile::kReduceLanes; half *= 2)
    used = b.CreateSelect(is_used(instruction, columns, half), i64(int64_t{2} * half), used);
  return used;
}

llvm::Value* KernelEmitter::is_used(const Instruction& instruction, const Columns& columns, int lane) {
  switch (row_opcode(instruction.opcode)) {
    case Opcode::kRowSum:
    case Opcode::kRowProd:
    case Opcode::kRowMax:
    case Opcode::kRowMin:
      return b.CreateICmpSGT(index(columns.rows), i64(lane));
    default:
      return b.getTrue();
  }
}

void KernelEmitter::take_column_reduction(const Instruction& instruction, const Cursor& at) {
  const Columns& columns = column_reductions_.at(&instruction);
  const Opcode opcode = row_opcode(instruction.opcode);
  const DType dtype = type(instruction.operands[0]).dtype;
  // The row that begins a block finds the states of the one before it.
  llvm::Value* lane = b.CreateAnd(at.row, i64(tile::kReduceLanes - 1));
  Values state, places;
  for (const Region& region : columns.states) {
    places.push_back(address(region, lane, at.col));
    state.push_back(load_vector(region.dtype, places.back(), at.lanes));
  }
  const Values next =
      e.take(opcode, dtype, state, eval(instruction.operands[0], at), e.splat(at.row, at.lanes));
  for (size_t i = 0; i < next.size(); ++i) store_vector(columns.states[i].dtype, places[i], next[i]);
  llvm::Value* next_row = b.CreateAdd(at.row, i64(1));
  llvm::Value* ends = b.CreateOr(b.CreateICmpEQ(b.CreateURem(next_row, i64(tile::kReduceBlock)), i64(0)),
                                 b.CreateICmpEQ(next_row, index(columns.rows)));
  when(ends, [&] { end_block(instruction, columns, at); });
}

void KernelEmitter::end_block(const Instruction& instruction, const Columns& columns, const Cursor& at) {
  const Opcode opcode = row_opcode(instruction.opcode);
  const DType dtype = type(instruction.operands[0]).dtype;
  const auto state = [&](llvm::Value* lane) {
    Values values;
    for (const Region& region : columns.states)
      values.push_back(load_vector(region.dtype, address(region, lane, at.col), at.lanes));
    return values;
  };
  const auto set = [&](llvm::Value* lane, const Values& values) {
    for (size_t i = 0; i < values.size(); ++i)
      store_vector(columns.states[i].dtype, address(columns.states[i], lane, at.col), values[i]);
  };
  for (int half = tile::kReduceLanes / 2; half != 0; half /= 2)
    when(is_used(instruction, columns, half), [&] {
      for_range(i64(0), i64(half), 1, [&](llvm::Value* lane) {
        set(lane, e.merge(opcode, dtype, state(lane), state(b.CreateAdd(lane, i64(half)))));
      });
    });
  const Values result = state(i64(0));
  llvm::Value* number = b.CreateUDiv(at.row, i64(tile::kReduceBlock));
  for (size_t i = 0; i < result.size(); ++i)
    store_vector(columns.partial[i].dtype, address(columns.partial[i], number, at.col), result[i]);
  when(b.CreateICmpNE(b.CreateAdd(at.row, i64(1)), index(columns.rows)), [&] {
    for_range(i64(0), i64(tile::kReduceLanes), 1,
              [&](llvm::Value* lane) { set(lane, e.identity(opcode, dtype, at.lanes)); });
  });
}

void KernelEmitter::end_column_reduction(const Instruction& instruction) {
  const Columns& columns = column_reductions_.at(&instruction);
  const DType dtype = type(instruction.operands[0]).dtype;
  llvm::Value *rows = index(columns.rows), *cols = index(columns.cols);
  llvm::Value* none = b.CreateICmpSLT(rows, i64(1));
  const Values identity = e.identity(row_opcode(instruction.opcode), dtype, target_.registers.lanes);
  llvm::Value* blocks = floor_div(b.CreateAdd(rows, i64(tile::kReduceBlock - 1)), i64(tile::kReduceBlock));
  when(b.CreateICmpSGT(blocks, i64(1)), [&] {
    for_range(i64(0), cols, 1, [&](llvm::Value* c) {
      std::vector<Region> column = columns.partial;
      for (Region& region : column) region.data = address(region, i64(0), c);
      reduce_in_memory(row_opcode(instruction.opcode), dtype, column, blocks, columns.partial[0].stride);
    });
  });
  for (size_t i = 0; i < instruction.results.size(); ++i) {
    const Region out = region(instruction.results[i]);
    in_memory_.insert(instruction.results[i]);
    for_range(i64(0), cols, target_.registers.lanes, [&](llvm::Value* c) {
      llvm::Value* value =
          load_vector(out.dtype, address(columns.partial[i], i64(0), c), target_.registers.lanes);
      store_vector(out.dtype, address(out, i64(0), c), b.CreateSelect(none, identity[i], value));
    });
  }
}

}  // namespace anynpu::jit
