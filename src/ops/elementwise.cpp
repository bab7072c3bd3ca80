#include "ops/elementwise.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "ops/grid.h"
#include "ops/kernel_table.h"
#include "tile/builder.h"

namespace anynpu::ops {
namespace {

using tile::Builder;
using tile::Expr;
using tile::Index;
using tile::Place;

/// Elements of a block: enough that a block's own cost does not count, few enough for all cores to get some.
constexpr int64_t kBlockElements = 8192;

bool is_number(const Operand& operand) { return operand.data == nullptr; }
Lies innermost(const Operand& operand) { return lies(operand.dtype, operand.strides[0]); }

/// Where the elements of one block lie: some rows (of the second dimension) of some columns (of the innermost
/// one).
class Block {
 public:
  Block(Builder& builder, size_t dims) : grid_(builder, dims, std::min<size_t>(dims, 2)) {}

  int add_buffer(Builder& builder, const std::string& name, const Operand& operand) const {
    std::vector<Index> sizes;
    for (size_t d = grid_.dims(); d-- > 0;) sizes.push_back(grid_.size(d));
    std::vector<std::optional<int64_t>> strides(sizes.size());
    if (innermost(operand) == Lies::kAdjacent) strides.back() = 1;
    if (innermost(operand) == Lies::kStays) sizes.back() = 1;
    return builder.buffer(name, operand.dtype, sizes, strides);
  }

  std::vector<Place> places(const Operand& operand) const {
    std::vector<Place> places;
    for (size_t d = grid_.dims(); d-- > 0;) places.emplace_back(grid_.first(d));
    if (innermost(operand) == Lies::kStays) places.back() = Index(0);
    return places;
  }

  Index rows() const { return grid_.dims() > 1 ? grid_.count(1) : Index(1); }
  Index cols(const Operand& operand) const {
    return innermost(operand) == Lies::kStays ? Index(1) : grid_.count(0);
  }

 private:
  const Grid grid_;
};

/// An operand as the formula takes it.
Expr load(Builder& builder, const Block& block, const ElementwiseCall& call, size_t index, int buffer) {
  const Operand& operand = call.operands[index];
  const Expr stored = builder.load(buffer, block.places(operand), block.rows(), block.cols(operand));
  if (is_mask(call.op, index - 1)) return converted(stored, DType::kBool);
  return converted(converted(stored, call.common), compute_type(call.common));
}

}  // namespace

tile::Kernel elementwise_kernel(const ElementwiseCall& call) {
  Builder builder(std::string(call.op.name));
  const Block block(builder, call.sizes.size());
  const DType compute = compute_type(call.common);
  const Operand& out = call.operands[0];
  const int result_buffer = block.add_buffer(builder, "result", out);
  std::vector<Expr> arguments;
  for (size_t i = 1; i < call.operands.size(); ++i) {
    const std::string name = concat("x", i);
    arguments.push_back(
        is_number(call.operands[i])
            ? builder.scalar(name, compute)
            : load(builder, block, call, i, block.add_buffer(builder, name, call.operands[i])));
  }
  for (const Number& number : call.op.numbers)
    arguments.push_back(builder.scalar(std::string(number.name), compute));
  Expr result = call.op.formulas[call.choice].emit(arguments);
  if (!call.op.compares) result = converted(result, call.common);
  result = shaped(result, {out.dtype, block.rows(), block.cols(out)});
  builder.store(result_buffer, block.places(out), result);
  return builder.finish();
}

namespace {

using Key = KernelTable::Key;

Key key_of(const ElementwiseCall& call) {
  Key key;
  key.add(reinterpret_cast<uintptr_t>(&call.op));
  key.add(static_cast<uint8_t>(call.choice));
  key.add(static_cast<uint8_t>(call.common));
  key.add(static_cast<uint8_t>(call.sizes.size()));
  for (const Operand& operand : call.operands) {
    key.add(static_cast<uint8_t>(operand.dtype));
    key.add(is_number(operand) ? uint8_t{255} : static_cast<uint8_t>(innermost(operand)));
  }
  return key;
}

}  // namespace

Launch prepare(const ElementwiseCall& call) {
  static KernelTable& table = *new KernelTable;  // outlives every thread
  const int64_t cols = std::min(call.sizes[0], kBlockElements), parts[] = {cols, kBlockElements / cols};
  jit::PackedArguments arguments;
  const int64_t blocks =
      add_grid(arguments, call.sizes, std::span(parts).first(std::min<size_t>(call.sizes.size(), 2)));
  double elements = 1, bytes = 0;
  for (const int64_t size : call.sizes) elements *= static_cast<double>(size);
  for (const Operand& operand : call.operands) {
    if (is_number(operand)) continue;
    add_buffer(arguments, operand, operand.strides);
    bytes += elements * static_cast<double>(tile::size_of(operand.dtype));
  }
  const DType compute = compute_type(call.common);
  for (const Operand& operand : call.operands)
    if (is_number(operand)) arguments.scalar(compute, operand.number);
  for (const tile::Literal& number : call.numbers) arguments.scalar(compute, number);
  return {table.find(key_of(call), [&] { return elementwise_kernel(call); }), arguments, blocks, bytes};
}

}  // namespace anynpu::ops
