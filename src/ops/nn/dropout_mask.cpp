#include "ops/nn/dropout_mask.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "ops/kernel_table.h"
#include "tile/builder.h"

namespace anynpu::ops {
namespace {

using tile::Axis;
using tile::Builder;
using tile::Expr;
using tile::Index;
using tile::Opcode;

constexpr int64_t kBlockBytes = 1024;     ///< of a mask
constexpr int64_t kBlockElements = 8192;  ///< of what it is for

int64_t blocks_of(int64_t count, int64_t part) { return std::max<int64_t>(1, (count + part - 1) / part); }

/// What a block works on: `part` of `count` places in memory, and their numbers.
struct Part {
  Index first, count;
  Expr numbers;

  Part(Builder& builder, const Index& all, int64_t part)
      : first(Index::block() * part),
        count(min(part, all - first)),
        numbers(builder.iota(Axis::kCols, count) + builder.index(first)) {
    builder.grid(max(ceil_div(all, part), 1));
  }
};

tile::Kernel mask_kernel() {
  Builder builder("DropoutMask");
  const Index bytes = builder.size("bytes");
  const Expr seed = builder.scalar("seed", DType::kI64), offset = builder.scalar("offset", DType::kI64),
             least = builder.scalar("least", DType::kI64);
  const int mask = builder.buffer("mask", DType::kU8, {bytes});
  const Part part(builder, bytes, kBlockBytes);
  std::vector<Expr> words;
  for (const double counter : {0.0, 1.0}) {
    const auto four = builder.ops(Opcode::kPhilox, {seed, offset, part.numbers * 2.0 + counter});
    words.insert(words.end(), four.begin(), four.end());
  }
  Expr bits = part.numbers.like(0);
  for (size_t i = 0; i < words.size(); ++i) {
    const Expr word = builder.cast(words[i], DType::kI64) & bits.like(0xffffffff);
    bits = bits | select(word >= least, bits.like(std::ldexp(1.0, static_cast<int>(i))), bits.like(0));
  }
  builder.store(mask, {part.first}, builder.cast(builder.broadcast(bits, 1, part.count), DType::kU8));
  return builder.finish();
}

tile::Kernel masked_kernel(DType of_result, DType of_x) {
  Builder builder("MaskedDropout");
  const Index elements = builder.size("elements"), bytes = builder.size("bytes");
  const DType compute = compute_type(of_x);
  const Expr scale = builder.scalar("scale", compute);
  const int result = builder.buffer("result", of_result, {elements}),
            x = builder.buffer("x", of_x, {elements}), mask = builder.buffer("mask", DType::kU8, {bytes});
  const Part part(builder, elements, kBlockElements);
  const Expr byte = builder.op(Opcode::kShr, {part.numbers, part.numbers.like(3)});
  const Expr found = builder.cast(builder.load(mask, {byte.value()}, 1, part.count), DType::kI64);
  const Expr bit = builder.op(Opcode::kShr, {found, part.numbers & part.numbers.like(7)}) & found.like(1);
  const Expr value = converted(builder.load(x, {part.first}, 1, part.count), compute) * scale;
  builder.store(result, {part.first}, converted(select(bit == 1.0, value, value.like(0)), of_result));
  return builder.finish();
}

void add(jit::PackedArguments& arguments, const View& view) {
  arguments.buffer(view.data, std::array<int64_t, 1>{1});
}

}  // namespace

Launch prepare_dropout_mask(const View& mask, double p, uint64_t seed, uint64_t offset) {
  static KernelTable& table = *new KernelTable;  // outlives every thread
  require(p >= 0 && p <= 1, ErrorCode::kInvalidArgument, "a mask of dropout: p is ", p,
          "; 0 to 1 is accepted");
  jit::PackedArguments arguments;
  arguments.size(mask.elements());
  add(arguments, mask);
  arguments.scalar(DType::kI64, static_cast<int64_t>(seed));
  arguments.scalar(DType::kI64, static_cast<int64_t>(offset));
  arguments.scalar(DType::kI64, std::llround(std::ldexp(p, 32)));
  constexpr double kWork = 32;  // of Philox, for a byte
  return {table.find(KernelTable::Key(), mask_kernel), arguments, blocks_of(mask.elements(), kBlockBytes),
          kWork * static_cast<double>(mask.elements())};
}

Launch prepare_masked_dropout(const View& result, const View& x, const View& mask, double p) {
  static KernelTable& table = *new KernelTable;  // outlives every thread
  jit::PackedArguments arguments;
  arguments.size(x.elements());
  arguments.size(mask.elements());
  for (const View* view : {&result, &x, &mask}) add(arguments, *view);
  arguments.scalar(compute_type(x.dtype), p == 1 ? 0.0 : 1 / (1 - p));
  KernelTable::Key key;
  key.add(result.dtype);
  key.add(x.dtype);
  return {table.find(key, [&] { return masked_kernel(result.dtype, x.dtype); }), arguments,
          blocks_of(x.elements(), kBlockElements),
          static_cast<double>(x.span() + result.span() + mask.span())};
}

}  // namespace anynpu::ops
