// Products of matrices and transposes, whose code depends on what is known of their extents.

#include <gtest/gtest.h>

#include <array>
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
  for (const Isa isa :
       isa_of_machine() == Isa::kAvx512 ? std::vector{Isa::kAvx2, Isa::kAvx512} : std::vector{Isa::kAvx2}) {
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
