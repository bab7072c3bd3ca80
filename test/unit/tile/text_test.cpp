#include "tile/text.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "tile/verify.h"

namespace anynpu::tile {
namespace {

std::string message_of(const std::string& text) {
  try {
    parse(text);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "accepted";
}

TEST(TileText, ReadsBackWhatItPrints) {
  const std::string text =
      R"(kernel @add_rms_norm(%x: f16[?r, ?c], %res: f16[?r, ?c], %w: f16[?c], %y: f16[?r, ?c], %eps: f32) grid((?r + 3) / 4) {
  %a = load %x[4 * block, 0] : tile<min(4, ?r - 4 * block) x ?c, f16>
  %b = load %res[4 * block, 0] : tile<min(4, ?r - 4 * block) x ?c, f16>
  %0 = cast %a : f32
  %1 = cast %b : f32
  %2 = add %0, %1
  %h = cast %2 : f16
  %s = cast %h : f32
  %3 = mul %s, %s
  %m = row_sum %3
  %4 = index ?c : i64
  %5 = cast %4 : f32
  %6 = div %m, %5
  %7 = add %6, %eps
  %8 = sqrt %7
  %k = div f32(1), %8
  %g = load %w[0] : tile<1 x ?c, f16>
  %9 = mul %s, %k
  %10 = cast %g : f32
  %11 = mul %9, %10
  %12 = cast %11 : f16
  store %y[4 * block, 0], %12
}
)";
  const auto kernels = parse(text);
  ASSERT_EQ(kernels.size(), 1u);
  EXPECT_EQ(print(kernels[0]), text);
}

TEST(TileText, ListsSizesThatItsRestDoesNotGiveInTheirOrder) {
  const std::string rest = "(%x: f32[?n, ?c; ?, ?], %y: f32[?c]) grid(?n) {\n}\n";
  const auto printed = [&](std::vector<std::string> sizes) {
    Kernel kernel = parse("kernel @f" + rest)[0];
    const auto at = [&](const char* name) {
      return Index::size(static_cast<int>(std::ranges::find(sizes, name) - sizes.begin()));
    };
    kernel.buffers[0].sizes = {at("n"), at("c")};
    kernel.buffers[1].sizes = {at("c")};
    kernel.grid = at("n");
    kernel.sizes = std::move(sizes);
    const std::string text = print(kernel);
    EXPECT_EQ(parse(text)[0].sizes, kernel.sizes);
    EXPECT_EQ(print(parse(text)[0]), text);
    return text;
  };
  EXPECT_EQ(printed({"n", "c"}), "kernel @f" + rest);
  EXPECT_EQ(printed({"c", "n"}), "kernel @f[?c, ?n]" + rest);
  EXPECT_EQ(printed({"n", "c", "other"}), "kernel @f[?n, ?c, ?other]" + rest);
  EXPECT_EQ(printed({"other", "n", "c"}), "kernel @f[?other, ?n, ?c]" + rest);
  EXPECT_NE(message_of("kernel @f[?n, ?n]() grid(1) {}").find("?n is declared twice"), std::string::npos);
  EXPECT_NE(message_of("kernel @f[n]() grid(1) {}").find("'?' is expected"), std::string::npos);
}

TEST(TileText, NamesAreOfOneSizeOrBuffer) {
  const Kernel kernel = parse("kernel @f[?n, ?c](%x: f32[?n], %y: f32[?c]) grid(1) {}")[0];
  const auto message = [](const Kernel& wrong) -> std::string {
    try {
      verify(wrong);
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  for (const char* name : {"n", "", "a b"}) {
    Kernel wrong = kernel;
    wrong.sizes[1] = name;
    EXPECT_NE(message(wrong).find(concat("size ?", name, " has no name of its own")), std::string::npos);
  }
  for (const char* name : {"x", "", "a,b"}) {
    Kernel wrong = kernel;
    wrong.buffers[1].name = name;
    EXPECT_NE(message(wrong).find(concat("buffer %", name, " has no name of its own")), std::string::npos);
  }
}

TEST(TileText, HasAFormForEverything) {
  const std::string text =
      R"(kernel @all(%x: f32[?n, 8, ?c; ?, ?, 0], %i: i32[?n], %y: f32[?n, ?c; 1, ?], %seed: i64) grid(?n) {
  %mask = iota cols : tile<1 x ?c, i64>
  %0 = index 2 * (block % 3) + max(1, block) : i64
  %1 = lt %mask, %0
  %row = load %i[block] : i32
  %2 = load %x[%row, 3, 0] mask %1 else f32(-inf) : tile<1 x ?c, f32>
  %at = cast %mask : i64
  %3 = load %x[block, 2, at %at] : tile<1 x ?c, f32>
  %4, %5 = row_moments %2
  %w0, %w1, %w2, %w3 = philox %seed, i64(7), %mask
  %6 = bitcast %w0 : f32
  %7 = cast %6 : i32 saturate
  %8 = cast %2 : bool
  %9 = broadcast %4 : tile<1 x ?c, f32>
  %10 = select %8, %9, %3
  %11, %12 = loop i0 = 0 to ?c step 4 (%acc = %10, %n = i64(0)) {
    %13 = loop i1 = i0 to min(?c, i0 + 4) (%acc2 = %acc) {
      %14 = fma %acc2, f32(0.5), f32(nan)
      yield %14
    }
    %15 = add %n, i64(1)
    yield %13, %15
  }
  store %y[block, 0], %11 mask %1
  %16 = broadcast f32(1) : tile<1 x ?c, f32>
  accumulate %y[block, at %at], %16
}
)";
  EXPECT_EQ(print(parse(text).at(0)), text);
}

TEST(TileText, TakesOperationsAsOperands) {
  const auto kernels = parse(R"(
    kernel @f(%x: f32[?c], %y: f32[?c]) grid(1) {  // a remark
      store %y[0], (mul (load %x[0] : tile<1 x ?c, f32>), f32(2))
    }
    kernel @g(%x: f32[8, ?n]) grid(ceil(?n / 8)) {}
  )");
  ASSERT_EQ(kernels.size(), 2u);
  EXPECT_EQ(print(kernels[0]), R"(kernel @f(%x: f32[?c], %y: f32[?c]) grid(1) {
  %0 = load %x[0] : tile<1 x ?c, f32>
  %1 = mul %0, f32(2)
  store %y[0], %1
}
)");
  EXPECT_EQ(print(kernels[1]), "kernel @g(%x: f32[8, ?n]) grid((?n + 7) / 8) {\n}\n");
}

struct Wrong {
  const char* body;
  const char* message;
};

class TileErrors : public testing::TestWithParam<Wrong> {};

TEST_P(TileErrors, NameWhatIsWrong) {
  const std::string head =
      "kernel @k(%x: f32[?r, ?c], %h: f16[?c], %z: f32[?r, ?c; 1, 0], %s: f32) grid(?r) {\n"
      "%a = load %x[block, 0] : tile<1 x ?c, f32>\n";
  EXPECT_NE(message_of(head + GetParam().body + "\n}").find(GetParam().message), std::string::npos)
      << message_of(head + GetParam().body + "\n}");
}

INSTANTIATE_TEST_SUITE_P(
    Bodies, TileErrors,
    testing::Values(
        Wrong{"%b = foo %a", "line 3, column 6: 'foo' is no operation"},
        Wrong{"%b = add %a", "tile add: takes 2 operands, not 1"},
        Wrong{"%b = add %a, %c", "%c is not defined"}, Wrong{"%a = add %a, %a", "%a is defined twice"},
        Wrong{"%b = load %h[0] : tile<1 x ?c, f16> %c = add %b, %b",
              "operand 0 is tile<1 x ?c, f16>; accepted are u8, i8, i16, i32, i64, f32, f64"},
        Wrong{"%b = cast %a : f64 %c = mul %a, %b",
              "operand 1 is tile<1 x ?c, f64>, but the first is tile<1 x ?c, f32>"},
        Wrong{"%b = load %x[block, 0] : tile<1 x 4, f32> %c = mul %a, %b",
              "operand 1 is tile<1 x 4, f32>, but the operands before it have ?c columns"},
        Wrong{"%b = load %x[0] : tile<1 x 4, f32>", "%x has 2 dimensions, not 1"},
        Wrong{"%b = load %x[0, 0] : tile<1 x 4, f16>", "does not fit %x of f32"},
        Wrong{"%b = load %h[0] : tile<2 x 4, f16>", "has several rows, but %h has no dimension for them"},
        Wrong{"%b = load %q[0] : tile<2 x 4, f16>", "%q is no buffer"},
        Wrong{"store %x[block, 0], %a mask %a", "the mask is tile<1 x ?c, f32>; accepted is bool"},
        Wrong{"store %z[block, 0], %a", "%z repeats its elements along dimension 1"},
        Wrong{"store %x[at %a, 0], %a", "positions are tile<1 x ?c, f32>; accepted are i32, i64"},
        Wrong{"store %x[%s, 0], %a", "f32 is no index; a scalar of i32 or i64 is accepted"},
        Wrong{"%b = cast %a : bool saturate", "from f32 to bool rounds toward zero or saturates only"},
        Wrong{"%b = bitcast %a : f64", "types of one size other than bool are accepted"},
        Wrong{"%b = select %a, %a, %a", "operand 0 is tile<1 x ?c, f32>; accepted is bool"},
        Wrong{"%b = matmul %a, %a, %a", "m x k times k x n plus m x n is accepted"},
        Wrong{"%b = and %a, %a", "accepted are bool, u8, i8, i16, i32, i64"},
        Wrong{"%b = add %a, u8(256)", "the literal is not in the range of u8"},
        Wrong{"%b = add %a, u8(1.5)", "'1.5' is no u8"}, Wrong{"%b = index i0 : i64", "an index is expected"},
        Wrong{"%b = index 99999999999999999999 : i64", "the integer does not fit 64 bits"},
        Wrong{"%b = loop i0 = 0 to 4 (%k = %a) { yield }", "its body has 1 arguments, but yields 0"},
        Wrong{"%b = loop i0 = 0 to 4 (%k = %a) { yield %s }",
              "argument 0 is tile<1 x ?c, f32>, but goes on as f32"},
        Wrong{"loop i0 = 0 to 4 step 0 { yield }", "steps by 0; a constant of 1 or more is accepted"},
        Wrong{"loop i0 = 0 to 4 { }", "its body does not end with yield"},
        Wrong{"loop i0 = 0 to 4 { %q = neg %a yield } %b = neg %q", "%q is not defined"},
        Wrong{"yield", "yield does not end a loop's body"},
        Wrong{"%b, %c = neg %a", "neg gives 1 results, not 2"},
        Wrong{"%b = load %x[block, 0] : tile<1 x ?c f32>", "',' is expected"}));

TEST(TileText, HasLocalBuffers) {
  const std::string text =
      R"(kernel @turn(%x: f32[?n, ?m], %y: f32[?m, ?n]) grid(1) local(%t: f32[?m, 8], %s: i32[3]) {
  %0 = load %x[0, 0] : tile<min(8, ?n) x ?m, f32>
  %1 = transpose %0
  store %t[0, 0], %1
  %2 = load %t[0, 0] : tile<?m x min(8, ?n), f32>
  store %y[0, 0], %2
}
)";
  const Kernel kernel = parse(text).at(0);
  EXPECT_EQ(print(kernel), text);
  ASSERT_EQ(kernel.locals.size(), 2);
  EXPECT_EQ(kernel.locals[0].strides, (std::vector<std::optional<int64_t>>{8, 1}));
  EXPECT_TRUE(kernel.is_local(2));
  EXPECT_NE(message_of("kernel @f(%x: f32[?n]) grid(1) local(%x: f32[1]) {}").find("%x is defined twice"),
            std::string::npos);
  EXPECT_NE(message_of("kernel @f() grid(1) local(%x: f32[block]) {}")
                .find("a size of %x: accepted are constants and sizes"),
            std::string::npos);
  Kernel apart = kernel;
  apart.locals[0].strides = {16, 1};
  EXPECT_THROW(verify(apart), Error);
}

std::string repeated(std::string_view text, int times) {
  std::string whole;
  for (int i = 0; i < times; ++i) whole += text;
  return whole;
}

TEST(TileText, RejectsWhatWouldTakeMoreStackThanThereIs) {
  const std::string head = "kernel @f(%x: f32[?n]) grid(1) {\n  %a = load %x[0] : tile<1 x ?n, f32>\n";
  const auto message_of_body = [&](const std::string& body) { return message_of(head + body + "\n}"); };
  constexpr int kMany = 50000;
  EXPECT_NE(message_of_body("store %x[" + repeated("(", kMany) + "0" + repeated(")", kMany) + "], %a")
                .find("line 3, column 61: brackets and loops are nested deeper than 50"),
            std::string::npos);
  EXPECT_NE(message_of_body("store %x[0], " + repeated("(add %a, ", kMany) + "%a" + repeated(")", kMany))
                .find("deeper than 50"),
            std::string::npos);
  EXPECT_NE(message_of_body("store %x[" + repeated("min(0, ", kMany)).find("deeper than 50"),
            std::string::npos);
  EXPECT_NE(message_of_body("store %x[" + repeated("ceil(", kMany)).find("deeper than 50"),
            std::string::npos);
  std::string loops;
  for (int i = 0; i < kMany; ++i) loops += "loop i" + std::to_string(i) + " = 0 to 1 {\n";
  EXPECT_NE(message_of_body(loops).find("deeper than 50"), std::string::npos);
  EXPECT_NE(message_of_body("store %x[?n" + repeated(" + ?n", kMany) + "], %a")
                .find("an index has more than 200 operators in a row"),
            std::string::npos);
}

TEST(TileText, RejectsBrokenText) {
  EXPECT_NE(message_of("kernel").find("line 1, column 7: '@' is expected"), std::string::npos);
  EXPECT_NE(message_of("kernel @f(").find("'%' is expected"), std::string::npos);
  EXPECT_NE(message_of("kernel @f() grid(block) {}").find("the grid: accepted are constants and sizes"),
            std::string::npos);
  EXPECT_NE(message_of("kernel @f(%x: f32[?n; 1, 2]) grid(1) {}").find("%x has 1 sizes and 2 strides"),
            std::string::npos);
}

}  // namespace
}  // namespace anynpu::tile
