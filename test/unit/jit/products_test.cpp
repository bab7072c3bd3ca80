// Products of matrices and transposes, whose code depends on what is known of their extents.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <random>
#include <string>

#include "jit/jit.h"
#include "tile/text.h"
#include "workload.h"

namespace anynpu::jit {
namespace {

/// Compares machine code for each instruction set with the interpreter, for sizes around those of blocks.
void expect_no_difference(const std::string& text, std::initializer_list<std::array<int64_t, 3>> sizes) {
  const tile::Kernel kernel = tile::parse(text).at(0);
  std::mt19937_64 random(1);
  for (const Isa isa : isas_of_processor()) {
    const auto compiled = compile(kernel, isa);
    for (const auto& size : sizes) {
      const tile::Workload workload =
          tile::make_workload(kernel, {size.begin(), size.end()}, tile::Layout::kRandom, random);
      std::vector<tile::GuardedMemory> expected, actual;
      tile::interpret(kernel, workload.on_copies(expected));
      compiled->run(workload.on_copies(actual));
      EXPECT_EQ(tile::difference(workload, expected, actual), "")
          << size[0] << " x " << size[1] << " x " << size[2] << "\n"
          << text;
    }
  }
}

constexpr std::initializer_list<std::array<int64_t, 3>> kSizes = {
    {1, 1, 1},   {6, 16, 4},  {6, 16, 7}, {7, 17, 3}, {5, 15, 9},
    {12, 64, 5}, {13, 70, 6}, {3, 0, 2},  {0, 5, 2},  {4, 4, 0}};

TEST(Products, OfTilesOfAnySize) {
  for (const std::string dtype : {"f32", "f64", "i32"})
    expect_no_difference("kernel @p(%a: " + dtype + "[?m, ?k], %b: " + dtype + "[?k, ?n], %c: " + dtype +
                             R"([?m, ?n]) grid(1) {
  %x = load %a[0, 0] : tile<?m x ?k, )" +
                             dtype + R"(>
  %y = load %b[0, 0] : tile<?k x ?n, )" +
                             dtype + R"(>
  %z = load %c[0, 0] : tile<?m x ?n, )" +
                             dtype + R"(>
  %r = matmul %x, %y, %z
  store %c[0, 0], %r
})",
                         kSizes);
}

TEST(Products, OfBlocksInRegistersWithWhatTakesThem) {
  for (const char* rows : {"min(6, ?m - i0)", "min(2, ?m - i0)"})
    for (const char* cols : {"min(16, ?n - i1)", "min(24, ?n - i1)"})
      for (const char* take : {"store %c[i0, i1], (exp %r)", "accumulate %c[i0, i1], %r"}) {
        const std::string step = std::string(rows).substr(4, 1), width = std::string(cols).substr(4, 2);
        const std::string text =
            std::string(
                "kernel @p(%a: f16[?m, ?k; 1, ?], %b: bf16[?k, ?n], %c: f32[?m, ?n]) grid(1) local(%l: "
                "f32[?m, ?k]) {\n") +
            "  %f = load %a[0, 0] : tile<?m x ?k, f16>\n  %w = cast %f : f32\n  store %l[0, 0], %w\n"
            "  loop i0 = 0 to ?m step " +
            step + " {\n    loop i1 = 0 to ?n step " + width +
            " {\n"
            "      %x = load %l[i0, 0] : tile<" +
            rows +
            " x ?k, f32>\n"
            "      %y = load %b[0, i1] : tile<?k x " +
            cols +
            ", bf16>\n      %v = cast %y : f32\n"
            "      %z = broadcast f32(0) : tile<" +
            rows + " x " + cols +
            ", f32>\n"
            "      %r = matmul %x, %v, %z\n      " +
            take + "\n      yield\n    }\n    yield\n  }\n}\n";
        expect_no_difference(text, kSizes);
      }
}

TEST(Products, ReadWhatWasWrittenBefore) {
  expect_no_difference(R"(kernel @p(%a: f32[?m, ?k], %c: f32[?m, ?n]) grid(1) local(%l: f32[?k, ?n]) {
  loop i0 = 0 to 3 {
    %o = broadcast f32(2) : tile<?k x ?n, f32>
    store %l[0, 0], %o
    %x = load %a[0, 0] : tile<?m x ?k, f32>
    %y = load %l[0, 0] : tile<?k x ?n, f32>
    %h = broadcast f32(3) : tile<?k x ?n, f32>
    store %l[0, 0], %h
    %z = load %c[0, 0] : tile<?m x ?n, f32>
    %r = matmul %x, %y, %z
    store %c[0, 0], %r
    yield
  }
})",
                       kSizes);
}

TEST(Products, OfATransposedLeftMatrix) {
  for (const std::string dtype : {"f32", "f16", "f64"})
    for (const bool written_after : {false, true}) {  // then the product is of a copy
      const std::string write = written_after ? "      %h = broadcast " + dtype + "(3) : tile<?k x ?m, " +
                                                    dtype + ">\n      store %l[0, 0], %h\n"
                                              : "";
      const std::string sums = dtype == "f64" ? "f64" : "f32", type = ", " + sums + ">";
      expect_no_difference(
          "kernel @p(%a: " + dtype + "[?k, ?m], %b: " + sums + "[?k, ?n], %c: " + sums +
              "[?m, ?n]) grid(1) local(%l: " + dtype + "[?k, ?m]) {\n  %o = load %a[0, 0] : tile<?k x ?m, " +
              dtype +
              ">\n  store %l[0, 0], %o\n  loop i0 = 0 to ?m step 6 {\n    loop i1 = 0 to ?n step 16 {\n"
              "      %x = load %l[0, i0] : tile<?k x min(6, ?m - i0), " +
              dtype + ">\n" + write + (dtype == sums ? "" : "      %w = cast %x : f32\n") +
              "      %t = transpose " + (dtype == sums ? "%x" : "%w") +
              "\n      %y = load %b[0, i1] : tile<?k x min(16, ?n - i1)" + type + "\n      %z = broadcast " +
              sums + "(0) : tile<min(6, ?m - i0) x min(16, ?n - i1)" + type +
              "\n      %r = matmul %t, %y, %z\n      store %c[i0, i1], %r\n      yield\n    }\n    yield\n  "
              "}\n}\n",
          kSizes);
    }
}

/// Of numbers of any size in the upper halves, and of any bits in the lower ones; copied, or read in place.
TEST(Products, OfPairs) {
  for (const std::string sums : {"f32", "i32"})
    for (const bool in_place : {false, true}) {
      const std::string given = in_place ? "i32" : "f32",
                        pairs = in_place ? "" : "  %v = bitcast %x : i32\n  %w = bitcast %y : i32\n";
      expect_no_difference("kernel @p(%a: " + given + "[?m, ?k], %b: " + given + "[?k, ?n], %c: " + sums +
                               "[?m, ?n]) grid(1) {\n  %x = load %a[0, 0] : tile<?m x ?k, " + given +
                               ">\n  %y = load %b[0, 0] : tile<?k x ?n, " + given + ">\n" + pairs +
                               "  %z = broadcast " + sums + "(1) : tile<?m x ?n, " + sums +
                               ">\n  %r = matmul_pairs " + (in_place ? "%x, %y" : "%v, %w") +
                               ", %z\n  store %c[0, 0], %r\n}\n",
                           kSizes);
    }
}

/// Products and sums about the least normal number, which a processor's dot products round to zero.
TEST(Products, OfPairsOfTinyNumbers) {
  const tile::Kernel kernel =
      tile::parse(R"(kernel @p(%a: i32[1, ?k], %b: i32[?k, ?n], %c: f32[1, ?n]) grid(1) {
  %x = load %a[0, 0] : tile<1 x ?k, i32>
  %y = load %b[0, 0] : tile<?k x ?n, i32>
  %z = load %c[0, 0] : tile<1 x ?n, f32>
  %r = matmul_pairs %x, %y, %z
  store %c[0, 0], %r
})")
          .at(0);
  constexpr int64_t kDepth = 3, kCols = 1000;
  std::mt19937_64 random(7);
  const auto number = [&](int exponent) {
    return static_cast<uint32_t>((random() & 0x807f) | static_cast<uint64_t>(127 + exponent) << 7);
  };
  std::vector<int32_t> a(kDepth), b(kDepth * kCols);
  std::vector<float> start(kCols);
  for (auto& pair : a) pair = static_cast<int32_t>(number(-60) << 16 | number(-61));
  for (auto& pair : b)
    pair = static_cast<int32_t>(number(-65 - static_cast<int>(random() % 4)) << 16 | number(-66));
  for (float& sum : start) sum = std::bit_cast<float>(static_cast<uint32_t>(random() & 0x80ffffff));
  const auto results = [&](const auto& run) {
    std::vector<float> sums = start;
    run(tile::Arguments{
        {kDepth, kCols}, {{a.data(), {kDepth, 1}}, {b.data(), {kCols, 1}}, {sums.data(), {kCols, 1}}}, {}});
    std::vector<uint32_t> bits;
    for (const float sum : sums) bits.push_back(std::bit_cast<uint32_t>(sum));
    return bits;
  };
  const auto expected =
      results([&](const tile::Arguments& arguments) { tile::interpret(kernel, arguments); });
  EXPECT_GT(std::ranges::count(expected, 0u), kCols / 100);
  EXPECT_LT(std::ranges::count(expected, 0u), kCols / 2);
  for (const Isa isa : isas_of_processor()) {
    const auto compiled = compile(kernel, isa);
    EXPECT_EQ(results([&](const tile::Arguments& arguments) { compiled->run(arguments); }), expected);
  }
}

TEST(Transposes, ToMemoryOfTheBlock) {
  for (const std::string dtype : {"f32", "i8", "bf16", "f64"})
    expect_no_difference("kernel @t(%a: " + dtype + "[?m, ?n], %c: " + dtype +
                             "[?n, ?m], %d: f32[?k]) grid(1) local(%l: " + dtype + R"([?n, ?m]) {
  %x = load %a[0, 0] : tile<?m x ?n, )" +
                             dtype + R"(>
  %t = transpose %x
  store %l[0, 0], %t
  %y = load %l[0, 0] : tile<?n x ?m, )" +
                             dtype + R"(>
  store %c[0, 0], %y
})",
                         kSizes);
}

}  // namespace
}  // namespace anynpu::jit
