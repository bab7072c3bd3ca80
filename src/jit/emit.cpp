#include "jit/emit.h"

#include <functional>
#include <map>
#include <set>
#include <utility>

#include "base/error.h"
#include "jit/emitter.h"

namespace anynpu::jit {
namespace {

using tile::Body;
using tile::Buffer;
using tile::Kernel;
using tile::Place;
using tile::Type;
using Block = llvm::BasicBlock;
using Values = std::vector<llvm::Value*>;
using Shape = tile::OpcodeInfo::Shape;

/// The row_ opcode of a col_ one.
Opcode row_opcode(Opcode opcode) {
  constexpr int kApart = static_cast<int>(Opcode::kColSum) - static_cast<int>(Opcode::kRowSum);
  return opcode >= Opcode::kColSum ? static_cast<Opcode>(static_cast<int>(opcode) - kApart) : opcode;
}

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

class KernelEmitter {
 public:
  KernelEmitter(const Kernel& kernel, const Target& target, llvm::Module& module, const std::string& name)
      : kernel_(kernel),
        target_(target),
        schedule_(schedule(kernel)),
        module_(module),
        b(module.getContext()),
        e(b, module) {
    function_ = llvm::Function::Create(
        llvm::FunctionType::get(b.getVoidTy(), {b.getPtrTy(), b.getInt64Ty(), b.getInt64Ty(), b.getPtrTy()},
                                false),
        llvm::Function::ExternalLinkage, name, module);
  }

  std::vector<Scratch> run() {
    b.SetInsertPoint(Block::Create(b.getContext(), "entry", function_));
    entry_ = b.GetInsertBlock();
    load_arguments();
    for_range(function_->getArg(1), function_->getArg(2), 1, [&](llvm::Value* block) {
      block_ = block;
      steps(schedule_.steps);
    });
    b.CreateRetVoid();
    return std::move(scratch_);
  }

 private:
  llvm::ConstantInt* i64(int64_t value) { return b.getInt64(static_cast<uint64_t>(value)); }
  const Type& type(Value value) const { return kernel_.type(value); }
  Storage storage(Value value) const { return schedule_.of(value); }

  // Control.

  Block* make_block(const char* name) { return Block::Create(b.getContext(), name, function_); }

  /// for (i = first; i < last; i += step)
  void for_range(llvm::Value* first, llvm::Value* last, int64_t step,
                 const std::function<void(llvm::Value*)>& body) {
    Block *before = b.GetInsertBlock(), *loop = make_block("loop"), *after = make_block("after");
    b.CreateCondBr(b.CreateICmpSLT(first, last), loop, after);
    b.SetInsertPoint(loop);
    llvm::PHINode* i = b.CreatePHI(b.getInt64Ty(), 2);
    i->addIncoming(first, before);
    body(i);
    llvm::Value* next = b.CreateNSWAdd(i, i64(step));
    i->addIncoming(next, b.GetInsertBlock());
    b.CreateCondBr(b.CreateICmpSLT(next, last), loop, after);
    b.SetInsertPoint(after);
  }

  void when(llvm::Value* condition, const std::function<void()>& then) {
    Block *yes = make_block("then"), *after = make_block("endif");
    b.CreateCondBr(condition, yes, after);
    b.SetInsertPoint(yes);
    then();
    b.CreateBr(after);
    b.SetInsertPoint(after);
  }

  /// A variable of the function, which becomes a register.
  llvm::AllocaInst* variable(llvm::Type* type, unsigned count = 1) {
    llvm::IRBuilder<> at_entry(entry_, entry_->getFirstInsertionPt());
    llvm::AllocaInst* made = at_entry.CreateAlloca(type, count == 1 ? nullptr : at_entry.getInt64(count));
    made->setAlignment(llvm::Align(64));
    return made;
  }

  // Arguments and scratch.

  /// At the start of the function, so that it is there everywhere.
  llvm::Value* argument(size_t number, bool is_address = false) {
    llvm::IRBuilder<> at_entry(entry_, entry_->getFirstInsertionPt());
    llvm::Value* place =
        at_entry.CreateConstInBoundsGEP1_64(at_entry.getInt64Ty(), function_->getArg(0), number);
    llvm::Type* type = is_address ? static_cast<llvm::Type*>(at_entry.getPtrTy()) : at_entry.getInt64Ty();
    return at_entry.CreateLoad(type, place);
  }

  void load_arguments() {
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
  }

  Region new_region(const Index& rows, const Index& cols, DType dtype) {
    scratch_.push_back({rows, cols, dtype});
    return {argument(first_scratch_ + scratch_.size() - 1, true), padded(index(cols)), dtype};
  }
  llvm::Value* padded(llvm::Value* count) {
    return b.CreateAnd(b.CreateAdd(count, i64(kPadding - 1)), i64(-kPadding));
  }

  Region region(Value value) {
    const Type& shape = type(value);
    const bool whole = storage(value) == Storage::kTile;
    const auto found = regions_.find(value);
    if (found != regions_.end()) return {found->second, padded(index(shape.cols)), shape.dtype};
    const Region made = new_region(whole ? shape.rows : Index(1), shape.cols, shape.dtype);
    regions_[value] = made.data;
    return made;
  }
  llvm::Value* address(const Region& region, llvm::Value* row, llvm::Value* col) {
    llvm::Value* offset = b.CreateAdd(b.CreateMul(row, region.stride), col);
    return b.CreateGEP(e.memory_type(region.dtype), region.data, offset);
  }

  // Indices.

  llvm::Value* index(const Index& index) {
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
      case Kind::kMax:
        return b.CreateBinaryIntrinsic(llvm::Intrinsic::smax, x, y);
      default:
        break;
    }
    llvm::Value* quotient = floor_div(x, y);
    return index.kind() == Kind::kDiv ? quotient : b.CreateSub(x, b.CreateMul(y, quotient));
  }
  llvm::Value* floor_div(llvm::Value* x, llvm::Value* y) {
    llvm::Value* wrong = b.CreateICmpSLT(y, i64(1));
    llvm::Value* by = b.CreateSelect(wrong, i64(1), y);
    llvm::Value* quotient = b.CreateSDiv(x, by);
    llvm::Value* below = b.CreateICmpSLT(b.CreateSub(x, b.CreateMul(quotient, by)), i64(0));
    quotient = b.CreateSub(quotient, b.CreateZExt(below, b.getInt64Ty()));
    return b.CreateSelect(wrong, i64(0), quotient);
  }

  // Elements of values.

  llvm::Value* eval_scalar(Value value) { return eval(value, {i64(0), i64(0), 1}); }

  /// The elements of a value at a cursor; what a tile has once, it has everywhere.
  llvm::Value* eval(Value value, Cursor at) {
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

  /// A row's scalar, computed ahead of the open column loop.
  llvm::Value* eval_for_row(Value value, llvm::Value* row) {
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

  llvm::Value* compute(Value value, const Cursor& at) {
    const Instruction& instruction = *definition(value);
    const Values results = elements(instruction, at);
    auto& memo = at.lanes == 1 && type(value).cols.is(1) ? row_memo_ : column_memo_;
    for (size_t i = 0; i < results.size(); ++i) memo[instruction.results[i]] = results[i];
    return memo.at(value);
  }

  const Instruction* definition(Value value) {
    if (definitions_.empty()) collect_definitions(kernel_.body);
    return definitions_.at(value);
  }
  void collect_definitions(const Body& body) {
    for (const Instruction& instruction : body.instructions) {
      for (const Value result : instruction.results) definitions_[result] = &instruction;
      for (const Body& inner : instruction.body) collect_definitions(inner);
    }
  }

  Values elements(const Instruction& instruction, const Cursor& at) {
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
        return {e.splat(b.CreateTrunc(index(instruction.index), e.memory_type(instruction.type.dtype)),
                        at.lanes)};
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
      case Opcode::kPhilox:
        return e.philox(operand(0), operand(1), operand(2));
      default:
        raise(ErrorCode::kInternal, "jit: no elements of ", tile::info(instruction.opcode).name);
    }
  }

  llvm::Value* iota(const Instruction& instruction, const Cursor& at) {
    const bool rows = instruction.axis == tile::Axis::kRows;
    llvm::Value* numbers = e.splat(rows ? at.row : at.col, at.lanes);
    if (!rows) numbers = b.CreateAdd(numbers, e.iota(at.lanes));
    return b.CreateTrunc(numbers, e.type(instruction.type.dtype, at.lanes));
  }

  // Memory.

  llvm::Value* from_memory(DType dtype, llvm::Value* value) {
    return dtype == DType::kBool ? b.CreateICmpNE(value, llvm::Constant::getNullValue(value->getType()))
                                 : value;
  }
  llvm::Value* to_memory(DType dtype, llvm::Value* value) {
    if (dtype != DType::kBool) return value;
    const int lanes = lanes_of(value);
    return b.CreateZExt(value, lanes == 1 ? b.getInt8Ty()
                                          : static_cast<llvm::Type*>(llvm::FixedVectorType::get(
                                                b.getInt8Ty(), static_cast<unsigned>(lanes))));
  }
  llvm::Type* vector_in_memory(DType dtype, int lanes) {
    llvm::Type* element = e.memory_type(dtype);
    return lanes == 1 ? element : llvm::FixedVectorType::get(element, static_cast<unsigned>(lanes));
  }
  llvm::Align align(DType dtype) { return llvm::Align(tile::size_of(dtype)); }

  llvm::Value* load_vector(DType dtype, llvm::Value* address, int lanes) {
    return from_memory(dtype, b.CreateAlignedLoad(vector_in_memory(dtype, lanes), address, align(dtype)));
  }
  void store_vector(DType dtype, llvm::Value* address, llvm::Value* value) {
    b.CreateAlignedStore(to_memory(dtype, value), address, align(dtype));
  }
  /// Which of the lanes are active, as a mask.
  llvm::Value* active_mask(const Cursor& at) {
    llvm::Value* lane = at.lanes <= 128 ? e.iota(at.lanes) : nullptr;
    return b.CreateICmpSLT(lane, e.splat(at.active, at.lanes));
  }

  /// How an instruction reaches its buffer at a cursor.
  struct Access {
    const Buffer* buffer;
    llvm::Value *address, *stride;  ///< of the first lane, without what tiles of positions add
    std::vector<std::pair<int, llvm::Value*>> positions;  ///< dimension and vector, from tiles
    llvm::Value* inside = nullptr;    ///< whether positions from data are in range, where uniform; or null
    std::optional<int> known_stride;  ///< 0 or 1
  };

  Access access(const Instruction& instruction, const Cursor& at) {
    const auto number = static_cast<size_t>(instruction.buffer);
    Access access = {&kernel_.buffers[number], nullptr, i64(0), {}, nullptr, 0};
    const int rank = static_cast<int>(access.buffer->sizes.size());
    llvm::Value* offset = i64(0);
    for (int d = 0; d < rank; ++d) {
      const auto dim = static_cast<size_t>(d);
      llvm::Value* stride = strides_[number][dim];
      if (const auto* value = std::get_if<Value>(&instruction.places[dim])) {
        llvm::Value* position = eval(*value, at);
        access.positions.emplace_back(d, b.CreateSExt(position, e.type(DType::kI64, at.lanes)));
        access.known_stride = std::nullopt;
        continue;
      }
      const Index& place = std::get<Index>(instruction.places[dim]);
      llvm::Value* position = index(place);
      if (d == rank - 2) position = b.CreateAdd(position, at.row);
      if (d == rank - 1) {
        position = b.CreateAdd(position, at.col);
        access.stride = stride;
        if (access.known_stride) {
          const auto known = access.buffer->strides[dim];
          access.known_stride = at.lanes == 1 || known == 1 ? std::optional(1)
                                : known == 0                ? std::optional(0)
                                                            : std::nullopt;
        }
      }
      if (is_from_data(place))
        check(access, instruction, d, position, d == rank - 1 ? at : Cursor{at.row, at.col, 1});
      offset = b.CreateAdd(offset, b.CreateMul(position, stride));
    }
    access.address = b.CreateGEP(e.memory_type(access.buffer->dtype), data_[number], offset);
    return access;
  }
  static bool is_from_data(const Index& place) {
    bool found = false;
    place.for_each_leaf([&](const Index& leaf) { found |= leaf.kind() == Index::Kind::kScalar; });
    return found;
  }

  void check(Access& access, const Instruction& instruction, int d, llvm::Value* position, const Cursor& at) {
    llvm::Value* size = index(access.buffer->sizes[static_cast<size_t>(d)]);
    llvm::Value* count = at.active != nullptr ? at.active : i64(at.lanes);
    llvm::Value* end = b.CreateAdd(position, count);
    llvm::Value* inside = b.CreateAnd(b.CreateICmpSGE(position, i64(0)), b.CreateICmpSLE(end, size));
    when(b.CreateNot(inside), [&] {
      fault(instruction.buffer, d,
            b.CreateSelect(b.CreateICmpSLT(position, i64(0)), position,
                           b.CreateBinaryIntrinsic(llvm::Intrinsic::smax, position, size)));
    });
    access.inside = access.inside == nullptr ? inside : b.CreateAnd(access.inside, inside);
  }
  void fault(int buffer, int dimension, llvm::Value* position) {
    llvm::Value* at = function_->getArg(3);
    b.CreateStore(b.getInt32(static_cast<uint32_t>(buffer)), at);
    b.CreateStore(b.getInt32(static_cast<uint32_t>(dimension)),
                  b.CreateConstGEP1_64(b.getInt8Ty(), at, offsetof(tile::Fault, dimension)));
    b.CreateStore(position, b.CreateConstGEP1_64(b.getInt8Ty(), at, offsetof(tile::Fault, position)));
  }

  bool is_contiguous(const Instruction& instruction, const Access& access) const {
    return access.known_stride == 1 && !instruction.mask;
  }

  llvm::Value* load(const Instruction& instruction, const Cursor& at) {
    const DType dtype = instruction.type.dtype;
    Access access = this->access(instruction, at);
    if (instruction.mask) eval(*instruction.mask, at);  // here, where it is remembered for what follows
    if (instruction.otherwise) eval(*instruction.otherwise, at);
    if (access.inside != nullptr) {
      llvm::AllocaInst* result = variable(vector_in_memory(dtype, at.lanes));
      b.CreateStore(llvm::Constant::getNullValue(vector_in_memory(dtype, at.lanes)), result);
      when(access.inside,
           [&] { b.CreateStore(to_memory(dtype, load_inside(instruction, access, at)), result); });
      return from_memory(dtype, b.CreateLoad(vector_in_memory(dtype, at.lanes), result));
    }
    return load_inside(instruction, access, at);
  }

  llvm::Value* load_inside(const Instruction& instruction, const Access& access, const Cursor& at) {
    const DType dtype = instruction.type.dtype;
    if (!instruction.mask && access.known_stride == 0)
      return e.splat(load_vector(dtype, access.address, 1), at.lanes);
    if (is_contiguous(instruction, access)) {
      if (at.active == nullptr) return load_vector(dtype, access.address, at.lanes);
      if (target_.masks) {
        llvm::Type* vector = vector_in_memory(dtype, at.lanes);
        return from_memory(dtype, b.CreateMaskedLoad(vector, access.address, align(dtype), active_mask(at),
                                                     llvm::Constant::getNullValue(vector)));
      }
    }
    llvm::AllocaInst* staged = variable(vector_in_memory(dtype, at.lanes));
    llvm::Value* otherwise = instruction.otherwise
                                 ? to_memory(dtype, eval(*instruction.otherwise, at))
                                 : llvm::Constant::getNullValue(vector_in_memory(dtype, at.lanes));
    b.CreateStore(otherwise, staged);
    for_each_lane(instruction, access, at, [&](llvm::Value* address, llvm::Value* lane) {
      b.CreateStore(b.CreateLoad(e.memory_type(dtype), address),
                    b.CreateGEP(e.memory_type(dtype), staged, lane));
    });
    return from_memory(dtype, b.CreateLoad(vector_in_memory(dtype, at.lanes), staged));
  }

  void store(const Instruction& instruction, const Cursor& at) {
    llvm::Value* value = eval(instruction.operands[0], at);
    Access access = this->access(instruction, at);
    if (access.inside == nullptr) return store_inside(instruction, access, value, at);
    if (instruction.mask) eval(*instruction.mask, at);
    when(access.inside, [&] { store_inside(instruction, access, value, at); });
  }

  void store_inside(const Instruction& instruction, const Access& access, llvm::Value* value,
                    const Cursor& at) {
    const DType dtype = type(instruction.operands[0]).dtype;
    const bool adds = instruction.opcode == Opcode::kAccumulate;
    if (is_contiguous(instruction, access) && (at.active == nullptr || target_.masks)) {
      if (at.active == nullptr) {
        if (adds) value = e.binary(Opcode::kAdd, dtype, load_vector(dtype, access.address, at.lanes), value);
        return store_vector(dtype, access.address, value);
      }
      llvm::Value* mask = active_mask(at);
      if (adds) {
        llvm::Type* vector = vector_in_memory(dtype, at.lanes);
        value = e.binary(Opcode::kAdd, dtype,
                         b.CreateMaskedLoad(vector, access.address, align(dtype), mask,
                                            llvm::Constant::getNullValue(vector)),
                         value);
      }
      b.CreateMaskedStore(to_memory(dtype, value), access.address, align(dtype), mask);
      return;
    }
    llvm::AllocaInst* staged = variable(vector_in_memory(dtype, at.lanes));
    b.CreateStore(to_memory(dtype, value), staged);
    for_each_lane(instruction, access, at, [&](llvm::Value* address, llvm::Value* lane) {
      llvm::Type* element = e.memory_type(dtype);
      llvm::Value* one = b.CreateLoad(element, b.CreateGEP(element, staged, lane));
      if (adds) one = e.binary(Opcode::kAdd, dtype, b.CreateLoad(element, address), one);
      b.CreateStore(one, address);
    });
  }

  /// Calls `body` with the address of each active lane that a mask does not exclude and whose positions are
  /// in range, in order.
  void for_each_lane(const Instruction& instruction, const Access& access, const Cursor& at,
                     const std::function<void(llvm::Value*, llvm::Value*)>& body) {
    const auto staged = [&](llvm::Value* vector) {
      llvm::AllocaInst* memory = variable(vector->getType());
      b.CreateStore(vector, memory);
      return memory;
    };
    llvm::AllocaInst* mask = nullptr;
    if (instruction.mask) mask = staged(to_memory(DType::kBool, eval(*instruction.mask, at)));
    std::vector<llvm::AllocaInst*> positions;
    for (const auto& [d, vector] : access.positions) positions.push_back(staged(vector));
    const auto number = static_cast<size_t>(instruction.buffer);
    llvm::Type* element = e.memory_type(access.buffer->dtype);
    for_range(i64(0), at.active != nullptr ? at.active : i64(at.lanes), 1, [&](llvm::Value* lane) {
      Block* next = make_block("next");
      const auto go_on_if = [&](llvm::Value* condition) {
        Block* on = make_block("on");
        b.CreateCondBr(condition, on, next);
        b.SetInsertPoint(on);
      };
      if (mask != nullptr)
        go_on_if(b.CreateICmpNE(b.CreateLoad(b.getInt8Ty(), b.CreateGEP(b.getInt8Ty(), mask, lane)),
                                b.getInt8(0)));
      llvm::Value* offset = b.CreateMul(lane, access.stride);
      for (size_t i = 0; i < positions.size(); ++i) {
        const int d = access.positions[i].first;
        llvm::Value* position = b.CreateLoad(b.getInt64Ty(), b.CreateGEP(b.getInt64Ty(), positions[i], lane));
        llvm::Value* inside = b.CreateICmpULT(position, index(access.buffer->sizes[static_cast<size_t>(d)]));
        when(b.CreateNot(inside), [&] { fault(instruction.buffer, d, position); });
        go_on_if(inside);
        offset = b.CreateAdd(offset, b.CreateMul(position, strides_[number][static_cast<size_t>(d)]));
      }
      body(b.CreateGEP(element, access.address, offset), lane);
      b.CreateBr(next);
      b.SetInsertPoint(next);
    });
  }

  // Steps.

  void steps(const std::vector<Step>& steps) {
    for (const Step& step : steps) {
      row_memo_.clear();
      column_memo_.clear();
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
        case Step::Kind::kMatmul:
          matmul(*step.instruction);
          break;
        case Step::Kind::kYield:
          break;  // by its loop
      }
    }
  }

  void scalar(const Instruction& instruction) {
    const Values results = elements(instruction, {i64(0), i64(0), 1});
    for (size_t i = 0; i < results.size(); ++i) registers_[instruction.results[i]] = results[i];
  }

  void loop(const Step& step) {
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
      steps(step.body);
      carry(instruction, scalars);
    });
    row_memo_.clear();
    column_memo_.clear();
    for (size_t k = 0; k < count; ++k) {
      const Value result = instruction.results[k];
      if (scalars[k] != nullptr)
        registers_[result] = b.CreateLoad(scalars[k]->getAllocatedType(), scalars[k]);
      else
        regions_[result] = region(inner.arguments[k]).data, in_memory_.insert(result);
    }
  }

  /// Moves what a turn of a loop yields to where the next one finds it.
  void carry(const Instruction& instruction, const std::vector<llvm::AllocaInst*>& scalars) {
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

  void copy(const Region& from, const Region& to, const Type& shape) {
    llvm::Value* rows = b.CreateBinaryIntrinsic(llvm::Intrinsic::smax, index(shape.rows), i64(0));
    llvm::Value* bytes =
        b.CreateMul(b.CreateMul(rows, from.stride), i64(static_cast<int64_t>(tile::size_of(shape.dtype))));
    b.CreateMemCpy(to.data, llvm::Align(64), from.data, llvm::Align(64), bytes);
  }

  /// c[i, j] + a[i, k] * b[k, j], over k in order, `lanes` columns at once.
  void matmul(const Instruction& instruction) {
    const Value result = instruction.results[0];
    const Type& shape = type(result);
    const Region out = region(result);
    in_memory_.insert(result);
    llvm::Value *rows = index(shape.rows), *cols = index(shape.cols),
                *depth = index(type(instruction.operands[0]).cols);
    for_range(i64(0), rows, 1, [&](llvm::Value* i) {
      for_range(i64(0), cols, target_.lanes, [&](llvm::Value* j) {
        llvm::AllocaInst* sum = variable(e.type(shape.dtype, target_.lanes));
        forget();
        b.CreateStore(eval(instruction.operands[2], {i, j, target_.lanes}), sum);
        for_range(i64(0), depth, 1, [&](llvm::Value* k) {
          forget();
          llvm::Value* a = e.splat(eval(instruction.operands[0], {i, k, 1}), target_.lanes);
          forget();
          llvm::Value* c = eval(instruction.operands[1], {k, j, target_.lanes});
          llvm::Value* before = b.CreateLoad(sum->getAllocatedType(), sum);
          b.CreateStore(
              shape.dtype == DType::kI32 ? b.CreateAdd(before, b.CreateMul(a, c)) : e.fma(a, c, before), sum);
        });
        forget();
        store_vector(shape.dtype, address(out, i, j), b.CreateLoad(sum->getAllocatedType(), sum));
      });
    });
  }
  void forget() {
    row_memo_.clear();
    column_memo_.clear();
  }

  // Nests.

  void nest(const Nest& nest) {
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

  /// One row of a nest.
  void row(const Nest& nest, llvm::Value* r) {
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

  /// Registers of one-row nests are there for all that follows.
  void nest_registers_to_scope(const Nest& nest) {
    if (!nest.rows.is(1)) return;
    for (const ColumnLoop& loop : nest.loops)
      for (const Instruction* part : loop.parts)
        for (const Value result : part->results)
          if (storage(result) == Storage::kRegister)
            if (const auto found = row_memo_.find(result); found != row_memo_.end())
              registers_[result] = found->second;
  }

  static bool is_row_reduction(const Instruction& instruction) {
    return tile::info(instruction.opcode).shape == Shape::kReduceCols;
  }

  /// A store, a column reduction, a scan, or a value that goes to memory, at a cursor.
  void part(const Instruction& instruction, const Cursor& at) {
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

  /// Padding after the last column is written too.
  void keep(Value value, llvm::Value* elements, const Cursor& at) {
    const Region region = this->region(value);
    kept_.insert(value);
    llvm::Value* row = storage(value) == Storage::kRow || type(value).rows.is(1) ? i64(0) : at.row;
    store_vector(region.dtype, address(region, row, at.col), elements);
  }

  /// A reduction over the single column of a tile.
  void reduce_one(const Instruction& instruction, const Cursor& at) {
    const DType dtype = type(instruction.operands[0]).dtype;
    const Values state = e.take(instruction.opcode, dtype, e.identity(instruction.opcode, dtype, 1),
                                eval(instruction.operands[0], at), i64(0));
    give_row_result(instruction, state, at.row);
  }

  void give_row_result(const Instruction& instruction, const Values& state, llvm::Value* r) {
    for (size_t i = 0; i < instruction.results.size(); ++i) {
      const Value result = instruction.results[i];
      row_memo_[result] = state[i];
      if (storage(result) == Storage::kTile) keep(result, state[i], {r, i64(0), 1});
    }
  }

  void columns(const ColumnLoop& loop, llvm::Value* r) {
    bool reduces = false;
    for (const Instruction* part : loop.parts) reduces |= is_row_reduction(*part);
    start_scans(loop);
    llvm::Value* cols = index(loop.cols);
    if (reduces) return reduced_columns(loop, r, cols);
    llvm::Value* whole = b.CreateAnd(cols, i64(-target_.lanes));
    for_range(i64(0), whole, target_.lanes, [&](llvm::Value* c) { chunk(loop, {r, c, target_.lanes}); });
    llvm::Value* left = b.CreateSub(cols, whole);
    when(b.CreateICmpSGT(left, i64(0)), [&] { chunk(loop, {r, whole, target_.lanes, left}); });
  }

  void chunk(const ColumnLoop& loop, const Cursor& at) {
    column_memo_.clear();
    for (const Instruction* part : loop.parts)
      if (!is_row_reduction(*part)) this->part(*part, at);
  }

  // Reductions along columns: kReduceLanes running states, in vectors.

  struct Running {
    const Instruction* instruction;
    DType dtype;
    std::vector<std::vector<llvm::AllocaInst*>> states;  ///< by vector, then by component
    std::vector<Region> partial;                         ///< by component: the result of each block
  };

  void reduced_columns(const ColumnLoop& loop, llvm::Value* r, llvm::Value* cols) {
    const int lanes = target_.lanes, vectors = tile::kReduceLanes / lanes;
    const auto bound = loop.cols.upper_bound();
    const bool one_block = bound && *bound <= tile::kReduceBlock;
    std::vector<Running> running;
    for (const Instruction* part : loop.parts)
      if (is_row_reduction(*part))
        running.push_back(
            make_running(*part, vectors, one_block ? Index(1) : ceil_div(loop.cols, tile::kReduceBlock)));
    const auto one = [&](llvm::Value* begin, llvm::Value* end, llvm::Value* number) {
      reduce_block(loop, r, running, begin, end);
      for (Running& each : running) finish_block(each, number);
    };
    if (one_block) {
      one(i64(0), cols, i64(0));
    } else {
      // Nothing is reduced to the identity, as one empty block.
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

  Running make_running(const Instruction& instruction, int vectors, const Index& blocks) {
    Running running = {&instruction, type(instruction.operands[0]).dtype, {}, {}};
    const auto components = Elements::components(instruction.opcode, running.dtype);
    for (int j = 0; j < vectors; ++j) {
      running.states.emplace_back();
      for (const DType component : components)
        running.states.back().push_back(variable(e.type(component, target_.lanes)));
    }
    auto& regions = partials_[&instruction];
    if (regions.empty())
      for (const DType component : components) regions.push_back(new_region(1, blocks, component));
    running.partial = regions;
    return running;
  }

  Values load_state(const std::vector<llvm::AllocaInst*>& state) {
    Values values;
    for (llvm::AllocaInst* component : state)
      values.push_back(b.CreateLoad(component->getAllocatedType(), component));
    return values;
  }
  void store_state(const std::vector<llvm::AllocaInst*>& state, const Values& values) {
    for (size_t i = 0; i < state.size(); ++i) b.CreateStore(values[i], state[i]);
  }

  void reduce_block(const ColumnLoop& loop, llvm::Value* r, std::vector<Running>& running, llvm::Value* begin,
                    llvm::Value* end) {
    const int lanes = target_.lanes;
    const auto vectors = running[0].states.size();
    for (Running& each : running)
      for (auto& state : each.states)
        store_state(state, e.identity(each.instruction->opcode, each.dtype, lanes));
    llvm::Value* count = b.CreateSub(end, begin);
    llvm::Value* whole = b.CreateAdd(
        begin,
        b.CreateAnd(b.CreateBinaryIntrinsic(llvm::Intrinsic::smax, count, i64(0)), i64(-tile::kReduceLanes)));
    for_range(begin, whole, tile::kReduceLanes, [&](llvm::Value* c) {
      for (size_t j = 0; j < vectors; ++j) {
        const Cursor at = {r, b.CreateAdd(c, i64(static_cast<int64_t>(j) * lanes)), lanes};
        chunk(loop, at);
        for (Running& each : running)
          store_state(each.states[j], taken(each, load_state(each.states[j]), at));
      }
    });
    when(b.CreateICmpSLT(whole, end), [&] { reduce_rest(loop, r, running, whole, end); });
  }

  Values taken(const Running& running, const Values& state, const Cursor& at) {
    llvm::Value* position = b.CreateAdd(e.splat(at.col, at.lanes), e.iota(at.lanes));
    Values next = e.take(running.instruction->opcode, running.dtype, state,
                         eval(running.instruction->operands[0], at), position);
    if (at.active != nullptr)
      for (size_t i = 0; i < next.size(); ++i) next[i] = b.CreateSelect(active_mask(at), next[i], state[i]);
    return next;
  }

  /// The last elements of a block, less than one for each lane: with states in memory, a vector at a time.
  void reduce_rest(const ColumnLoop& loop, llvm::Value* r, std::vector<Running>& running, llvm::Value* begin,
                   llvm::Value* end) {
    const int lanes = target_.lanes;
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

  /// Lane l takes lane l + 16, l + 8, ... ; the first one is the block's result.
  void finish_block(Running& running, llvm::Value* number) {
    const Opcode opcode = running.instruction->opcode;
    std::vector<Values> states;
    for (const auto& state : running.states) states.push_back(load_state(state));
    for (size_t half = states.size() / 2; half != 0; half /= 2)
      for (size_t j = 0; j < half; ++j)
        states[j] = e.merge(opcode, running.dtype, states[j], states[j + half]);
    Values state = states[0];
    for (int half = target_.lanes / 2; half != 0; half /= 2) {
      Values low, high;
      for (llvm::Value* component : state) {
        low.push_back(part_of(component, 0, half));
        high.push_back(part_of(component, half, half));
      }
      state = e.merge(opcode, running.dtype, low, high);
    }
    for (size_t i = 0; i < state.size(); ++i)
      store_vector(running.partial[i].dtype, address(running.partial[i], i64(0), number), state[i]);
  }
  llvm::Value* part_of(llvm::Value* vector, int first, int count) {
    if (count == 1) return b.CreateExtractElement(vector, i64(first));
    std::vector<int> lanes;
    for (int i = 0; i < count; ++i) lanes.push_back(first + i);
    return b.CreateShuffleVector(vector, lanes);
  }

  void reduce_in_memory(Opcode opcode, DType dtype, const std::vector<Region>& partial, llvm::Value* count,
                        llvm::Value* stride) {
    llvm::AllocaInst* table = variable(b.getPtrTy(), static_cast<unsigned>(partial.size() + 1));
    for (size_t i = 0; i < partial.size(); ++i)
      b.CreateStore(partial[i].data, b.CreateConstGEP1_64(b.getPtrTy(), table, i));
    const llvm::FunctionCallee function =
        module_.getOrInsertFunction("anynpu_jit_reduce", b.getVoidTy(), b.getInt32Ty(), b.getInt32Ty(),
                                    b.getPtrTy(), b.getInt64Ty(), b.getInt64Ty());
    b.CreateCall(function, {b.getInt32(static_cast<uint32_t>(opcode)),
                            b.getInt32(static_cast<uint32_t>(dtype)), table, count, stride});
  }

  // Reductions along rows: kReduceLanes states for each column, in memory; and the result of each block.

  struct Columns {
    std::vector<Region> states, partial;  ///< by component
    Index rows = 1, cols = 1;
  };

  void start_column_reduction(const Instruction& instruction) {
    const Type& shape = type(instruction.operands[0]);
    Columns& columns = column_reductions_[&instruction];
    if (columns.states.empty()) {
      const Opcode opcode = row_opcode(instruction.opcode);
      columns.rows = shape.rows;
      columns.cols = shape.cols;
      for (const DType component : Elements::components(opcode, shape.dtype)) {
        columns.states.push_back(new_region(tile::kReduceLanes, shape.cols, component));
        columns.partial.push_back(
            new_region(max(1, ceil_div(shape.rows, tile::kReduceBlock)), shape.cols, component));
      }
    }
    fill_states(instruction, columns);
  }

  /// All states to the identity.
  void fill_states(const Instruction& instruction, const Columns& columns) {
    const DType dtype = type(instruction.operands[0]).dtype;
    const Values identity = e.identity(row_opcode(instruction.opcode), dtype, target_.lanes);
    for (size_t i = 0; i < identity.size(); ++i) {
      llvm::Value* count = b.CreateMul(columns.states[i].stride, i64(tile::kReduceLanes));
      for_range(i64(0), count, target_.lanes, [&](llvm::Value* at) {
        store_vector(columns.states[i].dtype, address(columns.states[i], i64(0), at), identity[i]);
      });
    }
  }

  void take_column_reduction(const Instruction& instruction, const Cursor& at) {
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

  /// The states of some columns to the result of the block, and to the identity again.
  void end_block(const Instruction& instruction, const Columns& columns, const Cursor& at) {
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
      for_range(i64(0), i64(half), 1, [&](llvm::Value* lane) {
        set(lane, e.merge(opcode, dtype, state(lane), state(b.CreateAdd(lane, i64(half)))));
      });
    const Values result = state(i64(0));
    llvm::Value* number = b.CreateUDiv(at.row, i64(tile::kReduceBlock));
    for (size_t i = 0; i < result.size(); ++i)
      store_vector(columns.partial[i].dtype, address(columns.partial[i], number, at.col), result[i]);
    for_range(i64(0), i64(tile::kReduceLanes), 1,
              [&](llvm::Value* lane) { set(lane, e.identity(opcode, dtype, at.lanes)); });
  }

  void end_column_reduction(const Instruction& instruction) {
    const Columns& columns = column_reductions_.at(&instruction);
    const DType dtype = type(instruction.operands[0]).dtype;
    llvm::Value *rows = index(columns.rows), *cols = index(columns.cols);
    llvm::Value* none = b.CreateICmpSLT(rows, i64(1));
    const Values identity = e.identity(row_opcode(instruction.opcode), dtype, target_.lanes);
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
      for_range(i64(0), cols, target_.lanes, [&](llvm::Value* c) {
        llvm::Value* value = load_vector(out.dtype, address(columns.partial[i], i64(0), c), target_.lanes);
        store_vector(out.dtype, address(out, i64(0), c), b.CreateSelect(none, identity[i], value));
      });
    }
  }

  // Scans: the row goes to memory, and is summed up there.

  void start_scans(const ColumnLoop& loop) {
    for (const Instruction* part : loop.parts)
      if (tile::info(part->opcode).shape == Shape::kScanCols) {
        const DType dtype = type(part->results[0]).dtype;
        llvm::AllocaInst*& running = scans_[part];
        if (running == nullptr) running = variable(e.type(dtype, 1));
        b.CreateStore(e.identity(scanned(part->opcode), dtype, 1)[0], running);
      }
  }
  static Opcode scanned(Opcode opcode) {
    constexpr int kApart = static_cast<int>(Opcode::kRowScanSum) - static_cast<int>(Opcode::kRowSum);
    return static_cast<Opcode>(static_cast<int>(opcode) - kApart);
  }

  void scan(const Instruction& instruction, const Cursor& at) {
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
  std::map<Value, const Instruction*> definitions_;
  std::map<Value, llvm::Value*> registers_;               // 1 x 1
  std::map<Value, llvm::Value*> row_memo_, column_memo_;  // of this row; of these columns
  std::map<Value, llvm::Value*> regions_;
  std::set<Value> in_memory_, kept_;  // by loops before this one; by this one
  std::map<const Instruction*, std::vector<Region>> partials_;
  std::map<const Instruction*, Columns> column_reductions_;
  std::map<const Instruction*, llvm::AllocaInst*> scans_;
};

}  // namespace

Emitted emit(const Kernel& kernel, const Target& target, llvm::LLVMContext& context,
             const std::string& name) {
  auto module = std::make_unique<llvm::Module>(kernel.name, context);
  auto scratch = KernelEmitter(kernel, target, *module, name).run();
  return {std::move(module), std::move(scratch)};
}

}  // namespace anynpu::jit
