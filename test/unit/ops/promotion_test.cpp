#include "ops/promotion.h"

#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

namespace anynpu::ops {
namespace {

/// torch.promote_types of the types in the order of the heading.
constexpr const char* kTable = R"(
      bool u8   i8   i16  i32  i64  f16  bf16 f32  f64
bool  bool u8   i8   i16  i32  i64  f16  bf16 f32  f64
u8    u8   u8   i16  i16  i32  i64  f16  bf16 f32  f64
i8    i8   i16  i8   i16  i32  i64  f16  bf16 f32  f64
i16   i16  i16  i16  i16  i32  i64  f16  bf16 f32  f64
i32   i32  i32  i32  i32  i32  i64  f16  bf16 f32  f64
i64   i64  i64  i64  i64  i64  i64  f16  bf16 f32  f64
f16   f16  f16  f16  f16  f16  f16  f16  f32  f32  f64
bf16  bf16 bf16 bf16 bf16 bf16 bf16 f32  bf16 f32  f64
f32   f32  f32  f32  f32  f32  f32  f32  f32  f32  f64
f64   f64  f64  f64  f64  f64  f64  f64  f64  f64  f64
)";

TEST(Promotion, OfTwoTypesIsThatOfPyTorch) {
  std::istringstream text(kTable);
  std::vector<DType> columns;
  for (int i = 0; i < tile::kDTypes; ++i) {
    std::string name;
    text >> name;
    columns.push_back(tile::dtype_named(name).value());
  }
  for (int i = 0; i < tile::kDTypes; ++i) {
    std::string row, expected;
    text >> row;
    for (const DType column : columns) {
      text >> expected;
      EXPECT_EQ(name_of(promoted(tile::dtype_named(row).value(), column)), expected)
          << row << ", " << name_of(column);
    }
  }
}

TEST(Promotion, LighterOperandsCountWhereTheirKindIsHigher) {
  using Weight = Promotable::Weight;
  const auto tensor = [](DType dtype) { return Promotable{dtype, Weight::kTensor}; };
  const auto zero = [](DType dtype) { return Promotable{dtype, Weight::kZeroDimensional}; };
  const auto number = [](DType dtype) { return Promotable{dtype, Weight::kNumber}; };
  using enum DType;
  const struct {
    std::vector<Promotable> operands;
    DType expected;
  } cases[] = {
      {{tensor(kI8), zero(kI64)}, kI8},
      {{tensor(kI8), number(kI64)}, kI8},
      {{tensor(kI8), zero(kF64)}, kF64},
      {{tensor(kI8), number(kF64)}, kF32},
      {{tensor(kF16), zero(kF64)}, kF16},
      {{tensor(kF16), number(kF64)}, kF16},
      {{tensor(kBool), number(kI64)}, kI64},
      {{tensor(kBool), number(kBool)}, kBool},
      {{tensor(kBool), zero(kU8)}, kU8},
      {{zero(kF16), number(kF64)}, kF16},
      {{zero(kI32), number(kF64)}, kF32},
      {{zero(kU8), zero(kI8)}, kI16},
      {{zero(kI64), tensor(kBF16)}, kBF16},
      {{number(kI64), zero(kBool), tensor(kBool)}, kI64},
      {{number(kI64), number(kF64)}, kF32},
      {{number(kF64), tensor(kF64)}, kF64},
      {{tensor(kF16), tensor(kBF16), zero(kF64)}, kF32},
  };
  for (const auto& [operands, expected] : cases)
    EXPECT_EQ(name_of(promoted(operands)), name_of(expected)) << "case " << &operands - &cases[0].operands;
}

TEST(Promotion, ResultsAreNotCastToLowerKinds) {
  using enum DType;
  EXPECT_TRUE(can_cast(kF64, kF16));
  EXPECT_TRUE(can_cast(kI64, kU8));
  EXPECT_TRUE(can_cast(kBool, kI8));
  EXPECT_TRUE(can_cast(kI64, kBF16));
  EXPECT_FALSE(can_cast(kF16, kI64));
  EXPECT_FALSE(can_cast(kF32, kBool));
  EXPECT_FALSE(can_cast(kU8, kBool));
}

}  // namespace
}  // namespace anynpu::ops
