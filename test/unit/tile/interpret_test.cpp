#include "tile/interpret.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "tile/builder.h"
#include "tile/reduce.h"
#include "tile/text.h"

namespace anynpu::tile {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
const float kNaN = std::nanf("");

template <class T>
BufferArgument argument(std::vector<T>& memory, std::vector<int64_t> strides) {
  return {memory.data(), std::move(strides)};
}

TEST(TileInterpreter, SoftmaxOfRows) {
  const Kernel kernel = parse(R"(
    kernel @softmax(%x: f32[?r, ?c], %y: f32[?r, ?c]) grid(?r) {
      %x1 = load %x[block, 0] : tile<1 x ?c, f32>
      %e = exp (sub %x1, (row_max %x1))
      store %y[block, 0], (div %e, (row_sum %e))
    })")[0];
  std::vector<float> x = {1, 2, 3, 0, 0, kInf}, y(6, -1);
  interpret(kernel, {{2, 3}, {argument(x, {3, 1}), argument(y, {3, 1})}, {}});
  const double sum = std::exp(-2.) + std::exp(-1.) + 1;
  for (int i = 0; i < 3; ++i) EXPECT_NEAR(y[static_cast<size_t>(i)], std::exp(i - 2.) / sum, 1e-7);
  EXPECT_TRUE(std::isnan(y[3]) && std::isnan(y[5]));
}

TEST(TileInterpreter, StridesBroadcastsMasksAndTheEdge) {
  const Kernel kernel = parse(R"(
    kernel @add(%a: f32[?r, ?c; ?, ?], %b: f32[1, ?c; 0, ?], %y: f32[?r, ?c; ?, ?]) grid(ceil(?r / 2)) {
      %a1 = load %a[2 * block, 0] : tile<min(2, ?r - 2 * block) x ?c, f32>
      %b1 = load %b[0, 0] : tile<1 x ?c, f32>
      %s = add %a1, %b1
      store %y[2 * block, 0], %s mask (gt %s, f32(12))
    })")[0];
  std::vector<float> a = {1, 2, 3, 4, 5, 6}, b = {10, -1, 20}, y(6, 0);
  // a is 3 x 2, read as its transpose would be stored; b takes every second element; y is written transposed.
  interpret(kernel, {{3, 2}, {argument(a, {1, 3}), argument(b, {0, 2}), argument(y, {1, 3})}, {}});
  EXPECT_EQ(y, (std::vector<float>{0, 0, 13, 24, 25, 26}));
}

TEST(TileInterpreter, PositionsFromMemory) {
  const Kernel kernel = parse(R"(
    kernel @rows(%x: f32[?n, 2], %i: i64[?m], %y: f32[?m, 2], %sum: f32[?n]) grid(1) {
      %at = load %i[0] : tile<1 x ?m, i64>
      loop i0 = 0 to ?m {
        %k = load %i[i0] : i64
        store %y[i0, 0], (load %x[%k, 0] : tile<1 x 2, f32>)
        yield
      }
      accumulate %sum[at %at], (broadcast f32(1) : tile<1 x ?m, f32>)
    })")[0];
  std::vector<float> x = {1, 2, 3, 4, 5, 6}, y(8), sum(3);
  std::vector<int64_t> i = {2, 0, 2, 1};
  const Arguments arguments = {
      {3, 4}, {argument(x, {2, 1}), argument(i, {1}), argument(y, {2, 1}), argument(sum, {1})}, {}};
  interpret(kernel, arguments);
  EXPECT_EQ(y, (std::vector<float>{5, 6, 1, 2, 5, 6, 3, 4}));
  EXPECT_EQ(sum, (std::vector<float>{1, 1, 2}));
  i[3] = 3;
  try {
    interpret(kernel, arguments);
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "kernel @rows: position 3 in dimension 0 of %x is out of range; 0 to 2 are accepted");
  }
}

TEST(TileInterpreter, LoopsCarryTiles) {
  Builder b("sum_of_blocks");
  const Index n = b.size("n");
  const int x = b.buffer("x", DType::kF32, {n}), y = b.buffer("y", DType::kF32, {1});
  const auto sum = b.loop(0, n, 3, {b.constant(DType::kF32, 0.0), b.constant(DType::kI64, int64_t{0})},
                          [&](const Index& i, const std::vector<Expr>& carried) -> std::vector<Expr> {
                            const Expr part = b.load(x, {i}, 1, min(3, n - i));
                            return {carried[0] + row_sum(part), carried[1] + b.index(i)};
                          });
  b.store(y, {0}, sum[0] * b.cast(sum[1], DType::kF32));
  const Kernel kernel = b.finish();
  EXPECT_EQ(print(parse(print(kernel))[0]), print(kernel));
  std::vector<float> data(8), result(1);
  std::iota(data.begin(), data.end(), 1.f);
  interpret(kernel, {{8}, {argument(data, {1}), argument(result, {1})}, {}});
  EXPECT_EQ(result[0], 36 * 9);
}

/// y of one column and one block.
std::vector<float> run_on(const std::string& statements, std::vector<float> x) {
  const Kernel kernel =
      parse("kernel @k(%x: f32[?n], %y: f32[?n]) grid(1) { %a = load %x[0] : tile<1 x ?n, f32>\n" +
            statements + "\nstore %y[0], %r }")[0];
  std::vector<float> y(x.size(), -77);
  interpret(kernel, {{static_cast<int64_t>(x.size())}, {argument(x, {1}), argument(y, {1})}, {}});
  return y;
}

TEST(TileInterpreter, MinMaxAndComparisonsOfSpecialValues) {
  EXPECT_TRUE(std::signbit(run_on("%r = min %a, f32(0)", {-0.f})[0]));
  EXPECT_FALSE(std::signbit(run_on("%r = max %a, f32(0)", {-0.f})[0]));
  EXPECT_TRUE(std::isnan(run_on("%r = max %a, f32(nan)", {1})[0]));
  EXPECT_TRUE(std::isnan(run_on("%r = min %a, f32(1)", {kNaN})[0]));
  EXPECT_EQ(run_on("%r = cast (ne %a, %a) : f32", {1, kNaN}), (std::vector<float>{0, 1}));
  EXPECT_EQ(
      run_on("%r = broadcast (cast (row_argmax %a) : f32) : tile<1 x ?n, f32>", {1, kNaN, kInf, kNaN})[0], 1);
  EXPECT_EQ(run_on("%r = broadcast (cast (row_argmin %a) : f32) : tile<1 x ?n, f32>", {3, 1, 1})[0], 1);
}

TEST(TileInterpreter, CastsOutOfRange) {
  const std::vector<float> x = {1.9f, -1.9f, 300, -1, 3e9f, kNaN, kInf};
  EXPECT_EQ(run_on("%r = cast (cast %a : i32) : f32", x),
            (std::vector<float>{1, -1, 300, -1, -0x1p31f, -0x1p31f, -0x1p31f}));
  EXPECT_EQ(run_on("%r = cast (cast %a : u8) : f32", x), (std::vector<float>{1, 255, 44, 255, 0, 0, 0}));
  EXPECT_EQ(run_on("%r = cast (cast %a : u8 saturate) : f32", x),
            (std::vector<float>{1, 0, 255, 0, 255, 0, 255}));
  EXPECT_EQ(run_on("%r = cast (cast %a : i64) : f32", x)[4], 3e9f);
  EXPECT_EQ(run_on("%r = cast (cast %a : f16) : f32", {65519, 65520, 1e-8f, 2049}),
            (std::vector<float>{65504, kInf, 0, 2048}));
  EXPECT_EQ(run_on("%r = cast (cast %a : bf16) : f32", {1.00390625f, 3.4e38f}),
            (std::vector<float>{1, kInf}));
}

TEST(TileInterpreter, IntegersWrapAndDivideByZero) {
  const auto on = [](const std::string& op, int64_t a, int64_t b) {
    const Kernel kernel =
        parse("kernel @k(%y: i64[1], %a: i64, %b: i64) grid(1) { store %y[0], (" + op + " %a, %b) }")[0];
    std::vector<int64_t> y(1);
    interpret(kernel, {{}, {argument(y, {1})}, {Literal(a), Literal(b)}});
    return y[0];
  };
  constexpr int64_t kMin = std::numeric_limits<int64_t>::min(), kMax = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(on("add", kMax, 1), kMin);
  EXPECT_EQ(on("mul", kMin, -1), kMin);
  EXPECT_EQ(on("div", kMin, -1), kMin);
  EXPECT_EQ(on("rem", kMin, -1), 0);
  EXPECT_EQ(on("div", 7, 0), 0);
  EXPECT_EQ(on("rem", 7, 0), 7);
  EXPECT_EQ(on("div", -7, 2), -3);
  EXPECT_EQ(on("shl", 1, 64), 0);
  EXPECT_EQ(on("shr", -1, 99), -1);
  EXPECT_EQ(on("shr_logical", -1, 63), 1);
  EXPECT_EQ(on("shl", 1, -1), 0);
}

TEST(TileReduce, SumsInTheOrderItPromises) {
  // By the words of reduce.h, for a count that ends in the midst of a block and of the lanes.
  constexpr int64_t kCount = 2 * kReduceBlock + 100;
  std::vector<float> x(kCount);
  for (size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i)) * 1e3f;
  std::vector<float> blocks;
  for (int64_t begin = 0; begin < kCount; begin += kReduceBlock) {
    float lanes[32] = {};
    for (int64_t i = begin; i < std::min(kCount, begin + kReduceBlock); ++i)
      lanes[(i - begin) % 32] += x[static_cast<size_t>(i)];
    for (int half : {16, 8, 4, 2, 1})
      for (int l = 0; l < half; ++l) lanes[l] += lanes[l + half];
    blocks.push_back(lanes[0]);
  }
  const float expected = (0.f + blocks[0]) + (0.f + blocks[2]) + (0.f + blocks[1]);  // lanes 0 and 2, then 1
  EXPECT_EQ(reduce<SumReduction<float>>(kCount, [&](int64_t i) { return x[static_cast<size_t>(i)]; }),
            expected);
}

TEST(TileReduce, NothingGivesTheIdentity) {
  const auto none = [](int64_t) { return 1.f; };
  EXPECT_EQ(reduce<SumReduction<float>>(0, none), 0);
  EXPECT_EQ(reduce<ProdReduction<float>>(0, none), 1);
  EXPECT_EQ(reduce<MaxReduction<float>>(0, none), -kInf);
}

TEST(TileReduce, MomentsAgreeWithTwoPasses) {
  std::vector<float> x(10000);
  for (size_t i = 0; i < x.size(); ++i) x[i] = 1000 + std::cos(static_cast<float>(i * i));
  double mean = 0, squares = 0;
  for (const float value : x) mean += value / static_cast<double>(x.size());
  for (const float value : x) squares += (value - mean) * (value - mean);
  const auto moments = reduce<MomentsReduction<float>>(static_cast<int64_t>(x.size()),
                                                       [&](int64_t i) { return x[static_cast<size_t>(i)]; });
  EXPECT_NEAR(moments.mean, mean, 1e-4);
  EXPECT_NEAR(moments.squares, squares, squares * 1e-5);
}

TEST(TilePhilox, MatchesThePublishedVectors) {
  // Of the paper's implementation, kat_vectors: philox4x32-10.
  const Kernel kernel = parse(R"(
    kernel @k(%y: i32[4], %seed: i64, %offset: i64, %sub: i64) grid(1) {
      %a, %b, %c, %d = philox %seed, %offset, %sub
      store %y[0], %a
      store %y[1], %b
      store %y[2], %c
      store %y[3], %d
    })")[0];
  std::vector<uint32_t> y(4);
  const auto run = [&](uint64_t seed, uint64_t offset, uint64_t sub) {
    interpret(kernel, {{},
                       {argument(y, {1})},
                       {Literal(static_cast<int64_t>(seed)), Literal(static_cast<int64_t>(offset)),
                        Literal(static_cast<int64_t>(sub))}});
    return y;
  };
  EXPECT_EQ(run(0, 0, 0), (std::vector<uint32_t>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(run(~0ull, ~0ull, ~0ull),
            (std::vector<uint32_t>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
}

TEST(TileArguments, AreChecked) {
  const Kernel kernel = parse("kernel @k(%x: f32[?n]) grid(?n) {}")[0];
  std::vector<float> x(4);
  EXPECT_THROW(interpret(kernel, {{}, {argument(x, {1})}, {}}), Error);
  EXPECT_THROW(interpret(kernel, {{-1}, {argument(x, {1})}, {}}), Error);
  EXPECT_THROW(interpret(kernel, {{4}, {argument(x, {2})}, {}}), Error);
  EXPECT_THROW(interpret(kernel, {{4}, {argument(x, {1, 1})}, {}}), Error);
  EXPECT_NO_THROW(interpret(kernel, {{4}, {argument(x, {1})}, {}}));
}

TEST(TileIndex, SimplifiesAndCompares) {
  const Index n = Index::size(0), block = Index::block();
  EXPECT_EQ(n + 0, n);
  EXPECT_EQ(1 * n, n);
  EXPECT_EQ(n * 0, 0);
  EXPECT_EQ(n - n, 0);
  EXPECT_EQ(min(4, n - 4 * block), min(4, n - 4 * block));
  EXPECT_FALSE(n + 1 == n + 2);
  EXPECT_EQ(min(4, n).upper_bound(), 4);
  EXPECT_EQ((n % 8).upper_bound(), 7);
  EXPECT_EQ(n.upper_bound(), std::nullopt);
  EXPECT_EQ(Index(-7) / 2, -4);
  EXPECT_EQ(Index(-7) % 2, 1);
  EXPECT_EQ(ceil_div(Index(7), 2), 4);
}

}  // namespace
}  // namespace anynpu::tile
