#include "jit/codegen/kernel_emitter.h"

#include <algorithm>

#include "base/error.h"

namespace anynpu::jit {
namespace {

bool is_constant(const llvm::Value* condition, bool value) {
  const auto* constant = llvm::dyn_cast<llvm::ConstantInt>(condition);
  return constant != nullptr && constant->isOne() == value;
}

}  // namespace

KernelEmitter::KernelEmitter(const Kernel& kernel, const Target& target, llvm::Module& module,
                             const std::string& name)
    : kernel_(kernel),
      target_(target),
      schedule_(schedule(kernel)),
      module_(module),
      b(module.getContext()),
      e(b, module, target_) {
  function_ = llvm::Function::Create(
      llvm::FunctionType::get(
          b.getVoidTy(), {b.getPtrTy(), b.getPtrTy(), b.getInt64Ty(), b.getInt64Ty(), b.getPtrTy()}, false),
      llvm::Function::ExternalLinkage, name, module);
}

std::vector<Scratch> KernelEmitter::run() {
  b.SetInsertPoint(Block::Create(b.getContext(), "entry", function_));
  entry_ = b.GetInsertBlock();
  load_arguments();
  for_range(function_->getArg(2), function_->getArg(3), 1, [&](llvm::Value* block) {
    block_ = block;
    in_scope([&] { steps(schedule_.steps); });
  });
  b.CreateRetVoid();
  return std::move(scratch_);
}

// Control.

void KernelEmitter::for_range(llvm::Value* first, llvm::Value* last, int64_t step,
                              const std::function<void(llvm::Value*)>& body) {
  for_range(first, last, step, {}, [&](llvm::Value* i, const Values&) {
    body(i);
    return Values();
  });
}

Values KernelEmitter::for_range(llvm::Value* first, llvm::Value* last, int64_t step, Values carried,
                                const std::function<Values(llvm::Value*, const Values&)>& body) {
  llvm::Value* any = b.CreateICmpSLT(first, last);
  if (is_constant(any, false)) return carried;
  Block *before = b.GetInsertBlock(), *loop = make_block("loop"), *after = make_block("after");
  b.CreateCondBr(any, loop, after);
  const auto phis = [&](const Values& incoming, Block* from) {
    Values made;
    for (llvm::Value* value : incoming) {
      llvm::PHINode* phi = b.CreatePHI(value->getType(), 2);
      phi->addIncoming(value, from);
      made.push_back(phi);
    }
    return made;
  };
  b.SetInsertPoint(loop);
  llvm::PHINode* i = b.CreatePHI(b.getInt64Ty(), 2);
  i->addIncoming(first, before);
  const Values at_start = phis(carried, before);
  const Values at_end = body(i, at_start);
  llvm::Value* next = b.CreateNSWAdd(i, i64(step));
  Block* end = b.GetInsertBlock();
  i->addIncoming(next, end);
  b.CreateCondBr(b.CreateICmpSLT(next, last), loop, after);
  b.SetInsertPoint(after);
  const Values results = phis(carried, before);
  for (size_t k = 0; k < carried.size(); ++k) {
    llvm::cast<llvm::PHINode>(at_start[k])->addIncoming(at_end[k], end);
    llvm::cast<llvm::PHINode>(results[k])->addIncoming(at_end[k], end);
  }
  return results;
}

void KernelEmitter::when(llvm::Value* condition, const std::function<void()>& then) {
  if (is_constant(condition, false)) return;
  if (is_constant(condition, true)) return then();
  Block *yes = make_block("then"), *after = make_block("endif");
  b.CreateCondBr(condition, yes, after);
  b.SetInsertPoint(yes);
  then();
  b.CreateBr(after);
  b.SetInsertPoint(after);
}

void KernelEmitter::in_turns(const std::function<void()>& first, const std::function<void()>& second) {
  Block* const block = b.GetInsertBlock();
  const size_t before = block->size();
  first();
  const size_t between = block->size();
  second();
  if (b.GetInsertBlock() != block) return;
  std::vector<llvm::Instruction*> leading, following;
  for (llvm::Instruction& instruction : llvm::drop_begin(*block, before))
    (leading.size() < between - before ? leading : following).push_back(&instruction);
  std::set<const llvm::Value*> ahead(leading.begin(), leading.end());
  auto next = following.begin();
  for (llvm::Instruction* instruction : leading) {
    instruction->moveBefore(*block, block->end());
    ahead.erase(instruction);
    const auto is_there = [&](const llvm::Value* operand) { return !ahead.contains(operand); };
    if (next != following.end() && std::ranges::all_of((*next)->operand_values(), is_there))
      (*next++)->moveBefore(*block, block->end());
  }
  for (; next != following.end(); ++next) (*next)->moveBefore(*block, block->end());
}

void KernelEmitter::in_scope(const std::function<void()>& body) {
  Block *head = make_block("scope"), *rest = make_block("body");
  b.CreateBr(head);
  b.SetInsertPoint(head);
  b.CreateBr(rest);
  b.SetInsertPoint(rest);
  scopes_.push_back({head, {}});
  body();
  scopes_.pop_back();
}

llvm::AllocaInst* KernelEmitter::variable(llvm::Type* type, unsigned count) {
  llvm::IRBuilder<> at_entry(entry_, entry_->getFirstInsertionPt());
  llvm::AllocaInst* made = at_entry.CreateAlloca(type, count == 1 ? nullptr : at_entry.getInt64(count));
  made->setAlignment(llvm::Align(64));
  return made;
}

// Arguments and scratch.

llvm::Value* KernelEmitter::argument(size_t number, bool is_address) {
  llvm::IRBuilder<> at_entry(entry_, entry_->getFirstInsertionPt());
  llvm::Value* place =
      at_entry.CreateConstInBoundsGEP1_64(at_entry.getInt64Ty(), function_->getArg(0), number);
  llvm::Type* type = is_address ? static_cast<llvm::Type*>(at_entry.getPtrTy()) : at_entry.getInt64Ty();
  return at_entry.CreateLoad(type, place);
}

void KernelEmitter::load_arguments() {
  size_t next = 0;
  for (size_t i = 0; i < kernel_.sizes.size(); ++i) sizes_.push_back(argument(next++));
  for (const Buffer& buffer : kernel_.buffers) {
    data_.push_back(argument(next++, true));
    Values strides;
    for (const auto& stride : buffer.strides) {
      llvm::Value* given = argument(next++);
      strides.push_back(stride ? i64(*stride) : given);
    }
    strides_.push_back(std::move(strides));
  }
  for (const Value scalar : kernel_.scalars) {
    const DType dtype = type(scalar).dtype;
    llvm::Value* bits = argument(next++);
    const auto width = static_cast<unsigned>(tile::size_of(dtype) * 8);
    llvm::Value* low = b.CreateTrunc(bits, b.getIntNTy(width));
    registers_[scalar] = dtype == DType::kBool ? b.CreateTrunc(low, b.getInt1Ty())
                                               : b.CreateBitCast(low, e.memory_type(dtype));
  }
  first_scratch_ = next;
  for (const Buffer& buffer : kernel_.locals) {
    Index elements = 1;
    Values strides(buffer.sizes.size());
    for (size_t d = buffer.sizes.size(); d-- > 0;) {
      strides[d] = index(elements);
      elements = elements * buffer.sizes[d];
    }
    data_.push_back(new_region(1, elements, buffer.dtype).data);
    strides_.push_back(std::move(strides));
  }
}

Region KernelEmitter::new_region(const Index& rows, const Index& cols, DType dtype) {
  scratch_.push_back({rows, cols, dtype});
  llvm::Value* offset = argument(first_scratch_ + scratch_.size() - 1);
  llvm::IRBuilder<> at_entry(entry_, std::next(llvm::cast<llvm::Instruction>(offset)->getIterator()));
  llvm::Value* data = at_entry.CreateGEP(at_entry.getInt8Ty(), function_->getArg(1), offset);
  return {data, padded(index(cols)), dtype};
}

llvm::Value* KernelEmitter::padded(llvm::Value* count) {
  return b.CreateAnd(b.CreateAdd(count, i64(kPadding - 1)), i64(-kPadding));
}

Region KernelEmitter::region(Value value) {
  const Type& shape = type(value);
  const bool whole = storage(value) == Storage::kTile;
  const auto found = regions_.find(value);
  if (found != regions_.end()) return {found->second, padded(index(shape.cols)), shape.dtype};
  const Region made = new_region(whole ? shape.rows : Index(1), shape.cols, shape.dtype);
  regions_[value] = made.data;
  return made;
}

llvm::Value* KernelEmitter::address(const Region& region, llvm::Value* row, llvm::Value* col) {
  llvm::Value* offset = b.CreateAdd(b.CreateMul(row, region.stride), col);
  return b.CreateGEP(e.memory_type(region.dtype), region.data, offset);
}

// Indices.

llvm::Value* KernelEmitter::index(const Index& index) {
  using Kind = Index::Kind;
  const auto at = static_cast<size_t>(index.value());
  switch (index.kind()) {
    case Kind::kConstant:
      return i64(index.value());
    case Kind::kSize:
      return sizes_[at];
    case Kind::kBlock:
      return block_;
    case Kind::kCounter:
      return counters_.at(index.value());
    case Kind::kScalar:
      return b.CreateSExt(eval_scalar(static_cast<Value>(index.value())), b.getInt64Ty());
    case Kind::kDiv:
      return quotient(index);
    case Kind::kMod: {
      llvm::Value* whole = b.CreateMul(this->index(index.right()), quotient(index.left() / index.right()));
      return b.CreateSub(this->index(index.left()), whole);
    }
    default:
      break;
  }
  llvm::Value *x = this->index(index.left()), *y = this->index(index.right());
  switch (index.kind()) {
    case Kind::kAdd:
      return b.CreateAdd(x, y);
    case Kind::kSub:
      return b.CreateSub(x, y);
    case Kind::kMul:
      return b.CreateMul(x, y);
    case Kind::kMin:
      return b.CreateBinaryIntrinsic(llvm::Intrinsic::smin, x, y);
    default:
      return b.CreateBinaryIntrinsic(llvm::Intrinsic::smax, x, y);
  }
}

/// LLVM moves no division out of a loop that may not run.
llvm::Value* KernelEmitter::quotient(const Index& index) {
  const auto compute = [&] { return floor_div(this->index(index.left()), this->index(index.right())); };
  const auto depth = scope_of(index);
  if (!depth) return compute();
  Scope& scope = scopes_[*depth];
  for (const auto& [known, value] : scope.quotients)
    if (known == index) return value;
  const auto here = b.saveIP();
  b.SetInsertPoint(scope.head->getTerminator());
  llvm::Value* value = compute();
  b.restoreIP(here);
  scope.quotients.emplace_back(index, value);
  return value;
}

std::optional<size_t> KernelEmitter::scope_of(const Index& index) const {
  if (scopes_.empty()) return std::nullopt;
  size_t depth = 0;
  bool of_memory = false;
  index.for_each_leaf([&](const Index& leaf) {
    of_memory |= leaf.kind() == Index::Kind::kScalar;
    if (leaf.kind() == Index::Kind::kCounter) depth = std::max(depth, counter_scopes_.at(leaf.value()));
  });
  return of_memory ? std::nullopt : std::optional(depth);
}

llvm::Value* KernelEmitter::floor_div(llvm::Value* x, llvm::Value* y) {
  llvm::Value* wrong = b.CreateICmpSLT(y, i64(1));
  llvm::Value* by = b.CreateSelect(wrong, i64(1), y);
  llvm::Value* quotient = b.CreateSDiv(x, by);
  llvm::Value* below = b.CreateICmpSLT(b.CreateSub(x, b.CreateMul(quotient, by)), i64(0));
  quotient = b.CreateSub(quotient, b.CreateZExt(below, b.getInt64Ty()));
  return b.CreateSelect(wrong, i64(0), quotient);
}

// Elements of values.

llvm::Value* KernelEmitter::eval(Value value, Cursor at) {
  const auto& known = kernel_.values[number_of(value)];
  if (known.literal) return e.constant(known.type.dtype, *known.literal, at.lanes);
  if (const auto found = registers_.find(value); found != registers_.end())
    return e.splat(found->second, at.lanes);
  if (known.type.rows.is(1)) at.row = i64(0);
  if (known.type.cols.is(1)) at.col = i64(0);
  if (known.type.cols.is(1) && at.lanes > 1) return e.splat(eval_for_row(value, at.row), at.lanes);
  auto& memo = at.lanes == 1 && known.type.cols.is(1) ? row_memo_ : column_memo_;
  if (const auto found = memo.find(value); found != memo.end()) return found->second;
  if (!in_memory_.contains(value)) return compute(value, at);  // or will be kept only later
  const Region region = this->region(value);
  llvm::Value* row = storage(value) == Storage::kRow ? i64(0) : at.row;
  return load_vector(region.dtype, address(region, row, at.col), at.lanes);
}

llvm::Value* KernelEmitter::eval_for_row(Value value, llvm::Value* row) {
  const Cursor at = {row, i64(0), 1};
  if (preheader_ == nullptr) return eval(value, at);
  const auto here = b.saveIP();
  preheader_->getTerminator()->eraseFromParent();
  b.SetInsertPoint(preheader_);
  preheader_ = nullptr;
  llvm::Value* result = eval(value, at);
  preheader_ = b.GetInsertBlock();  // it may have grown by loops
  b.CreateBr(start_);
  b.restoreIP(here);
  return result;
}

llvm::Value* KernelEmitter::compute(Value value, const Cursor& at) {
  const Instruction& instruction = *definition(value);
  const Values results = elements(instruction, at);
  auto& memo = at.lanes == 1 && type(value).cols.is(1) ? row_memo_ : column_memo_;
  for (size_t i = 0; i < results.size(); ++i) memo[instruction.results[i]] = results[i];
  return memo.at(value);
}

const Instruction* KernelEmitter::definition(Value value) {
  if (definitions_.empty()) collect_definitions(kernel_.body);
  return definitions_.at(value);
}

void KernelEmitter::collect_definitions(const Body& body) {
  for (const Instruction& instruction : body.instructions) {
    for (const Value result : instruction.results) definitions_[result] = &instruction;
    for (const Body& inner : instruction.body) collect_definitions(inner);
  }
}

Values KernelEmitter::elements(const Instruction& instruction, const Cursor& at) {
  const auto operand = [&](size_t i) { return eval(instruction.operands[i], at); };
  const auto dtype = [&](size_t i) { return type(instruction.operands[i]).dtype; };
  const Shape shape = tile::info(instruction.opcode).shape;
  if (shape == Shape::kCompare) return {e.compare(instruction.opcode, dtype(0), operand(0), operand(1))};
  if (shape == Shape::kElementwise) {
    if (instruction.operands.size() == 1) return {e.unary(instruction.opcode, dtype(0), operand(0))};
    if (instruction.operands.size() == 2)
      return {e.binary(instruction.opcode, dtype(0), operand(0), operand(1))};
    return {e.fma(operand(0), operand(1), operand(2))};
  }
  switch (instruction.opcode) {
    case Opcode::kIota:
      return {iota(instruction, at)};
    case Opcode::kIndex:
      return {
          e.splat(b.CreateTrunc(index(instruction.index), e.memory_type(instruction.type.dtype)), at.lanes)};
    case Opcode::kLoad:
      return {load(instruction, at)};
    case Opcode::kCast: {
      const bool saturate = instruction.rounding == tile::Rounding::kSaturate;
      return {e.convert(dtype(0), instruction.type.dtype, saturate, operand(0))};
    }
    case Opcode::kBitcast:
      return {b.CreateBitCast(operand(0), e.type(instruction.type.dtype, at.lanes))};
    case Opcode::kSelect:
      return {b.CreateSelect(operand(0), operand(1), operand(2))};
    case Opcode::kBroadcast:
      return {operand(0)};
    case Opcode::kTranspose:  // of the left matrix of a product
      require(at.lanes == 1, ErrorCode::kInternal, "jit: more than one element of a transpose");
      return {eval(instruction.operands[0], {at.col, at.row, 1})};
    case Opcode::kPhilox:
      return e.philox(operand(0), operand(1), operand(2));
    default:
      raise(ErrorCode::kInternal, "jit: no elements of ", tile::info(instruction.opcode).name);
  }
}

llvm::Value* KernelEmitter::iota(const Instruction& instruction, const Cursor& at) {
  const bool rows = instruction.axis == tile::Axis::kRows;
  llvm::Value* numbers = e.splat(rows ? at.row : at.col, at.lanes);
  if (!rows) numbers = b.CreateAdd(numbers, e.iota(at.lanes));
  return b.CreateTrunc(numbers, e.type(instruction.type.dtype, at.lanes));
}

}  // namespace anynpu::jit
