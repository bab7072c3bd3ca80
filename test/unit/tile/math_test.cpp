#include "tile/math.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <random>
#include <thread>
#include <vector>

#include "tile/math_f64.h"
#include "vector_lanes.h"

namespace anynpu::tile {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kMax = std::numeric_limits<float>::max();

enum class Symmetry { kNone, kOdd, kEven };

struct Unary {
  const char* name;
  float (*function)(float);
  math::Floats (*lanes)(math::Floats);
  double (*reference)(double);  ///< the C library in f64: some 2^-28 of an ulp of f32 from the exact value
  Symmetry symmetry;
  double ulps;    ///< no further from the reference anywhere
  uint32_t bits;  ///< hash of the results, which are the same on every machine
  friend void PrintTo(const Unary& row, std::ostream* out) { *out << row.name; }
};

#define UNARY(name, ...)                                                                            \
  Unary {                                                                                           \
    #name, math::name<float>, math::name<math::Floats>, static_cast<double (*)(double)>(f64::name), \
        __VA_ARGS__                                                                                 \
  }

const Unary kUnary[] = {
    UNARY(exp, Symmetry::kNone, 1.02, 0x129d4b28),   UNARY(exp2, Symmetry::kNone, 1.0, 0xc12b29d4),
    UNARY(expm1, Symmetry::kNone, 0.51, 0x42ccb498), UNARY(log, Symmetry::kNone, 1.0, 0x8310a1a4),
    UNARY(log2, Symmetry::kNone, 0.51, 0xc7d77809),  UNARY(log10, Symmetry::kNone, 0.51, 0x32ba38f1),
    UNARY(log1p, Symmetry::kNone, 0.51, 0x900c28a5), UNARY(sin, Symmetry::kOdd, 1.2, 0xb8fbf81b),
    UNARY(cos, Symmetry::kEven, 1.2, 0xf846c9b9),    UNARY(tan, Symmetry::kOdd, 0.51, 0x7c11e1ab),
    UNARY(asin, Symmetry::kOdd, 0.51, 0xf8e3bb3),    UNARY(acos, Symmetry::kNone, 0.51, 0x28d1b7ee),
    UNARY(atan, Symmetry::kOdd, 0.51, 0xf773f608),   UNARY(sinh, Symmetry::kOdd, 0.51, 0xb3e50d0d),
    UNARY(cosh, Symmetry::kEven, 0.51, 0x317664a3),  UNARY(tanh, Symmetry::kOdd, 1.1, 0x7dfb2c34),
    UNARY(asinh, Symmetry::kOdd, 0.51, 0xacd79328),  UNARY(acosh, Symmetry::kNone, 0.51, 0x73e9c003),
    UNARY(atanh, Symmetry::kOdd, 0.51, 0x4c7f3404),  UNARY(erf, Symmetry::kOdd, 1.23, 0x367fe2f9),
    UNARY(erfc, Symmetry::kNone, 1.91, 0xa9ea57db),  UNARY(ndtr, Symmetry::kNone, 1.95, 0xb8d553a1),
};

float of_bits(uint64_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits)); }
bool same_bits(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) || (std::isnan(a) && std::isnan(b));
}

/// How far `got` is from the exact `want`, in units of the last place of f32; infinity is 2^128. A wrong
/// sign, of zeros too, and a NaN on one side only are infinitely far.
double ulps_between(float got, double want) {
  if (std::isnan(want) || std::isnan(got)) return std::isnan(want) == std::isnan(got) ? 0 : kInf;
  if (std::signbit(got) != std::signbit(want)) return kInf;
  const double a = std::min(std::fabs(static_cast<double>(got)), 0x1p128);
  const double b = std::min(std::fabs(want), 0x1p128);
  int exponent = -125;
  if (b >= 0x1p-126) std::frexp(b, &exponent);
  return std::ldexp(std::fabs(a - b), 24 - std::min(exponent, 128));
}

/// Bit patterns: all that are `step` apart, and all near those where something changes.
std::vector<uint32_t> sample(uint64_t step) {
  std::vector<uint32_t> patterns;
  for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += step)
    patterns.push_back(static_cast<uint32_t>(bits));
  const float places[] = {0,         0x1p-126f, 0.333333f, 0.5f,     0.666667f, 0.785398f, 0.9f,
                          1,         1.570796f, 2,         3.14159f, 4,         10.05f,    30,
                          88.72284f, 89,        89.4f,     91,       103.97f,   128,       150,
                          0x1p17f,   0x1p24f,   0x1p25f,   kMax,     kNaN};
  for (float place : places)
    for (int32_t offset = -500; offset <= 500; ++offset)
      for (uint32_t sign : {0u, 0x80000000u})
        patterns.push_back((std::bit_cast<uint32_t>(place) + static_cast<uint32_t>(offset)) ^ sign);
  return patterns;
}

struct Worst {
  double ulps = 0.5;  ///< what rounding correctly takes
  float x = 0;
};

Worst worst(const Unary& row, float x, Worst so_far) {
  const float got = row.function(x);
  const double want = row.reference(x);
  if (same_bits(got, static_cast<float>(want))) return so_far;
  const double ulps = ulps_between(got, want);
  return ulps > so_far.ulps ? Worst{ulps, x} : so_far;
}

class UnaryMath : public testing::TestWithParam<Unary> {};
INSTANTIATE_TEST_SUITE_P(Tile, UnaryMath, testing::ValuesIn(kUnary),
                         [](const auto& row) { return std::string(row.param.name); });

TEST_P(UnaryMath, IsNearTheExactValue) {
  Worst result;
  for (uint32_t bits : sample(4001)) result = worst(GetParam(), of_bits(bits), result);
  EXPECT_LE(result.ulps, GetParam().ulps) << "at " << result.x;
}

Worst worst_of_all_numbers(const Unary& row) {
  std::vector<std::future<Worst>> parts;
  const uint64_t threads = std::max(std::thread::hardware_concurrency(), 1u);
  for (uint64_t first = 0; first < threads; ++first)
    parts.push_back(std::async(std::launch::async, [=] {
      Worst result;
      for (uint64_t bits = first; bits < uint64_t{1} << 32; bits += threads)
        result = worst(row, of_bits(bits), result);
      return result;
    }));
  Worst result;
  for (auto& part : parts) result = std::ranges::max(result, part.get(), {}, &Worst::ulps);
  return result;
}

/// Prints the table in tile/math.h; an hour on two cores.
TEST(Math, DISABLED_IsNearTheExactValueEverywhere) {
  for (const Unary& row : kUnary) {
    const Worst result = worst_of_all_numbers(row);
    EXPECT_LE(result.ulps, row.ulps) << row.name << " at " << result.x;
    printf("/// | %s | %.3f | %a |\n", row.name, result.ulps, result.x);
  }
}

std::vector<Unary> symmetric_functions() {
  std::vector<Unary> rows(std::begin(kUnary), std::end(kUnary));
  std::erase_if(rows, [](const Unary& row) { return row.symmetry == Symmetry::kNone; });
  return rows;
}

class SymmetricMath : public testing::TestWithParam<Unary> {};
INSTANTIATE_TEST_SUITE_P(Tile, SymmetricMath, testing::ValuesIn(symmetric_functions()),
                         [](const auto& row) { return std::string(row.param.name); });

TEST_P(SymmetricMath, IsSymmetric) {
  for (uint32_t bits : sample(40009)) {
    const float x = of_bits(bits), y = GetParam().function(x);
    ASSERT_TRUE(same_bits(GetParam().function(-x), GetParam().symmetry == Symmetry::kOdd ? -y : y)) << x;
  }
}

TEST_P(UnaryMath, HasTheSameBitsOnEveryMachine) {
  uint32_t hash = 2166136261u;  // FNV-1a, by words
  for (uint32_t bits : sample(65521)) {
    const float y = GetParam().function(of_bits(bits));
    hash = (hash ^ (std::isnan(y) ? 0 : std::bit_cast<uint32_t>(y))) * 16777619u;
  }
  EXPECT_EQ(hash, GetParam().bits) << std::hex << "0x" << hash;
}

TEST_P(UnaryMath, HasTheSameBitsInVectors) {
  const std::vector<uint32_t> patterns = sample(8009);
  for (size_t i = 0; i + math::kLanes <= patterns.size(); i += math::kLanes) {
    math::Floats x(0);
    for (int lane = 0; lane < math::kLanes; ++lane) x.r[lane] = of_bits(patterns[i + lane]);
    const math::Floats y = GetParam().lanes(x);
    for (int lane = 0; lane < math::kLanes; ++lane)
      ASSERT_TRUE(same_bits(y.r[lane], GetParam().function(x.r[lane]))) << x.r[lane];
  }
}

struct UnarySpecial {
  const char* name;
  float (*function)(float);
  float x, y;
};

#define SPECIAL(name, x, y) \
  UnarySpecial { #name, math::name<float>, x, y }

/// Exact values where the reference's rounding could hide a fault.
TEST(Math, IsExactWhereItCanBe) {
  const UnarySpecial rows[] = {
      SPECIAL(exp, 0, 1),
      SPECIAL(exp, kInf, kInf),
      SPECIAL(exp, -kInf, 0),
      SPECIAL(exp2, 10, 1024),
      SPECIAL(exp2, -149, 0x1p-149f),
      SPECIAL(exp2, -150, 0),
      SPECIAL(exp2, 128, kInf),
      SPECIAL(exp2, 127, 0x1p127f),
      SPECIAL(expm1, -kInf, -1),
      SPECIAL(expm1, -0.0f, -0.0f),
      SPECIAL(log, 1, 0),
      SPECIAL(log, 0, -kInf),
      SPECIAL(log, -0.0f, -kInf),
      SPECIAL(log, -1, kNaN),
      SPECIAL(log, kInf, kInf),
      SPECIAL(log, -kInf, kNaN),
      SPECIAL(log2, 0x1p-149f, -149),
      SPECIAL(log2, 0x1p127f, 127),
      SPECIAL(log10, 1000, 3),
      SPECIAL(log10, 1e10f, 10),
      SPECIAL(log1p, -1, -kInf),
      SPECIAL(log1p, -0.0f, -0.0f),
      SPECIAL(sin, -0.0f, -0.0f),
      SPECIAL(sin, kInf, kNaN),
      SPECIAL(cos, 0, 1),
      SPECIAL(cos, -kInf, kNaN),
      SPECIAL(tan, -0.0f, -0.0f),
      SPECIAL(tan, kInf, kNaN),
      SPECIAL(asin, 1.5f, kNaN),
      SPECIAL(acos, 1, 0),
      SPECIAL(atan, -0.0f, -0.0f),
      SPECIAL(sinh, -kInf, -kInf),
      SPECIAL(cosh, -kInf, kInf),
      SPECIAL(tanh, kInf, 1),
      SPECIAL(tanh, -kInf, -1),
      SPECIAL(tanh, -0.0f, -0.0f),
      SPECIAL(asinh, -kInf, -kInf),
      SPECIAL(acosh, 1, 0),
      SPECIAL(acosh, kInf, kInf),
      SPECIAL(acosh, -3, kNaN),
      SPECIAL(atanh, 1, kInf),
      SPECIAL(atanh, -1, -kInf),
      SPECIAL(atanh, 2, kNaN),
      SPECIAL(erf, -kInf, -1),
      SPECIAL(erf, -0.0f, -0.0f),
      SPECIAL(erfc, -kInf, 2),
      SPECIAL(erfc, kInf, 0),
      SPECIAL(erfc, 0, 1),
      SPECIAL(ndtr, -kInf, 0),
      SPECIAL(ndtr, kInf, 1),
      SPECIAL(ndtr, 0, 0.5),
  };
  for (const UnarySpecial& row : rows)
    EXPECT_PRED2(same_bits, row.function(row.x), row.y) << row.name << " of " << row.x;
}

struct BinarySpecial {
  float x, y, result;
};

/// C99 Annex F.9.4.4.
TEST(Math, PowerHasTheSpecialCasesOfC) {
  const BinarySpecial rows[] = {
      {0, -3, kInf},
      {-0.0f, -3, -kInf},
      {0, -2, kInf},
      {-0.0f, -2, kInf},
      {-0.0f, -2.5f, kInf},
      {0, -kInf, kInf},
      {-0.0f, -kInf, kInf},
      {0, 3, 0},
      {-0.0f, 3, -0.0f},
      {-0.0f, 2, 0},
      {-0.0f, 0.5f, 0},
      {-0.0f, kInf, 0},
      {-1, kInf, 1},
      {-1, -kInf, 1},
      {1, kNaN, 1},
      {1, kInf, 1},
      {kNaN, 0, 1},
      {kNaN, -0.0f, 1},
      {0, 0, 1},
      {kInf, 0, 1},
      {-kInf, -0.0f, 1},
      {-8, 1.0f / 3, kNaN},
      {-1, 0.5f, kNaN},
      {-kMax, 1.5f, kNaN},
      {0.5f, -kInf, kInf},
      {-0.5f, -kInf, kInf},
      {2, -kInf, 0},
      {-2, -kInf, 0},
      {0.5f, kInf, 0},
      {-0.5f, kInf, 0},
      {2, kInf, kInf},
      {-2, kInf, kInf},
      {-kInf, -3, -0.0f},
      {-kInf, -2, 0},
      {-kInf, -0.5f, 0},
      {-kInf, 3, -kInf},
      {-kInf, 2, kInf},
      {-kInf, 0.5f, kInf},
      {kInf, -2, 0},
      {kInf, 2, kInf},
      {kInf, kInf, kInf},
      {-kInf, -kInf, 0},
      {kNaN, 1, kNaN},
      {2, kNaN, kNaN},
      {kNaN, kNaN, kNaN},
      {-1, kNaN, kNaN},
      {-2, 3, -8},
      {-2, -3, -0.125f},
      {-2, 4, 16},
      {-1, 0x1.fffffep24f, 1},
      {-1, 0x1.fffffep23f, -1},
      {-2, 0x1p30f, kInf},
      {2, -149, 0x1p-149f},
      {-2, -149, -0x1p-149f},
      {2, -150, 0},
      {-kMax, 3, -kInf},
      {3, 2, 9},
      {10, 10, 1e10f},
      {-1.5f, kMax, kInf},
      {4, 0.5f, 2},
  };
  for (const auto& [x, y, result] : rows) EXPECT_PRED2(same_bits, math::pow(x, y), result) << x << ", " << y;
}

/// C99 Annex F.9.1.4.
TEST(Math, AngleHasTheSpecialCasesOfC) {
  const float pi = 0x1.921fb6p+1f, half = pi / 2, quarter = pi / 4, three_quarters = 0x1.2d97c8p+1f;
  const BinarySpecial rows[] = {
      // y, x, angle; each also with -y
      {0, -0.0f, pi},
      {0, 0, 0},
      {0, -1, pi},
      {0, 1, 0},
      {1, 0, half},
      {1, -0.0f, half},
      {1, -kInf, pi},
      {1, kInf, 0},
      {kInf, 1, half},
      {kInf, -1, half},
      {kInf, 0, half},
      {kInf, -kInf, three_quarters},
      {kInf, kInf, quarter},
      {0, kInf, 0},
      {0, -kInf, pi},
      {kNaN, 1, kNaN},
      {1, kNaN, kNaN},
      {kNaN, kInf, kNaN},
      {kInf, kNaN, kNaN},
      {0, kNaN, kNaN},
      {kNaN, 0, kNaN},
      {1, 1, quarter},
      {1, -1, three_quarters},
  };
  for (const auto& [y, x, angle] : rows) {
    EXPECT_PRED2(same_bits, math::atan2(y, x), angle) << y << ", " << x;
    EXPECT_PRED2(same_bits, math::atan2(-y, x), -angle) << -y << ", " << x;
  }
}

struct Binary {
  const char* name;
  float (*function)(float, float);
  math::Floats (*lanes)(math::Floats, math::Floats);
  double (*reference)(double, double);
  double ulps;
  uint32_t bits;
  friend void PrintTo(const Binary& row, std::ostream* out) { *out << row.name; }
};

const Binary kBinary[] = {
    {"pow", math::pow<float>, math::pow<math::Floats>, static_cast<double (*)(double, double)>(std::pow),
     0.51, 0x6890964f},
    {"atan2", math::atan2<float>, math::atan2<math::Floats>,
     static_cast<double (*)(double, double)>(std::atan2), 0.51, 0x524625fa},
};

class BinaryMath : public testing::TestWithParam<Binary> {
 protected:
  /// Any two bit patterns; or an x near 1, or whole, and a y that keeps its power in range.
  static std::pair<float, float> draw(std::mt19937& random) {
    const uint32_t first = random(), second = random();
    if (first % 4 == 0) return {of_bits(random()), of_bits(second)};
    const float x = first % 4 == 1 ? 1 + std::ldexp(static_cast<float>(static_cast<int32_t>(random())),
                                                    -31 - static_cast<int>(first / 4 % 24))
                                   : of_bits((random() & 0xbfffffff) + 0x10000000);
    if (first % 4 == 3) return {x, static_cast<float>(static_cast<int>(second % 41) - 20)};
    const float most = 150 / std::max(std::fabs(std::log2(std::fabs(x))), 1e-30f);
    return {x, most * std::ldexp(static_cast<float>(static_cast<int32_t>(second)), -31)};
  }
};
INSTANTIATE_TEST_SUITE_P(Tile, BinaryMath, testing::ValuesIn(kBinary),
                         [](const auto& row) { return std::string(row.param.name); });

TEST_P(BinaryMath, IsNearTheExactValue) {
  constexpr uint32_t kSeed = 20240607;
  std::mt19937 random(kSeed);
  double most = 0;
  std::pair<float, float> where;
  for (int i = 0; i < 1'000'000; ++i) {
    const auto [x, y] = draw(random);
    const double ulps = ulps_between(GetParam().function(x, y), GetParam().reference(x, y));
    if (ulps > most) most = ulps, where = {x, y};
  }
  EXPECT_LE(most, GetParam().ulps) << "at " << where.first << ", " << where.second << " of seed " << kSeed;
}

TEST_P(BinaryMath, HasTheSameBitsOnEveryMachineAndInVectors) {
  std::mt19937 random(1);
  uint32_t hash = 2166136261u;
  for (int i = 0; i < 4000; ++i) {
    math::Floats x(0), y(0);
    for (int lane = 0; lane < math::kLanes; ++lane) {
      x.r[lane] = of_bits(random());
      y.r[lane] = lane % 2 ? of_bits(random()) : static_cast<float>(random() % 64) / 4 - 8;
    }
    const math::Floats z = GetParam().lanes(x, y);
    for (int lane = 0; lane < math::kLanes; ++lane) {
      const float one = GetParam().function(x.r[lane], y.r[lane]);
      ASSERT_TRUE(same_bits(z.r[lane], one)) << x.r[lane] << ", " << y.r[lane];
      hash = (hash ^ (std::isnan(one) ? 0 : std::bit_cast<uint32_t>(one))) * 16777619u;
    }
  }
  EXPECT_EQ(hash, GetParam().bits) << std::hex << "0x" << hash;
}

/// Correctly rounded values from 3000-bit arithmetic. 0x1.f37c8ap95 is the number of f32 nearest to a
/// multiple of pi/2.
TEST(Math, ReducesHugeAnglesExactly) {
  const struct {
    float x, sin, cos, tan;
  } rows[] = {
      {0x1.f37c8ap+95f, 1, -0x1.bbdd52p-30f, -0x1.274c1cp+29f},
      {0x1.f37c8ap+96f, -0x1.bbdd52p-29f, -1, 0x1.bbdd52p-29f},
      {0x1.47d0fep+34f, 1, -0x1.149db0p-29f, -0x1.d9d750p+28f},
      {0x1.47d0fep+35f, -0x1.149db0p-28f, -1, 0x1.149db0p-28f},
      {0x1.32ede2p+85f, 1, -0x1.bc77bep-28f, -0x1.26e584p+27f},
      {0x1.fffffep+127f, -0x1.0b3366p-1f, 0x1.b4bf2cp-1f, -0x1.393d94p-1f},
      {0x1p+100f, -0x1.be8edap-1f, 0x1.f4eb40p-2f, -0x1.c86fc0p+0f},
      {0x1.ddebdep+120f, -0x1.b0fa38p-1f, 0x1.114438p-1f, -0x1.959e98p+0f},
      {0x1.000002p+17f, -0x1.ff25a8p-1f, 0x1.d8a5b0p-5f, -0x1.14da4ap+4f},
  };
  for (const auto& row : rows) {
    EXPECT_EQ(math::sin(row.x), row.sin) << row.x;
    EXPECT_EQ(math::cos(row.x), row.cos) << row.x;
    EXPECT_EQ(math::tan(row.x), row.tan) << row.x;
  }
}

/// Fused, this difference is the rounding error of the product.
TEST(Math, IsCompiledWithoutContraction) {
  volatile float factor = 0x1.000002p0f, result = factor * factor;
  const float product = result;
  EXPECT_EQ(factor * factor - product, 0);
}

}  // namespace
}  // namespace anynpu::tile
