// Products of matrices. A block of rows and vectors of columns has its sums in registers; over k they take
// one product after another, so that neither blocks nor vectors change a sum.

#include <algorithm>
#include <cstdint>
#include <limits>

#include "jit/codegen/kernel_emitter.h"

namespace anynpu::jit {
namespace {

constexpr int64_t kUnrolled = 4;   // steps along k in a turn
constexpr int64_t kLastTurns = 8;  // as long as it takes to fetch from the second cache and beyond

}  // namespace

ProductBlock KernelEmitter::register_block(const Instruction& instruction) const {
  constexpr int64_t kAny = std::numeric_limits<int32_t>::max();
  const Type& shape = type(instruction.results[0]);
  return product_block(target_.registers, shape.dtype, shape.rows.upper_bound().value_or(kAny),
                       shape.cols.upper_bound().value_or(kAny));
}

void KernelEmitter::matmul(const Step& step) {
  const Instruction& instruction = *step.instruction;
  const Type& shape = type(instruction.results[0]);
  const ProductBlock most = register_block(instruction);
  const auto within = [](const Index& extent, int64_t bound) {
    const auto known = extent.upper_bound();
    return known && *known <= bound;
  };
  const bool is_one_block =
      within(shape.rows, most.rows) && within(shape.cols, int64_t{most.vectors} * target_.registers.lanes);
  if (step.nest.loops.empty() || !is_one_block) {
    matmul_to_memory(instruction);
    forget();
    if (!step.nest.loops.empty()) nest(step.nest);
    return;
  }
  llvm::Value *rows = extent(shape.rows), *cols = extent(shape.cols);
  const SumBlock block = {i64(0), i64(0), most.rows, most.vectors};
  llvm::Value* whole = is_whole(block, rows, cols);
  when(whole, [&] {
    const auto take = [&](const Values& sums) {
      for (size_t i = 0; i < sums.size(); ++i) take_in_registers(step, sums[i], cursor(block, i));
    };
    const auto is_added_to_tensor = [&](const Instruction* part) {
      return part->opcode == Opcode::kAccumulate && !kernel_.is_local(part->buffer);
    };
    const auto added = std::ranges::find_if(step.nest.loops[0].parts, is_added_to_tensor);
    if (added == step.nest.loops[0].parts.end()) return product(instruction, block, take);
    product(instruction, block, take, [&] { fetch_block(**added, block); });
  });
  when(b.CreateNot(whole), [&] {
    matmul_to_memory(instruction);
    forget();
    nest(step.nest);
  });
}

/// What a block's sums are added to: in a tensor it was last used long ago.
void KernelEmitter::fetch_block(const Instruction& added, const SumBlock& block) {
  for (size_t i = 0; i < static_cast<size_t>(block.rows) * static_cast<size_t>(block.vectors); ++i) {
    forget();
    fetch(access(added, cursor(block, i)).address);
  }
  forget();
}

void KernelEmitter::matmul_to_memory(const Instruction& instruction) {
  const Value result = instruction.results[0];
  const Type& shape = type(result);
  const Region out = region(result);
  in_memory_.insert(result);
  const ProductBlock most = register_block(instruction);
  llvm::Value *rows = extent(shape.rows), *cols = extent(shape.cols);
  for_range(i64(0), rows, most.rows, [&](llvm::Value* row) {
    for_range(i64(0), cols, int64_t{most.vectors} * target_.registers.lanes, [&](llvm::Value* col) {
      SumBlock block = {row, col, most.rows, most.vectors};
      const auto compute = [&] {
        product(instruction, block, [&](const Values& sums) {
          for (size_t i = 0; i < sums.size(); ++i) {
            const Cursor at = cursor(block, i);
            store_vector(shape.dtype, address(out, at.row, at.col), sums[i]);
          }
        });
      };
      llvm::Value* whole = is_whole(block, rows, cols);
      when(whole, compute);
      block.last_row = b.CreateSub(rows, i64(1));
      block.cols = cols;
      when(b.CreateNot(whole), compute);
    });
  });
}

llvm::Value* KernelEmitter::is_whole(const SumBlock& block, llvm::Value* rows, llvm::Value* cols) {
  llvm::Value *row = b.CreateAdd(block.row, i64(block.rows)),
              *col = b.CreateAdd(block.col, i64(int64_t{block.vectors} * target_.registers.lanes));
  return b.CreateAnd(b.CreateICmpSLE(row, rows), b.CreateICmpSLE(col, cols));
}

llvm::Value* KernelEmitter::extent(const Index& extent) {
  return b.CreateBinaryIntrinsic(llvm::Intrinsic::smax, index(extent), i64(0));
}

void KernelEmitter::product(const Instruction& instruction, const SumBlock& block,
                            const std::function<void(const Values&)>& take,
                            const std::function<void()>& near_end) {
  Values sums;
  for (size_t i = 0; i < static_cast<size_t>(block.rows) * static_cast<size_t>(block.vectors); ++i) {
    forget();
    sums.push_back(eval(instruction.operands[2], cursor(block, i)));
  }
  llvm::Value *depth = extent(type(instruction.operands[0]).cols), *unrolled = i64(0);
  if (block.cols == nullptr) {
    unrolled = b.CreateAnd(depth, i64(-kUnrolled));
    llvm::Value* last_turns = b.CreateSub(unrolled, i64(kLastTurns * kUnrolled));
    sums = for_range(i64(0), unrolled, kUnrolled, sums, [&](llvm::Value* k, Values next) {
      if (near_end) when(b.CreateICmpEQ(k, last_turns), near_end);
      for (int64_t i = 0; i < kUnrolled; ++i)
        next = add_products(instruction, block, b.CreateAdd(k, i64(i)), next);
      return next;
    });
  }
  sums = for_range(unrolled, depth, 1, sums, [&](llvm::Value* k, const Values& last) {
    return add_products(instruction, block, k, last);
  });
  forget();
  take(sums);
  forget();
}

Values KernelEmitter::add_products(const Instruction& instruction, const SumBlock& block, llvm::Value* k,
                                   const Values& sums) {
  Values right, next;
  for (size_t vector = 0; vector < static_cast<size_t>(block.vectors); ++vector) {
    Cursor at = cursor(block, vector);
    at.row = k;
    forget();
    right.push_back(eval(instruction.operands[1], at));
  }
  while (next.size() < sums.size()) {
    forget();
    const Cursor at = {cursor(block, next.size()).row, k, 1};
    llvm::Value* left = e.splat(eval(instruction.operands[0], at), target_.registers.lanes);
    for (llvm::Value* vector : right) {
      next.push_back(e.product_added(instruction.opcode, left, vector, sums[next.size()]));
    }
  }
  return next;
}

Cursor KernelEmitter::cursor(const SumBlock& block, size_t sum) {
  const auto row = static_cast<int64_t>(sum) / block.vectors,
             vector = static_cast<int64_t>(sum) % block.vectors;
  Cursor at = {b.CreateAdd(block.row, i64(row)),
               b.CreateAdd(block.col, i64(vector * target_.registers.lanes)), target_.registers.lanes};
  if (block.cols == nullptr) return at;
  at.row = b.CreateBinaryIntrinsic(llvm::Intrinsic::smin, at.row, block.last_row);
  llvm::Value* last = b.CreateAnd(b.CreateSub(block.cols, i64(1)), i64(-target_.registers.lanes));
  at.col = b.CreateBinaryIntrinsic(llvm::Intrinsic::smin, at.col, last);
  at.active = b.CreateBinaryIntrinsic(llvm::Intrinsic::smin, b.CreateSub(block.cols, at.col),
                                      i64(target_.registers.lanes));
  return at;
}

}  // namespace anynpu::jit
