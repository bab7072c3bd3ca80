#include "ops/random.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "base/error.h"
#include "ops/kernel_table.h"
#include "ops/rows.h"

namespace anynpu::ops {
namespace {

using tile::Builder;
using tile::Expr;
using tile::Index;
using tile::Opcode;

/// The rows.
const RandomOp kOps[] = {
    {.name = "Uniform",
     .doc = "u, from one number to another",
     .numbers = 2,
     .digits_of_result = true,
     .emit =
         [](const Expr& u, std::span<const Expr> v) {
           const Expr &from = v[0], &to = v[1];
           return std::vector{u * (to - from) + from};
         }},
    {.name = "Bernoulli",
     .doc = "1 with probability p, else 0",
     .numbers = 1,
     .emit = [](const Expr& u,
                std::span<const Expr> v) { return std::vector{select(u < v[0], u.like(1), u.like(0))}; }},
    {.name = "Dropout",
     .doc = "x scale with probability p, else 0; and which of them",
     .results = 2,
     .operands = 1,
     .numbers = 2,
     .emit =
         [](const Expr& u, std::span<const Expr> v) {
           const Expr &x = v[0], &kept = v[1], &scale = v[2];  // `kept`: the probability
           const Expr mask = u < kept;
           return std::vector{x * select(mask, x.like(1), x.like(0)) * scale, mask};
         }},
};

/// Counters of a block.
constexpr int64_t kBlockCounters = 2048;

int digits_of(DType dtype) {
  return dtype == DType::kF64 ? 53 : dtype == DType::kF32 ? 24 : dtype == DType::kF16 ? 11 : 8;
}

/// How many elements have their bits from one counter.
int64_t elements_of_counter(DType compute) { return compute == DType::kF64 ? 2 : 4; }

/// The random bits of each element of a counter.
std::vector<Expr> bits_of(Builder& builder, const std::vector<Expr>& words, DType compute) {
  if (compute != DType::kF64) return words;
  const auto wide = [&](const Expr& word) { return builder.cast(word, DType::kI64); };
  const auto both = [&](const Expr& low, const Expr& high) {
    const Expr mask = builder.constant(DType::kI64, int64_t{0xffffffff});
    const Expr above = builder.op(Opcode::kShl, {wide(high), builder.constant(DType::kI64, int64_t{32})});
    return builder.op(Opcode::kOr, {above, builder.op(Opcode::kAnd, {wide(low), mask})});
  };
  return {both(words[0], words[1]), both(words[2], words[3])};
}

/// So many of the high bits as a fraction.
Expr fraction(Builder& builder, const Expr& bits, int digits, DType compute) {
  const int width = bits.dtype() == DType::kI64 ? 64 : 32;
  const Expr shift = builder.constant(bits.dtype(), int64_t{width - digits});
  return converted(builder.op(Opcode::kShrLogical, {bits, shift}), compute) * std::ldexp(1.0, -digits);
}

/// The kernel while it is built: the buffers, and what is computed of random words.
class Elements {
 public:
  Elements(Builder& builder, const RandomCall& call, const Index& count) : builder_(builder), call_(call) {
    for (size_t i = 0; i < call.tensors.size(); ++i) {
      const size_t results = static_cast<size_t>(call.op.results);
      const std::string name = i < results ? concat("y", i) : concat("x", i - results);
      buffers_.push_back(builder.buffer(name, call.tensors[i].dtype, {count}));
    }
    for (int i = 0; i < call.op.numbers; ++i)
      numbers_.push_back(builder.scalar(concat("number", i), call.compute));
  }

  /// Computes the elements from `first` on, one for each column of `bits`.
  void compute(const Index& first, const Index& count, const Expr& bits) {
    const auto results = static_cast<size_t>(call_.op.results);
    std::vector<Expr> arguments;
    for (size_t i = results; i < buffers_.size(); ++i)
      arguments.push_back(converted(builder_.load(buffers_[i], {first}, 1, count), call_.compute));
    arguments.insert(arguments.end(), numbers_.begin(), numbers_.end());
    const auto values = call_.op.emit(uniform(bits), arguments);
    for (size_t i = 0; i < results; ++i)
      builder_.store(buffers_[i], {first}, shaped(values[i], {call_.tensors[i].dtype, 1, count}));
  }

  /// The random bits of each element of a counter.
  std::vector<Expr> bits(const std::vector<Expr>& words) const {
    return bits_of(builder_, words, call_.compute);
  }

 private:
  Expr uniform(const Expr& bits) const {
    const int digits = digits_of(call_.op.digits_of_result ? call_.tensors[0].dtype : call_.compute);
    return fraction(builder_, bits, digits, call_.compute);
  }

  Builder& builder_;
  const RandomCall& call_;
  std::vector<int> buffers_;
  std::vector<Expr> numbers_;
};

tile::Kernel kernel_of(const RandomCall& call) {
  Builder builder{std::string(call.op.name)};
  const Index counters = builder.size("counters"), part = builder.size("part"), rest = builder.size("rest");
  const int64_t each = elements_of_counter(call.compute);
  const Index blocks = max(ceil_div(counters, part), 1);
  builder.grid(blocks);
  const Expr seed = builder.scalar("seed", DType::kI64), offset = builder.scalar("offset", DType::kI64);
  Elements elements(builder, call, each * counters + rest);

  const Index first = Index::block() * part, count = min(part, counters - first);
  const Expr numbers = builder.iota(tile::Axis::kCols, count) + builder.index(first);
  const auto bits = elements.bits(builder.ops(Opcode::kPhilox, {seed, offset, numbers}));
  for (int64_t k = 0; k < each; ++k)
    elements.compute(k * counters + first, count, bits[static_cast<size_t>(k)]);

  // The elements that are left, in the last block: elsewhere there are none.
  const Index left = min(rest, (Index::block() + 1 - blocks) * each + (each - 1));
  const auto last = elements.bits(builder.ops(Opcode::kPhilox, {seed, offset, builder.index(counters)}));
  Expr bits_left = last[0];
  const Expr number = builder.iota(tile::Axis::kCols, left);
  for (int64_t k = 1; k + 1 < each; ++k)
    bits_left = select(number == static_cast<double>(k), last[static_cast<size_t>(k)], bits_left);
  elements.compute(each * counters, left, bits_left);
  return builder.finish();
}

}  // namespace

std::span<const RandomOp> random_ops() { return kOps; }

const RandomOp& random_op(std::string_view name) { return row_named(random_ops(), name); }

Launch prepare(const RandomCall& call) {
  static KernelTable& table = *new KernelTable;  // outlives every thread
  const int64_t each = elements_of_counter(call.compute), counters = call.elements / each;
  jit::PackedArguments arguments;
  arguments.size(counters);
  arguments.size(kBlockCounters);
  arguments.size(call.elements % each);
  constexpr double kWork = 4;  // of Philox, for a byte
  double bytes = 0;
  KernelTable::Key key;
  key.add(reinterpret_cast<uintptr_t>(&call.op));
  key.add(static_cast<uint8_t>(call.compute));
  for (const Operand& tensor : call.tensors) {
    arguments.buffer(tensor.data, std::array<int64_t, 1>{1});
    bytes += kWork * static_cast<double>(call.elements) * static_cast<double>(tile::size_of(tensor.dtype));
    key.add(static_cast<uint8_t>(tensor.dtype));
  }
  arguments.scalar(DType::kI64, static_cast<int64_t>(call.seed));
  arguments.scalar(DType::kI64, static_cast<int64_t>(call.offset));
  for (const tile::Literal& number : call.numbers) arguments.scalar(call.compute, number);
  const int64_t blocks = std::max<int64_t>(1, (counters + kBlockCounters - 1) / kBlockCounters);
  return {table.find(key, [&] { return kernel_of(call); }), arguments, blocks, bytes};
}

Expr uniform_at(Builder& builder, const Expr& elements, const Index& count, const Expr& seed,
                const Expr& offset, DType compute) {
  const int64_t each = elements_of_counter(compute);
  const Index counters = count / each;
  const auto whole = [&](const Index& index) { return builder.index(index); };
  // An element's word is how many times the counters it comes after; those that are left have one counter.
  Expr counter = elements;
  std::vector<Expr> is_after;
  for (int64_t k = 1; k <= each; ++k) {
    is_after.push_back(elements >= whole(counters * k));
    const Expr first = elements - whole(counters * k);
    counter = select(is_after.back(), k < each ? first : whole(counters), counter);
  }
  const auto bits = bits_of(builder, builder.ops(Opcode::kPhilox, {seed, offset, counter}), compute);
  Expr chosen = bits[0];
  for (int64_t k = 1; k < each; ++k) {
    const Expr is_left = is_after.back() & (elements >= whole(counters * each + k));
    const Expr is_kth = is_after[static_cast<size_t>(k - 1)] & (elements < whole(counters * each));
    chosen = select(is_left | is_kth, bits[static_cast<size_t>(k)], chosen);
  }
  // The first of those that are left takes the first word.
  chosen = select(elements == whole(counters * each), bits[0], chosen);
  return fraction(builder, chosen, digits_of(compute), compute);
}

}  // namespace anynpu::ops
