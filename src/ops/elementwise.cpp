#include "ops/elementwise.h"

#include <algorithm>
#include <cstdlib>
#include <utility>
#include <vector>

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
/// Bytes of a row or a column in a block of a call with turned operands: a few cache lines.
constexpr int64_t kTurnedBytes = 256;
/// Below so many elements, vectors of columns are mostly empty.
constexpr int64_t kLeastTurned = 16;

bool is_number(const Operand& operand) { return operand.data == nullptr; }
Lies innermost(const Operand& operand) { return lies(operand.dtype, operand.strides[0]); }

/// Whether operand number `i` has its neighbours in the second dimension only, and enough of them there: it
/// is read by columns, and transposed.
bool is_turned(const ElementwiseCall& call, size_t i) {
  const Operand& operand = call.operands[i];
  return i >= results_of(call.op) && !is_number(operand) && innermost(operand) == Lies::kApart &&
         call.sizes.size() > 1 && call.sizes[1] >= kLeastTurned &&
         lies(operand.dtype, operand.strides[1]) == Lies::kAdjacent;
}

/// Where the elements of one block lie: some rows (of the second dimension) of some columns (of the innermost
/// one).
class Block {
 public:
  Block(Builder& builder, size_t dims) : builder_(builder), grid_(builder, dims, std::min<size_t>(dims, 2)) {}

  int add_buffer(const std::string& name, const Operand& operand, bool turned = false) const {
    std::vector<Index> sizes;
    for (size_t d = grid_.dims(); d-- > 0;) sizes.push_back(grid_.size(d));
    std::vector<std::optional<int64_t>> strides(sizes.size());
    if (innermost(operand) == Lies::kAdjacent || turned) strides.back() = 1;
    if (innermost(operand) == Lies::kStays) sizes.back() = 1;
    if (turned) std::swap(sizes.end()[-1], sizes.end()[-2]);
    return builder_.buffer(name, operand.dtype, sizes, strides);
  }

  Expr load(const std::string& name, const Operand& operand, bool is_turned) const {
    if (!is_turned) return builder_.load(add_buffer(name, operand), places(operand), rows(), cols(operand));
    std::vector<Place> turned = places(operand);
    std::swap(turned.end()[-1], turned.end()[-2]);
    const int buffer = add_buffer(name, operand, true);
    return builder_.op(tile::Opcode::kTranspose, {builder_.load(buffer, turned, cols(operand), rows())});
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
  Builder& builder_;
  const Grid grid_;
};

/// Operand number `i` as the formula takes it.
Expr argument(Builder& builder, const Block& block, const ElementwiseCall& call, size_t i) {
  const Operand& operand = call.operands[i];
  const size_t number = i - results_of(call.op);
  const std::string name = concat("x", number);
  if (is_number(operand)) return builder.scalar(name, compute_type(call.common));
  const Expr stored = block.load(name, operand, is_turned(call, i));
  if (is_mask(call.op, number)) return converted(stored, DType::kBool);
  const DType promoted = follows(call.op, number) ? operand.dtype : call.common;
  return converted(converted(stored, promoted), compute_type(call.common));
}

}  // namespace

tile::Kernel elementwise_kernel(const ElementwiseCall& call) {
  Builder builder(std::string(call.op.name));
  const Block block(builder, call.sizes.size());
  const DType compute = compute_type(call.common);
  const size_t results = results_of(call.op);
  std::vector<int> buffers;  // of results
  buffers.reserve(results);
  for (size_t i = 0; i < results; ++i)
    buffers.push_back(block.add_buffer(results == 1 ? "result" : concat("y", i), call.operands[i]));
  std::vector<Expr> arguments;
  for (size_t i = results; i < call.operands.size(); ++i)
    arguments.push_back(argument(builder, block, call, i));
  for (const Number& number : call.op.numbers)
    arguments.push_back(builder.scalar(std::string(number.name), compute));
  std::vector<Expr> values = call.op.formulas[call.choice].emit(arguments);
  for (size_t i = 0; i < results; ++i) {
    const Operand& out = call.operands[i];
    if (!call.op.compares) values[i] = converted(values[i], call.common);
    values[i] = shaped(values[i], {out.dtype, block.rows(), block.cols(out)});
  }
  for (size_t i = 0; i < results; ++i) builder.store(buffers[i], block.places(call.operands[i]), values[i]);
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
  for (size_t i = 0; i < call.operands.size(); ++i) {
    const Operand& operand = call.operands[i];
    key.add(static_cast<uint8_t>(operand.dtype));
    key.add(is_number(operand) ? uint8_t{255} : static_cast<uint8_t>(innermost(operand)));
    key.add(is_turned(call, i));
  }
  return key;
}

/// The dimension, other than the innermost one, that an operand has its neighbours in; 0: there is none.
size_t turned(const ElementwiseCall& call) {
  for (const Operand& operand : call.operands) {
    if (is_number(operand) || innermost(operand) != Lies::kApart) continue;
    for (size_t d = 1; d < call.sizes.size(); ++d)
      if (lies(operand.dtype, operand.strides[d]) == Lies::kAdjacent) return d;
  }
  return 0;
}

/// A call with its dimensions in another order.
class Reordered {
 public:
  Reordered(const ElementwiseCall& call, std::span<const size_t> order)
      : operands_(call.operands.begin(), call.operands.end()), call_(call) {
    const auto reordered = [&](std::span<const int64_t> values) {
      for (const size_t d : order) numbers_.push_back(values[d]);
      return std::span<const int64_t>(numbers_).last(order.size());
    };
    numbers_.reserve(order.size() * (operands_.size() + 1));
    call_.sizes = reordered(call.sizes);
    for (Operand& operand : operands_)
      if (!is_number(operand)) operand.strides = reordered(operand.strides);
    call_.operands = operands_;
  }
  const ElementwiseCall& call() const { return call_; }

 private:
  std::vector<int64_t> numbers_;  // sizes, and the strides of each operand
  std::vector<Operand> operands_;
  ElementwiseCall call_;
};

/// With blocks of about that many elements, `cols` in each row.
Launch launch_of(const ElementwiseCall& call, int64_t cols, int64_t elements_of_block) {
  cols = std::min(cols, call.sizes[0]);
  const int64_t parts[] = {cols, elements_of_block / cols};
  jit::PackedArguments arguments;
  const int64_t blocks =
      add_grid(arguments, call.sizes, std::span(parts).first(std::min<size_t>(call.sizes.size(), 2)));
  double elements = 1, bytes = 0;
  for (const int64_t size : call.sizes) elements *= static_cast<double>(size);
  for (size_t i = 0; i < call.operands.size(); ++i) {
    const Operand& operand = call.operands[i];
    if (is_number(operand)) continue;
    if (is_turned(call, i)) {
      std::vector<int64_t> strides(operand.strides.begin(), operand.strides.end());
      std::swap(strides[0], strides[1]);
      add_buffer(arguments, operand, strides);
    } else {
      add_buffer(arguments, operand, operand.strides);
    }
    bytes += elements * static_cast<double>(tile::size_of(operand.dtype));
  }
  const DType compute = compute_type(call.common);
  for (const Operand& operand : call.operands)
    if (is_number(operand)) arguments.scalar(compute, operand.number);
  for (const tile::Literal& number : call.numbers) arguments.scalar(compute, number);
  static KernelTable& table = *new KernelTable;  // outlives every thread
  return {table.find(key_of(call), [&] { return elementwise_kernel(call); }), arguments, blocks, bytes};
}

/// A call with an operand that is turned: that its blocks are about square is what lets them use all of each
/// cache line that they touch. Columns are the longer dimension of the two, as they are computed together.
Launch launch_turned(const ElementwiseCall& call, size_t other) {
  const auto bytes = static_cast<int64_t>(tile::size_of(call.operands[0].dtype));
  const int64_t side = std::clamp<int64_t>(kTurnedBytes / bytes, 32, 128);
  std::vector<size_t> order = {0, other};
  if (call.sizes[0] < kLeastTurned && call.sizes[0] < call.sizes[other]) std::swap(order[0], order[1]);
  for (size_t d = 1; d < call.sizes.size(); ++d)
    if (d != other) order.push_back(d);
  const Reordered reordered(call, order);
  const int64_t cols = std::clamp(side * side / reordered.call().sizes[1], side, side * side);
  return launch_of(reordered.call(), cols, side * side);
}

}  // namespace

Launch prepare(const ElementwiseCall& call) {
  if (const size_t other = turned(call)) return launch_turned(call, other);
  return launch_of(call, kBlockElements, kBlockElements);
}

}  // namespace anynpu::ops
