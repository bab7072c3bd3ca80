#include "jit/jit.h"

#include <gtest/gtest.h>

#include <bit>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>
#include <thread>
#include <vector>

#include "base/error.h"
#include "fuzz/random_kernel.h"
#include "tile/lane.h"
#include "tile/text.h"

namespace anynpu::jit {
namespace {

using tile::Arguments;
using tile::parse;

void expect_no_difference(const tile::Workload& workload) {
  std::vector<tile::GuardedMemory> expected, actual;
  try {
    tile::interpret(workload.kernel, workload.on_copies(expected));
  } catch (const Error&) {  // of a position out of range
    for (const Isa isa : isas_of_processor())
      EXPECT_THROW(compile(workload.kernel, isa)->run(workload.on_copies(actual)), Error);
    return;
  }
  for (const Isa isa : isas_of_processor()) {
    compile(workload.kernel, isa)->run(workload.on_copies(actual));
    EXPECT_EQ(tile::difference(workload, expected, actual), "") << print(workload.kernel);
  }
}

TEST(Jit, RandomProgramsGiveWhatTheInterpreterGives) {
  const auto first = static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
  for (uint64_t seed = first; seed < first + 40 && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    expect_no_difference(tile::random_kernel(seed));
  }
}

/// Of fewer rows than states, of as many, and of some blocks.
TEST(Jit, ReductionsOverFewRowsGiveWhatTheInterpreterGives) {
  const tile::Kernel kernel = parse(R"(
  kernel @reductions(%x: f32[?r, ?c], %y: f32[7, ?c], %i: i64[1, ?c]) grid(1) {
    %a = load %x[0, 0] : tile<?r x ?c, f32>
    store %y[0, 0], (col_sum %a)
    store %y[1, 0], (col_prod %a)
    store %y[2, 0], (col_max %a)
    store %y[3, 0], (col_min %a)
    %mean, %squares = col_moments %a
    store %y[4, 0], %mean
    store %y[5, 0], %squares
    store %i[0, 0], (col_argmax %a)
  })")[0];
  std::mt19937_64 random(3);
  for (const int64_t rows : {0, 1, 2, 3, 4, 5, 8, 9, 16, 17, 31, 32, 33, 512, 513, 1030})
    expect_no_difference(tile::make_workload(kernel, {rows, 37}, tile::Layout::kRandom, random));
}

class JitKernels : public testing::Test {
 protected:
  static std::vector<float> wave(size_t count) {
    std::vector<float> values(count);
    for (size_t i = 0; i < count; ++i) values[i] = std::sin(static_cast<float>(i) * 0.7f) * 5;
    return values;
  }
};

constexpr const char* kSoftmax = R"(
  kernel @softmax(%x: f32[?r, ?c], %y: f32[?r, ?c]) grid(ceil(?r / 4)) {
    %a = load %x[4 * block, 0] : tile<min(4, ?r - 4 * block) x ?c, f32>
    %e = exp (sub %a, (row_max %a))
    store %y[4 * block, 0], (div %e, (row_sum %e))
  })";

TEST_F(JitKernels, OneCodeServesAllSizes) {
  const auto kernel = parse(kSoftmax)[0];
  for (const Isa isa : isas_of_processor()) {
    const auto compiled = compile(kernel, isa);
    for (const auto& [r, c] :
         {std::pair{0, 5}, {1, 0}, {1, 1}, {3, 7}, {5, 32}, {9, 100}, {2, 4096}, {2, 4097}, {1, 140000}}) {
      auto x = wave(static_cast<size_t>(r * c));
      std::vector<float> expected(x.size()), actual(x.size(), -1);
      const auto arguments = [&](std::vector<float>& y) {
        return Arguments{{r, c}, {{x.data(), {c, 1}}, {y.data(), {c, 1}}}, {}};
      };
      tile::interpret(kernel, arguments(expected));
      compiled->run(arguments(actual));
      EXPECT_EQ(expected, actual) << r << " x " << c;
    }
  }
}

TEST_F(JitKernels, BlocksRunInAnyNumberOfThreads) {
  const auto compiled = compile(parse(kSoftmax)[0]);
  constexpr int kRows = 64, kCols = 300;
  auto x = wave(kRows * kCols);
  std::vector<float> one(x.size()), many(x.size());
  const auto arguments = [&](std::vector<float>& y) {
    return Arguments{{kRows, kCols}, {{x.data(), {kCols, 1}}, {y.data(), {kCols, 1}}}, {}};
  };
  compiled->run(arguments(one));
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i)
    threads.emplace_back([&, i] { compiled->run(arguments(many), 2 * i, 2 * i + 2); });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(one, many);
}

TEST_F(JitKernels, SumsOfColumnsAreInTheOrderOfSumsOfRows) {
  const auto kernels = parse(R"(
    kernel @rows(%x: f32[?r, ?c; ?, ?], %y: f32[?r, 1]) grid(1) {
      %a = load %x[0, 0] : tile<?r x ?c, f32>
      store %y[0, 0], (row_sum %a)
    }
    kernel @cols(%x: f32[?r, ?c; ?, ?], %y: f32[1, ?c]) grid(1) {
      %a = load %x[0, 0] : tile<?r x ?c, f32>
      store %y[0, 0], (col_sum %a)
    })");
  constexpr int kLong = 9001, kShort = 3;  // more than two blocks of the order
  auto x = wave(kLong * kShort);
  std::vector<float> rows(kShort), cols(kShort), expected(kShort);
  compile(kernels[0])->run({{kShort, kLong}, {{x.data(), {1, kShort}}, {rows.data(), {1, 1}}}, {}});
  compile(kernels[1])->run({{kLong, kShort}, {{x.data(), {kShort, 1}}, {cols.data(), {kShort, 1}}}, {}});
  tile::interpret(kernels[0], {{kShort, kLong}, {{x.data(), {1, kShort}}, {expected.data(), {1, 1}}}, {}});
  EXPECT_EQ(rows, expected);
  EXPECT_EQ(cols, expected);
}

TEST_F(JitKernels, PositionsOutOfRangeAreNamedAndTheOthersDone) {
  const auto compiled = compile(parse(R"(
    kernel @rows(%x: f32[?n, ?c], %i: i64[?m], %y: f32[?m, ?c], %z: f32[?m]) grid(?m) {
      %k = load %i[block] : i64
      store %y[block, 0], (load %x[%k, 0] : tile<1 x ?c, f32>)
      %at = load %i[block] : tile<1 x 1, i64>
      store %z[block], (load %x[at %at, 0] : f32)
    })")[0]);
  auto x = wave(3 * 40);
  std::vector<int64_t> i = {2, -1, 3, 0};
  std::vector<float> y(4 * 40, -1), z(4, -1);
  const Arguments arguments = {
      {3, 40, 4}, {{x.data(), {40, 1}}, {i.data(), {1}}, {y.data(), {40, 1}}, {z.data(), {1}}}, {}};
  try {
    compiled->run(arguments);
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "kernel @rows: position 3 in dimension 0 of %x is out of range; 0 to 2 are accepted");
  }
  EXPECT_TRUE(std::equal(y.begin(), y.begin() + 40, x.begin() + 80));
  EXPECT_TRUE(std::equal(y.begin() + 120, y.end(), x.begin()));
  EXPECT_EQ(z[0], x[80]);
  EXPECT_EQ(z[3], x[0]);
}

TEST_F(JitKernels, PositionsAtTheEndsOfTheirTypeAreOutOfRange) {
  const auto kernels = parse(R"(
    kernel @read_rows(%x: f32[?n, ?c], %i: i64[1], %y: f32[1, ?c]) grid(1) {
      %k = load %i[0] : i64
      store %y[0, 0], (load %x[%k, 0] : tile<1 x ?c, f32>)
    }
    kernel @read_columns(%x: f32[?n, ?c], %i: i64[1], %y: f32[1, ?c]) grid(1) {
      %k = load %i[0] : i64
      store %y[0, 0], (load %x[0, %k] : tile<1 x ?c, f32>)
    }
    kernel @write_columns(%x: f32[?n, ?c], %i: i64[1], %y: f32[1, ?c]) grid(1) {
      %k = load %i[0] : i64
      store %x[0, %k], (load %x[0, 0] : tile<1 x ?c, f32>)
    }
    kernel @add_rows(%x: f32[?n, ?c], %i: i64[1], %y: f32[1, ?c]) grid(1) {
      %k = load %i[0] : i64
      accumulate %x[%k, 0], (load %x[0, 0] : tile<1 x ?c, f32>)
    })");
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max(), kLeast = std::numeric_limits<int64_t>::min();
  const std::vector<float> whole = wave(3 * 40);
  for (const auto& kernel : kernels)
    for (int64_t position : {kMost, kMost - 1, kMost - 8, kMost - 40, kLeast, kLeast + 40}) {
      auto x = whole, y = whole;
      const Arguments arguments = {{3, 40}, {{x.data(), {40, 1}}, {&position, {1}}, {y.data(), {40, 1}}}, {}};
      EXPECT_THROW(compile(kernel)->run(arguments), Error) << kernel.name << " at " << position;
      EXPECT_EQ(x, whole);
    }
}

TEST_F(JitKernels, WritesNothingBesideItsTile) {
  const auto compiled = compile(parse(R"(
    kernel @add(%x: bf16[?n], %y: bf16[?n]) grid(1) {
      store %y[0], (cast (add (cast (load %x[0] : tile<1 x ?n, bf16>) : f32), f32(1)) : bf16)
    })")[0]);
  for (int n = 0; n < 70; ++n) {
    std::vector<uint16_t> x(static_cast<size_t>(n), 0x3f80), y(100, 7);
    compiled->run({{n}, {{x.data(), {1}}, {y.data() + 10, {1}}}, {}});
    for (int i = 0; i < 100; ++i)
      EXPECT_EQ(y[static_cast<size_t>(i)], i >= 10 && i < 10 + n ? 0x4000 : 7) << n << ", " << i;
  }
}

TEST(JitFunctions, GiveTheBitsOfTheirDefinition) {
  std::vector<float> x;
  for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += 40009)
    x.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  for (const double special :
       {0., -0., 1e-45, -1e-45, 1., -1., 1e30, -1e30, std::nan(""), HUGE_VAL, -HUGE_VAL})
    x.push_back(static_cast<float>(special));
  const auto n = static_cast<int64_t>(x.size());
#define ANYNPU_OPCODE(opcode, name) tile::Opcode::opcode,
  for (const auto opcode : {ANYNPU_TILE_UNARY_FUNCTIONS(ANYNPU_OPCODE)}) {
#undef ANYNPU_OPCODE
    const std::string name(tile::info(opcode).name);
    const auto kernel = parse(concat("kernel @f(%x: f32[?n], %y: f32[?n]) grid(1) { store %y[0], (", name,
                                     " (load %x[0] : tile<1 x ?n, f32>)) }"))[0];
    for (const Isa isa : isas_of_processor()) {
      std::vector<float> y(x.size());
      compile(kernel, isa)->run({{n}, {{x.data(), {1}}, {y.data(), {1}}}, {}});
      for (size_t i = 0; i < x.size(); ++i) {
        const float expected = tile::lane::unary(opcode, x[i]);
        if (std::isnan(expected) && std::isnan(y[i])) continue;
        ASSERT_EQ(std::bit_cast<uint32_t>(y[i]), std::bit_cast<uint32_t>(expected)) << name << " of " << x[i];
      }
    }
  }
}

TEST(JitCode, ChainsStayInRegistersAndDearValuesAreKept) {
  EXPECT_EQ(code_text(parse(kSoftmax)[0], Stage::kSchedule),
            "nest min(4, ?r - 4 * block)\n"
            "  0 over ?c: row_max\n"
            "  1 over ?c: exp to row, row_sum\n"
            "  2 over ?c: store\n");
}

TEST(JitCode, DividesOnceForABlockOrATurn) {
  const std::string code = code_text(parse(R"(
    kernel @f(%x: f32[?a, ?b, ?r, ?c], %y: f32[?a, ?r, ?c]) grid(?a) {
      loop i0 = 0 to ?b step 1 {
        loop i1 = 0 to ?b step 1 {
          %a = load %x[block / ?b, i0 % ?c, 0, 0] : tile<?r x ?c, f32>
          store %y[block % ?b, i0 / ?c, 0], %a
          yield
        }
        yield
      }
    })")[0],
                                     Stage::kOptimized);
  std::vector<size_t> divisions;
  for (size_t at = code.find("sdiv"); at != std::string::npos; at = code.find("sdiv", at + 1))
    divisions.push_back(at);
  ASSERT_EQ(divisions.size(), 2u) << code;
  const size_t block = code.find("loop:"), loop = code.find("loop", code.find("loop", block + 5) + 4);
  EXPECT_GT(divisions[0], block) << code;
  EXPECT_LT(divisions[1], code.find("load <")) << code;
  EXPECT_GT(divisions[1], loop) << code;
}

TEST(JitCode, ComesForAArch64Too) {
  const std::string code = code_text(parse(R"(
    kernel @f(%x: f32[?n], %y: f32[?n]) grid(1) {
      %a = load %x[0] : tile<1 x ?n, f32>
      store %y[0], (fma %a, %a, %a)
    })")[0],
                                     Stage::kAssemblyAArch64);
  EXPECT_NE(code.find("fmla\tv"), std::string::npos) << code;
}

TEST(JitCode, NoProductAndSumAreFusedUnasked) {
  for (const Isa isa : isas_of_processor())
    EXPECT_EQ(code_text(parse(R"(
      kernel @f(%x: f32[?n], %y: f32[?n]) grid(1) {
        %a = load %x[0] : tile<1 x ?n, f32>
        store %y[0], (add (mul %a, %a), %a)
      })")[0],
                        Stage::kAssembly, isa)
                  .find("vfmadd"),
              std::string::npos);
}

TEST(JitErrors, AreRaisedBeforeAnythingRuns) {
  auto kernel =
      parse("kernel @f(%x: f32[?n]) grid(1) { store %x[0], (neg (load %x[0] : tile<1 x ?n, f32>)) }")[0];
  const auto compiled = compile(kernel);
  std::vector<float> x(4, 1);
  EXPECT_THROW(compiled->run({{}, {{x.data(), {1}}}, {}}), Error);
  EXPECT_THROW(compiled->run({{4}, {{x.data(), {2}}}, {}}), Error);
  kernel.body.instructions[1].operands[0] = tile::Value{77};
  EXPECT_THROW(compile(kernel), Error);
  EXPECT_EQ(x, std::vector<float>(4, 1));
}

TEST(JitErrors, MemoryWithoutBoundIsRefused) {
  const auto compiled = compile(parse(R"(
    kernel @f(%x: f32[?n], %i: i64[1], %y: f32[?n]) grid(1) {
      %k = load %i[0] : i64
      %e = exp (load %x[0] : tile<1 x %k, f32>)
      store %y[0], (div %e, (row_sum %e))
    })")[0]);
  std::vector<float> x(4), y(4);
  std::vector<int64_t> i = {4};
  try {
    compiled->run({{4}, {{x.data(), {1}}, {i.data(), {1}}, {y.data(), {1}}}, {}});
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("does not fit memory"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace anynpu::jit
