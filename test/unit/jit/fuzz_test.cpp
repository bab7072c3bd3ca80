// What the fuzzer relies on.

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "base/error.h"
#include "fuzz/coverage.h"
#include "fuzz/random_kernel.h"
#include "fuzz/unfused.h"
#include "jit/jit.h"
#include "tile/text.h"

namespace anynpu::tile {
namespace {

TEST(RandomPrograms, HaveEveryOperationOfEveryTypeAndAddressMemoryInEveryWay) {
  Coverage coverage;
  for (uint64_t seed = 0; seed < 4000; ++seed) coverage.add(random_program(seed));
  EXPECT_EQ(coverage.missing(), "");
}

TEST(Coverage, NamesWhatIsMissing) {
  Coverage coverage;
  coverage.add(parse(R"(
    kernel @f(%x: f32[?n], %y: bf16[?n]) grid(1) {
      store %y[0], (cast (neg (load %x[0] : tile<1 x ?n, f32>)) : bf16)
    })")[0]);
  const std::string missing = "\n" + coverage.missing();
  for (const char* seen : {"load of f32", "neg of f32", "cast from f32 to bf16", "store of bf16"})
    EXPECT_EQ(missing.find(concat("\n", seen, "\n")), std::string::npos) << seen;
  for (const char* not_seen :
       {"load of f64", "neg of f64", "cast from bf16 to f32", "store of f32", "loop of f32", "masked load"})
    EXPECT_NE(missing.find(concat("\n", not_seen, "\n")), std::string::npos) << not_seen;
}

std::string difference_to_unfused(const Workload& workload) {
  std::vector<GuardedMemory> fused, unfused;
  jit::compile(workload.kernel)->run(workload.on_copies(fused));
  run_unfused(workload.kernel, workload.on_copies(unfused),
              [](const Kernel& kernel) { return jit::compile(kernel); });
  return difference(workload, fused, unfused);
}

/// Loops that carry values past each other, that do not turn, and one in the other; scalars of the call and
/// of memory; positions, masks, and tiles that are smaller in the last block.
constexpr const char* kProgram = R"(
  kernel @all(%x: f32[?r, ?c], %i: i32[?r], %y: f32[?r, ?c], %z: f32[?r, ?c], %s: f32) grid(ceil(?r / 4)) {
    %a = load %x[4 * block, 0] : tile<min(4, ?r - 4 * block) x ?c, f32>
    %k = rem (index block : i64), (index ?r : i64)
    %b = load %x[%k, 0] : tile<1 x ?c, f32>
    %n3 = mul (iota cols : tile<1 x ?c, i64>), i64(3)
    %p = rem %n3, (index ?c : i64)
    %g = load %x[4 * block, at %p] : tile<min(4, ?r - 4 * block) x ?c, f32>
    %m = gt %g, (mul %b, %s)
    %u, %v = loop i0 = 0 to ?c % 4 (%l = %a, %n = %g) {
      %o, %q = loop i1 = i0 to 3 (%t = %n, %w = %l) {
        %h = add %t, (cast (index i1 + i0 : i64) : f32)
        yield %w, %h
      }
      yield %q, %o
    }
    %e, %f = loop i2 = 5 to 2 (%e0 = %v, %f0 = %u) {
      yield %f0, %e0
    }
    store %y[4 * block, 0], (sub %e, (row_sum %f))
    store %z[4 * block, at %p], %u mask %m
  })";

TEST(Unfused, GivesTheBitsOfOneKernel) {
  const auto kernel = parse(kProgram).at(0);
  for (const int64_t cols : {1, 6, 35}) {
    std::mt19937_64 random(static_cast<uint64_t>(cols));
    EXPECT_EQ(difference_to_unfused(make_workload(kernel, {6, cols}, Layout::kRandom, random)), "") << cols;
  }
}

TEST(Unfused, GivesTheBitsOfRandomPrograms) {
  const auto first = static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
  for (uint64_t seed = first; seed < first + 5 && !testing::Test::HasFailure(); ++seed) {
    const auto workload = random_kernel(seed);
    SCOPED_TRACE("seed " + std::to_string(seed));
    try {
      EXPECT_EQ(difference_to_unfused(workload), "") << print(workload.kernel);
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("is out of range"), std::string::npos) << error.what();
    }
  }
}

TEST(Unfused, RefusesExtentsThatFollowFromData) {
  const auto kernel = parse(R"(
    kernel @f(%x: f32[?n], %i: i64[1], %y: f32[?n]) grid(1) {
      %k = load %i[0] : i64
      store %y[0], (neg (load %x[0] : tile<1 x %k, f32>))
    })")[0];
  std::mt19937_64 random(1);
  EXPECT_THROW(difference_to_unfused(make_workload(kernel, {4}, Layout::kDense, random)), Error);
}

TEST(GuardedMemories, FaultBeyondTheirEdgeAndSeeWritesOnTheOtherSide) {
  for (const size_t size : {0, 1, 100, 4095, 4096, 5000}) {
    GuardedMemory first(size, GuardedMemory::Edge::kStart), last(size, GuardedMemory::Edge::kEnd);
    EXPECT_FALSE(readable(first.data() - 1)) << size;
    EXPECT_FALSE(readable(last.data() + size)) << size;
    if (size == 0) continue;
    for (const GuardedMemory* memory : {&first, &last}) {
      EXPECT_TRUE(readable(memory->data()) && readable(memory->data() + size - 1)) << size;
      EXPECT_EQ(memory->data()[size - 1], std::byte{0});
      EXPECT_TRUE(memory->intact());
    }
    if (size % 4096 == 0) continue;
    GuardedMemory copy = first;
    copy.data()[size] = std::byte{1};
    EXPECT_FALSE(copy.intact());
    EXPECT_TRUE(first.intact());
    *(last.data() - 1) = std::byte{1};
    EXPECT_FALSE(last.intact());
  }
}

}  // namespace
}  // namespace anynpu::tile
