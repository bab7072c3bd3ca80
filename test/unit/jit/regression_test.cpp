// Programs on which machine code and the interpreter once differed, by what was wrong.

#include <gtest/gtest.h>

#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "jit/jit.h"
#include "tile/text.h"
#include "workload.h"

namespace anynpu::jit {
namespace {

struct Regression {
  const char* name;
  std::vector<int64_t> sizes;  ///< ?r and ?c
  const char* text;
};
void PrintTo(const Regression& regression, std::ostream* out) { *out << regression.name; }

const Regression kRegressions[] = {
    // What a loop that does not run would have put into memory.
    {"LoopWithoutTurns", {2, 2}, R"(
kernel @random(%b1: f64[1, ?c], %b2: i8[?r, ?c; ?, ?], %b3: f64[?r, ?c; ?, ?]) grid(?r) {
  %0 = load %b1[0, 0] : tile<1 x ?c, f64>
  %1 = row_scan_prod %0
  %2, %3 = loop i0 = 2 to 0 step 2 (%4 = %1, %5 = %1) {
    %6 = round %5
    yield %0, %1
  }
  store %b3[block, 0], %0
})"},
    {"ProductInALoopWithoutTurns", {3, 70}, R"(
kernel @random(%b1: f32[?r, ?c], %b2: f32[?r, ?c], %b3: f32[?r, ?c]) grid(1) {
  %0 = load %b1[0, 0] : tile<?r x ?c, f32>
  %1 = neg %0
  %2 = iota rows : tile<?r x 1, i32>
  %3 = cast %2 : f32
  %4 = iota cols : tile<1 x ?c, i32>
  %5 = cast %4 : f32
  %6 = loop i0 = 0 to ?c - 70 (%7 = %0) {
    %8 = loop i1 = 0 to 3 (%9 = %7) {
      %10 = matmul %3, %5, %1
      yield %10
    }
    yield %8
  }
  store %b2[0, 0], %1
  store %b3[0, 0], %6
})"},
    // Less than no columns.
    {"ColumnsBelowNone", {3, 50}, R"(
kernel @random(%b1: f32[?r, ?c], %b2: f32[?r, ?c], %b3: f32[?r, 1]) grid(?r) {
  %0 = load %b1[block, 0] : tile<1 x ?c - 30 * block, f32>
  %1 = neg %0
  %2 = row_sum %0
  store %b2[block, 0], %1
  store %b3[block, 0], %2
})"},
    // Squares beyond the tile's edges.
    {"TransposedTiles", {37, 70}, R"(
kernel @random(%b1: i8[?r, ?c], %b2: f64[?r, ?c], %b3: i8[?c, ?r], %b4: f64[?c, ?r], %b5: bool[?c, 1]) grid(1) {
  %0 = load %b1[0, 0] : tile<?r x ?c, i8>
  %1 = load %b2[0, 0] : tile<?r x ?c, f64>
  %2 = transpose %0
  %3 = transpose %1
  %4 = row_sum %1
  %5 = transpose %4
  %6 = add %3, %5
  %7 = row_max %6
  %8 = row_min %3
  %9 = gt %7, %8
  store %b3[0, 0], %2
  store %b4[0, 0], %6
  store %b5[0, 0], %9
})"},
    // Nothing is read beyond the last of them.
    {"EverySecondColumn", {7, 45}, R"(
kernel @random(%b1: f32[?r, ?c; ?, 2], %b2: i8[?r, ?c; ?, 2], %b3: f16[?r, ?c; ?, 2], %b4: f64[?r, ?c; ?, 2], %b5: f64[?r, ?c; ?, 2], %b6: i8[?r, ?c; ?, 2]) grid(?r * ?c) {
  %0 = load %b1[block % ?r, block / ?r] : tile<1 x ?c - block / ?r, f32>
  %1 = load %b2[block % ?r, block / ?r] : tile<1 x ?c - block / ?r, i8>
  %2 = load %b3[block % ?r, block / ?r] : tile<1 x ?c - block / ?r, f16>
  %3 = load %b4[block % ?r, block / ?r] : tile<1 x ?c - block / ?r, f64>
  %4 = cast %0 : f64
  %5 = cast %2 : f64
  %6 = add %4, %5
  %7 = row_sum (add %6, %3)
  store %b5[block % ?r, block / ?r], %7
  %8 = row_max %1
  store %b6[block % ?r, block / ?r], %8
})"},
    // The one empty block of a reduction of nothing.
    {"ReductionsOfNothing", {1, 0}, R"(
kernel @random(%b1: i64[?r, ?c], %b2: i64[?r, 1], %b3: i32[?r, 1]) grid((?r + 3) / 4) {
  %0 = load %b1[4 * block, 0] : tile<min(4, ?r - 4 * block) x ?c, i64>
  %1 = row_min %0
  %2 = cast %0 : i32
  %3 = row_prod %2
  %4 = col_argmin %0
  %5, %6 = loop i0 = 0 to 2 (%7 = %1, %8 = %3) {
    yield %1, %3
  }
  store %b2[4 * block, 0], %1
  store %b3[4 * block, 0], %3
})"},
    // Of the first emitter.
    {"ScalarsOfTheBlockInOneColumn", {70, 257}, R"(
kernel @random(%b1: i8[1, 1; ?, 0], %b2: u8[?r, 1], %b3: f64[?r, 1]) grid(?r) {
  %0 = load %b1[0, 0] : i8
  %1 = index block * 3 + ?c : i64
  %2 = cast %1 : f64
  %3 = erfc %2
  %4 = cast %1 : f64
  %5 = cast %0 : f64
  %6 = atan2 %4, %5
  %7 = cast %0 : f64
  %8 = atan2 %6, %7
  %9 = iota rows : u8
  %10 = cast %1 : f64
  %11 = sub %6, %10
  %12 = col_argmax %8
  %13 = row_scan_prod %1
  %14 = rem %13, %1
  %15 = asinh %6
  %16 = iota rows : u8
  %17, %18 = col_moments %6
  store %b2[block, 0], %9
  store %b3[block, 0], %15
})"},
    {"LoopsOfTilesOfSeveralRows", {5, 8}, R"(
kernel @random(%b1: bf16[?r, ?c], %b2: i64[?r, ?c], %b3: bf16[?r, ?c]) grid((?r + 3) / 4) {
  %0 = load %b1[4 * block, 0] : tile<min(4, ?r - 4 * block) x ?c, bf16>
  %1 = load %b2[4 * block, 0] : tile<min(4, ?r - 4 * block) x ?c, i64>
  %2 = cast %0 : bool
  %3 = select %2, %0, %0
  %4 = index 4 * block * 3 + ?c : i64
  %5 = cast %3 : i8
  %6 = cast %3 : i8
  %7 = shr_logical %5, %6
  %8 = row_scan_sum %7
  %9 = cast %8 : f32
  %10 = cast %4 : f32
  %11 = cast %4 : f32
  %12 = fma %9, %10, %11
  %13 = cast %7 : f64
  %14, %15 = col_moments %13
  %16 = cast %0 : f64
  %17 = cast %7 : f64
  %18 = le %16, %17
  %19 = cast %8 : f64
  %20 = log %19
  %21 = cast %15 : i8
  %22 = rem %8, %21
  %23 = row_argmin %22
  %24, %25 = loop i0 = 0 to 0 step 2 (%26 = %1, %27 = %3) {
    %28 = index i0 : i64
    %29 = sin %14
    %30 = cast %15 : i64
    %31 = cast %8 : i64
    %32 = shr %30, %31
    yield %32, %27
  }
  %33, %34 = loop i1 = 0 to 2 step 2 (%35 = %0, %36 = %1) {
    %37 = index i1 : i64
    %38 = log10 %12
    %39 = row_min %15
    yield %25, %36
  }
  %40 = cast %34 : bool
  %41 = cast %7 : f64
  %42 = select %40, %15, %41
  %43 = index 4 * block : i64
  %44 = cast %22 : i64
  %45, %46, %47, %48 = philox i64(42), %43, %44
  store %b3[4 * block, 0], %3
})"},
    {"ProductOfScansAndTransposedStore", {3, 2}, R"(
kernel @random(%b1: i32[?r, ?c], %b2: i32[?r, ?c; ?, ?], %b3: i32[?r, ?c]) grid(?r) {
  %0 = load %b1[block, 0] : tile<1 x ?c, i32>
  %1 = cast %0 : i16
  %2 = cast %1 : i32
  %3 = cast %0 : bool
  %4 = select %3, %1, %1
  %5 = row_scan_min %2
  %6 = cast %2 : f32
  %7 = cast %4 : f32
  %8 = cast %2 : f32
  %9 = fma %6, %7, %8
  %10 = row_max %9
  %11 = cast %2 : f32
  %12 = iota rows : i64
  %13 = cast %12 : f32
  %14 = iota cols : tile<1 x 5, i64>
  %15 = cast %14 : f32
  %16 = mul %13, %15
  %17 = iota cols : tile<1 x ?c, i64>
  %18 = cast %17 : f32
  %19 = iota rows : tile<5 x 1, i64>
  %20 = cast %19 : f32
  %21 = sub %18, %20
  %22 = matmul %16, %21, %11
  %23 = cast %9 : u8
  %24 = cast %9 : u8
  %25 = shr_logical %23, %24
  %26 = cast %2 : f64
  %27 = log1p %26
  %28 = loop i0 = 0 to 0 (%29 = %0) {
    %30 = index i0 : i64
    %31 = cast %25 : i16
    %32 = shl %1, %31
    %33 = cast %0 : f32
    %34 = row_scan_min %1
    yield %29
  }
  %35 = asin %22
  store %b2[block, 0], %5
  %36 = iota cols : tile<1 x ?c, i64>
  %37 = rem %36, i64(3)
  %38 = eq %37, i64(0)
  store %b3[block, 0], %0 mask %38
})"},
    {"MomentsOverOneRow", {2, 7}, R"(
kernel @random(%b1: bf16[?r, ?c; ?, 0], %b2: f64[?r, ?c; ?, ?], %b3: bool[?r, ?c], %b4: f64[?r, ?c]) grid(?r) {
  %0 = load %b1[block, 0] : tile<1 x ?c, bf16>
  %1 = cast %0 : f64
  %2 = cast %0 : f64
  %3 = cast %0 : f64
  %4 = fma %1, %2, %3
  %5 = div %4, %4
  %6, %7 = row_moments %5
  %8 = loop i0 = 0 to ?c % 5 step 2 (%9 = %0) {
    %10 = index i0 : i64
    %11 = iota cols : tile<1 x ?c, i32>
    %12 = cast %0 : f64
    %13 = add %5, %12
    %14 = index block : i64
    %15 = cast %4 : i64
    %16, %17, %18, %19 = philox i64(42), %14, %15
    yield %9
  }
  %20 = row_scan_sum %4
  %21 = cast %0 : bool
  %22 = cast %7 : bool
  %23 = ge %21, %22
  %24 = min %5, %4
  %25 = cast %0 : i8
  %26, %27 = col_moments %24
  %28 = cast %23 : i8
  %29 = ne %25, %28
  store %b2[block, 0], %26
  store %b3[block, 0], %29
  store %b4[block, 0], %24
})"},
    {"MaskOfOneColumnFromManyColumns", {5, 257}, R"(
kernel @random(%b1: bool[?r, ?c; ?, ?], %b2: i8[?r, 1], %b3: f64[?r, ?c], %b4: i8[?r, ?c], %b5: i8[?r, ?c; ?, ?]) grid((?r + 3) / 4) {
  %0 = load %b1[4 * block, 0] : tile<min(4, ?r - 4 * block) x ?c, bool>
  %1 = iota cols : i64
  %2 = rem %1, i64(3)
  %3 = eq %2, i64(0)
  %4 = load %b2[4 * block, 0] mask %3 : tile<min(4, ?r - 4 * block) x 1, i8>
  %5 = cast %0 : i8
  %6 = and %4, %5
  %7 = index 4 * block * 3 + ?c : i64
  %8 = row_scan_sum %6
  %9 = cast %4 : f64
  %10 = atanh %9
  %11 = broadcast %4 : tile<min(4, ?r - 4 * block) x ?c, i8>
  %12 = cast %7 : f64
  %13 = cast %4 : f64
  %14 = cast %11 : f64
  %15 = fma %12, %13, %14
  %16 = cast %11 : f64
  %17 = tanh %16
  store %b3[4 * block, 0], %17
  store %b4[4 * block, 0], %6
  store %b5[4 * block, 0], %11
})"},
    // Transposes of what memory holds, to a local buffer, in no loop of their own: of one column, and with
    // another store beside it.
    {"TransposeToALocalColumn", {5, 8}, R"(
kernel @random(%b1: i32[?r, ?c], %b2: i32[?r, ?c]) grid(?r) local(%l: i32[?c, 1]) {
  %0 = load %b1[block, 0] : tile<1 x ?c, i32>
  %1 = transpose %0
  store %l[0, 0], %1
  %2 = load %l[0, 0] : tile<?c x 1, i32>
  %3 = transpose %2
  store %b2[block, 0], %3
})"},
    {"TransposeToALocalAndAStoreBesideIt", {5, 35}, R"(
kernel @random(%b1: i32[?r, ?c], %b2: i32[?r, ?c], %b3: i32[?c, ?r], %b4: i32[?c, ?r]) grid(1) local(%l: i32[?c, ?r]) {
  %0 = load %b1[0, 0] : tile<?r x ?c, i32>
  %1 = load %b4[0, 0] : tile<?c x ?r, i32>
  %2 = transpose %0
  store %l[0, 0], %2
  store %b3[0, 0], %1
  %3 = load %l[0, 0] : tile<?c x ?r, i32>
  %4 = transpose %3
  store %b2[0, 0], %4
})"},
    // What is added to memory beside a transpose, whose elements are stored more than once.
    {"TransposeToALocalAndASumBesideIt", {5, 35}, R"(
kernel @random(%b1: i32[?r, ?c], %b2: i32[?r, ?c], %b3: i32[?c, ?r]) grid(1) local(%l: i32[?c, ?r], %s: i32[?c, ?r]) {
  %0 = broadcast i32(0) : tile<?c x ?r, i32>
  store %s[0, 0], %0
  %1 = load %b1[0, 0] : tile<?r x ?c, i32>
  %2 = load %b3[0, 0] : tile<?c x ?r, i32>
  %3 = transpose %1
  store %l[0, 0], %3
  accumulate %s[0, 0], %2
  %4 = load %s[0, 0] : tile<?c x ?r, i32>
  %5 = transpose %4
  store %b2[0, 0], %5
})"},
    // What is loaded before a store to the same memory in the same loop, and used after it.
    {"AReducedLoadBeforeAStoreInItsPlace", {3, 70}, R"(
kernel @again(%x: f32[?r, ?c], %y: f32[?r]) grid(1) local(%t: f32[?r, ?c]) {
  store %t[0, 0], (load %x[0, 0] : tile<?r x ?c, f32>)
  loop i0 = 0 to 1 {
    accumulate %t[0, 0], (load %x[0, 0] : tile<?r x ?c, f32>)
    yield
  }
  %a = load %t[0, 0] : tile<?r x ?c, f32>
  %s = row_sum %a
  store %t[0, 0], (neg (load %x[0, 0] : tile<?r x ?c, f32>))
  store %y[0], (transpose %s)
})"},
    {"AStoredLoadBeforeAStoreInItsPlace", {3, 70}, R"(
kernel @later(%x: f32[?r, ?c], %y: f32[?r, ?c]) grid(1) local(%t: f32[?r, ?c]) {
  store %t[0, 0], (load %x[0, 0] : tile<?r x ?c, f32>)
  loop i0 = 0 to 1 {
    accumulate %t[0, 0], (load %x[0, 0] : tile<?r x ?c, f32>)
    yield
  }
  %a = load %t[0, 0] : tile<?r x ?c, f32>
  store %t[0, 0], (neg (load %x[0, 0] : tile<?r x ?c, f32>))
  store %y[0, 0], %a
})"},
    {"ALoadThatWaitsForASumBeforeAStoreInItsPlace", {3, 70}, R"(
kernel @phases(%x: f32[?r, ?c], %y: f32[?r, ?c]) grid(1) local(%t: f32[?r, ?c]) {
  store %t[0, 0], (load %x[0, 0] : tile<?r x ?c, f32>)
  loop i0 = 0 to 1 {
    accumulate %t[0, 0], (load %x[0, 0] : tile<?r x ?c, f32>)
    yield
  }
  %x1 = load %x[0, 0] : tile<?r x ?c, f32>
  %s = row_sum %x1
  %a = load %t[0, 0] mask (lt %x1, %s) else f32(0) : tile<?r x ?c, f32>
  store %t[0, 0], (neg %x1)
  store %y[0, 0], %a
})"},
    {"AnUnusedLoadBeforeAStoreInItsPlace", {3, 70}, R"(
kernel @unused(%b1: i32[?r, 1], %b2: i32[?r, ?c]) grid(1) local(%l: i32[?r, 1]) {
  %0 = load %b1[0, 0] : tile<?r x 1, i32>
  %1 = neg %0
  %2 = row_min %1
  store %l[0, 0], %1
  %3 = load %l[0, 0] : tile<?r x 1, i32>
  %4 = cast %2 : bool
  %5 = load %l[0, 0] mask %4 else i32(0) : tile<?r x 1, i32>
  store %l[0, 0], %0
})"},
};

class JitRegressions : public testing::TestWithParam<Regression> {};

TEST_P(JitRegressions, GiveWhatTheInterpreterGives) {
  std::mt19937_64 random(1);
  const auto workload = tile::make_workload(tile::parse(GetParam().text).at(0), GetParam().sizes,
                                            tile::Layout::kRandom, random);
  std::vector<tile::GuardedMemory> expected, actual;
  tile::interpret(workload.kernel, workload.on_copies(expected));
  for (const Isa isa : isas_of_processor()) {
    compile(workload.kernel, isa)->run(workload.on_copies(actual));
    EXPECT_EQ(tile::difference(workload, expected, actual), "");
  }
}

INSTANTIATE_TEST_SUITE_P(Programs, JitRegressions, testing::ValuesIn(kRegressions),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace anynpu::jit
