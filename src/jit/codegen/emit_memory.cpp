// How a kernel reads and writes its buffers.

#include <cstddef>

#include "jit/codegen/kernel_emitter.h"

namespace anynpu::jit {

// Memory.

llvm::Value* KernelEmitter::from_memory(DType dtype, llvm::Value* value) {
  return dtype == DType::kBool ? b.CreateICmpNE(value, llvm::Constant::getNullValue(value->getType()))
                               : value;
}

llvm::Value* KernelEmitter::to_memory(DType dtype, llvm::Value* value) {
  if (dtype != DType::kBool) return value;
  const int lanes = lanes_of(value);
  return b.CreateZExt(value, lanes == 1 ? b.getInt8Ty()
                                        : static_cast<llvm::Type*>(llvm::FixedVectorType::get(
                                              b.getInt8Ty(), static_cast<unsigned>(lanes))));
}

llvm::Type* KernelEmitter::vector_in_memory(DType dtype, int lanes) {
  llvm::Type* element = e.memory_type(dtype);
  return lanes == 1 ? element : llvm::FixedVectorType::get(element, static_cast<unsigned>(lanes));
}

llvm::Value* KernelEmitter::load_vector(DType dtype, llvm::Value* address, int lanes) {
  return from_memory(dtype, b.CreateAlignedLoad(vector_in_memory(dtype, lanes), address, align(dtype)));
}

void KernelEmitter::store_vector(DType dtype, llvm::Value* address, llvm::Value* value) {
  b.CreateAlignedStore(to_memory(dtype, value), address, align(dtype));
}

llvm::Value* KernelEmitter::active_mask(const Cursor& at) {
  llvm::Type* numbers = e.type(DType::kI32, at.lanes);  // which need fewer registers than those of i64
  llvm::Value* active = b.CreateTrunc(at.active, b.getInt32Ty());
  return b.CreateICmpSLT(b.CreateTrunc(e.iota(at.lanes), numbers), e.splat(active, at.lanes));
}

KernelEmitter::Access KernelEmitter::access(const Instruction& instruction, const Cursor& at) {
  const auto number = static_cast<size_t>(instruction.buffer);
  Access access = {&kernel_.buffer(instruction.buffer), &strides_[number], nullptr, i64(0), {}, nullptr, 0};
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
        access.known_stride = at.lanes == 1 ? std::optional<int64_t>(1) : known;
      }
    }
    if (is_from_data(place))
      check(access, instruction, d, position, d == rank - 1 ? at : Cursor{at.row, at.col, 1});
    offset = b.CreateAdd(offset, b.CreateMul(position, stride));
  }
  access.address = b.CreateGEP(e.memory_type(access.buffer->dtype), data_[number], offset);
  return access;
}

bool KernelEmitter::is_from_data(const Index& place) {
  bool found = false;
  place.for_each_leaf([&](const Index& leaf) { found |= leaf.kind() == Index::Kind::kScalar; });
  return found;
}

void KernelEmitter::check(Access& access, const Instruction& instruction, int d, llvm::Value* position,
                          const Cursor& at) {
  llvm::Value* size = index(access.buffer->sizes[static_cast<size_t>(d)]);
  llvm::Value* count = at.active != nullptr ? at.active : i64(at.lanes);
  llvm::Value* last = b.CreateSub(size, count);  // position + count could wrap
  llvm::Value* inside = b.CreateAnd(b.CreateICmpSGE(position, i64(0)), b.CreateICmpSLE(position, last));
  when(b.CreateNot(inside), [&] {
    fault(instruction.buffer, d,
          b.CreateSelect(b.CreateICmpSLT(position, i64(0)), position,
                         b.CreateBinaryIntrinsic(llvm::Intrinsic::smax, position, size)));
  });
  access.inside = access.inside == nullptr ? inside : b.CreateAnd(access.inside, inside);
}

void KernelEmitter::fault(int buffer, int dimension, llvm::Value* position) {
  llvm::Value* at = function_->getArg(4);
  b.CreateStore(b.getInt32(static_cast<uint32_t>(buffer)), at);
  b.CreateStore(b.getInt32(static_cast<uint32_t>(dimension)),
                b.CreateConstGEP1_64(b.getInt8Ty(), at, offsetof(tile::Fault, dimension)));
  b.CreateStore(position, b.CreateConstGEP1_64(b.getInt8Ty(), at, offsetof(tile::Fault, position)));
}

bool KernelEmitter::is_contiguous(const Instruction& instruction, const Access& access) const {
  return access.known_stride == 1 && !instruction.mask;
}

bool KernelEmitter::is_whole(const Instruction& instruction, const Access& access, const Cursor& at) {
  return at.lanes > 1 && at.active == nullptr && !instruction.mask && access.positions.empty();
}

llvm::Value* KernelEmitter::lane_address(const Access& access, int lane) {
  return b.CreateGEP(e.memory_type(access.buffer->dtype), access.address,
                     b.CreateMul(access.stride, i64(lane)));
}

llvm::Value* KernelEmitter::load(const Instruction& instruction, const Cursor& at) {
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

llvm::Value* KernelEmitter::load_inside(const Instruction& instruction, const Access& access,
                                        const Cursor& at) {
  const DType dtype = instruction.type.dtype;
  if (!instruction.mask && access.known_stride == 0)
    return e.splat(load_vector(dtype, access.address, 1), at.lanes);
  if (is_contiguous(instruction, access)) {
    if (at.active == nullptr) return load_vector(dtype, access.address, at.lanes);
    if (target_.masks(dtype)) {
      llvm::Type* vector = vector_in_memory(dtype, at.lanes);
      return from_memory(dtype, b.CreateMaskedLoad(vector, access.address, align(dtype), active_mask(at),
                                                   llvm::Constant::getNullValue(vector)));
    }
  }
  if (!instruction.mask && access.known_stride == 2 && (at.active == nullptr || target_.masks(dtype)))
    return from_memory(dtype, every_second(access, at));
  if (is_whole(instruction, access, at)) {
    llvm::Value* loaded = llvm::PoisonValue::get(vector_in_memory(dtype, at.lanes));
    for (int lane = 0; lane < at.lanes; ++lane)
      loaded = b.CreateInsertElement(loaded, b.CreateLoad(e.memory_type(dtype), lane_address(access, lane)),
                                     static_cast<uint64_t>(lane));
    return from_memory(dtype, loaded);
  }
  llvm::AllocaInst* staged = variable(vector_in_memory(dtype, at.lanes));
  if (at.lanes > 1 && at.active == nullptr && !instruction.mask) {
    llvm::Value* inside = all_inside(access, at);
    when(inside, [&] { b.CreateStore(gathered(access, at), staged); });
    when(b.CreateNot(inside), [&] { load_lanes(instruction, access, at, staged); });
  } else {
    load_lanes(instruction, access, at, staged);
  }
  return from_memory(dtype, b.CreateLoad(vector_in_memory(dtype, at.lanes), staged));
}

/// From two vectors, which have one element in common, so that they end with the last one.
llvm::Value* KernelEmitter::every_second(const Access& access, const Cursor& at) {
  const DType dtype = access.buffer->dtype;
  llvm::Type* vector = vector_in_memory(dtype, at.lanes);
  llvm::Value* span =  // from the first element to the last one
      at.active == nullptr ? nullptr : b.CreateSub(b.CreateMul(at.active, i64(2)), i64(1));
  const auto part = [&](int first) -> llvm::Value* {
    llvm::Value* address = b.CreateConstGEP1_64(e.memory_type(dtype), access.address, first);
    if (span == nullptr) return b.CreateAlignedLoad(vector, address, align(dtype));
    const Cursor there = {at.row, at.col, at.lanes, b.CreateSub(span, i64(first))};
    return b.CreateMaskedLoad(vector, address, align(dtype), active_mask(there),
                              llvm::Constant::getNullValue(vector));
  };
  llvm::SmallVector<int> lanes;
  for (int lane = 0; lane < at.lanes; ++lane) lanes.push_back(lane < at.lanes / 2 ? 2 * lane : 2 * lane + 1);
  return b.CreateShuffleVector(part(0), part(at.lanes - 1), lanes);
}

llvm::Value* KernelEmitter::all_inside(const Access& access, const Cursor& at) {
  llvm::Value* inside = nullptr;
  for (const auto& [d, positions] : access.positions) {
    llvm::Value* size = e.splat(index(access.buffer->sizes[static_cast<size_t>(d)]), at.lanes);
    llvm::Value* these = b.CreateICmpULT(positions, size);
    inside = inside == nullptr ? these : b.CreateAnd(inside, these);
  }
  return b.CreateAndReduce(inside);
}

llvm::Value* KernelEmitter::gathered(const Access& access, const Cursor& at) {
  const DType dtype = access.buffer->dtype;
  const Values& strides = *access.strides;
  llvm::Value* loaded = llvm::PoisonValue::get(vector_in_memory(dtype, at.lanes));
  for (int lane = 0; lane < at.lanes; ++lane) {
    llvm::Value* offset = b.CreateMul(access.stride, i64(lane));
    for (const auto& [d, positions] : access.positions) {
      llvm::Value* position = b.CreateExtractElement(positions, static_cast<uint64_t>(lane));
      offset = b.CreateAdd(offset, b.CreateMul(position, strides[static_cast<size_t>(d)]));
    }
    llvm::Value* address = b.CreateGEP(e.memory_type(dtype), access.address, offset);
    loaded = b.CreateInsertElement(loaded, b.CreateLoad(e.memory_type(dtype), address),
                                   static_cast<uint64_t>(lane));
  }
  return loaded;
}

void KernelEmitter::load_lanes(const Instruction& instruction, const Access& access, const Cursor& at,
                               llvm::AllocaInst* staged) {
  const DType dtype = instruction.type.dtype;
  llvm::Value* otherwise = instruction.otherwise
                               ? to_memory(dtype, eval(*instruction.otherwise, at))
                               : llvm::Constant::getNullValue(vector_in_memory(dtype, at.lanes));
  b.CreateStore(otherwise, staged);
  for_each_lane(instruction, access, at, [&](llvm::Value* address, llvm::Value* lane) {
    b.CreateStore(b.CreateLoad(e.memory_type(dtype), address),
                  b.CreateGEP(e.memory_type(dtype), staged, lane));
  });
}

void KernelEmitter::fetch(llvm::Value* address) {
  llvm::Value *reads = b.getInt32(0), *first_cache = b.getInt32(3), *data = b.getInt32(1);
  b.CreateIntrinsic(llvm::Intrinsic::prefetch, {b.getPtrTy()}, {address, reads, first_cache, data});
}

void KernelEmitter::store(const Instruction& instruction, const Cursor& at) {
  llvm::Value* value = eval(instruction.operands[0], at);
  Access access = this->access(instruction, at);
  if (access.inside == nullptr) return store_inside(instruction, access, value, at);
  if (instruction.mask) eval(*instruction.mask, at);
  when(access.inside, [&] { store_inside(instruction, access, value, at); });
}

void KernelEmitter::store_inside(const Instruction& instruction, const Access& access, llvm::Value* value,
                                 const Cursor& at) {
  const DType dtype = type(instruction.operands[0]).dtype;
  const bool adds = instruction.opcode == Opcode::kAccumulate;
  if (is_contiguous(instruction, access) && (at.active == nullptr || target_.masks(dtype))) {
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
  if (is_whole(instruction, access, at) && !adds) {
    llvm::Value* stored = to_memory(dtype, value);
    for (int lane = 0; lane < at.lanes; ++lane)
      b.CreateStore(b.CreateExtractElement(stored, static_cast<uint64_t>(lane)), lane_address(access, lane));
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

void KernelEmitter::for_each_lane(const Instruction& instruction, const Access& access, const Cursor& at,
                                  const std::function<void(llvm::Value*, llvm::Value*)>& body) {
  const auto staged = [&](llvm::Value* vector) {
    llvm::AllocaInst* memory = variable(vector->getType());
    b.CreateStore(vector, memory);
    return memory;
  };
  llvm::AllocaInst* mask = nullptr;
  if (instruction.mask) mask = staged(to_memory(DType::kBool, eval(*instruction.mask, at)));
  std::vector<llvm::AllocaInst*> positions;
  positions.reserve(access.positions.size());
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
      go_on_if(
          b.CreateICmpNE(b.CreateLoad(b.getInt8Ty(), b.CreateGEP(b.getInt8Ty(), mask, lane)), b.getInt8(0)));
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

}  // namespace anynpu::jit
