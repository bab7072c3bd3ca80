#include <algorithm>
#include <cmath>
#include <limits>

#include "aclnnop/aclnn_layer_norm.h"
#include "aclnnop/aclnn_layer_norm_backward.h"
#include "aclnnop/aclnn_log_softmax.h"
#include "aclnnop/aclnn_logsoftmax_backward.h"
#include "aclnnop/aclnn_softmax.h"
#include "aclnnop/aclnn_softmax_backward.h"
#include "unit/aclnn/aclnn_test.h"

namespace anynpu::aclnn {
namespace {

using Values = std::vector<double>;

/// Applies `function` to each line along dimension `dim` of operands of these sizes in contiguous order.
template <class F>
Values along(const Sizes& sizes, size_t dim, const std::vector<Values>& operands, const F& function) {
  size_t inner = 1;
  for (size_t d = dim + 1; d < sizes.size(); ++d) inner *= static_cast<size_t>(sizes[d]);
  const auto length = static_cast<size_t>(sizes[dim]);
  Values result(operands[0].size());
  for (size_t start = 0; start < result.size(); ++start) {
    if (start / inner % length != 0) continue;
    std::vector<Values> lines(operands.size());
    for (size_t o = 0; o < operands.size(); ++o)
      for (size_t i = 0; i < length; ++i) lines[o].push_back(operands[o][start + i * inner]);
    const Values made = function(lines);
    for (size_t i = 0; i < length; ++i) result[start + i * inner] = made[i];
  }
  return result;
}

double sum_of(const Values& x) {
  double sum = 0;
  for (const double value : x) sum += value;
  return sum;
}

Values softmax(const std::vector<Values>& lines) {
  Values y = lines[0];
  for (double& value : y) value = std::exp(value);
  const double sum = sum_of(y);
  for (double& value : y) value /= sum;
  return y;
}

Values log_softmax(const std::vector<Values>& lines) {
  Values y = softmax(lines);
  for (double& value : y) value = std::log(value);
  return y;
}

Values softmax_backward(const std::vector<Values>& lines) {
  const auto& [grad, y] = std::tie(lines[0], lines[1]);
  double dot = 0;
  for (size_t i = 0; i < y.size(); ++i) dot += grad[i] * y[i];
  Values result;
  for (size_t i = 0; i < y.size(); ++i) result.push_back(y[i] * (grad[i] - dot));
  return result;
}

Values log_softmax_backward(const std::vector<Values>& lines) {
  const auto& [grad, y] = std::tie(lines[0], lines[1]);
  const double sum = sum_of(grad);
  Values result;
  for (size_t i = 0; i < y.size(); ++i) result.push_back(grad[i] - std::exp(y[i]) * sum);
  return result;
}

class AclnnLines : public AclnnTest {
 protected:
  Values numbers(size_t count) {
    Values values;
    for (size_t i = 0; i < count; ++i) values.push_back(static_cast<double>(random_() % 64) / 16 - 2);
    return values;
  }
  void SetUp() override {
    AclnnTest::SetUp();
    seed_ = std::random_device()();
    random_.seed(seed_);
    RecordProperty("seed", std::to_string(seed_));
  }
  void TearDown() override {
    if (HasFailure()) printf("seed %u\n", seed_);
    AclnnTest::TearDown();
  }

 private:
  unsigned seed_ = 0;
  std::mt19937 random_;
};

TEST_F(AclnnLines, SoftmaxesAlongEveryDimension) {
  const Sizes sizes = {2, 3, 4};
  const Layout layouts[] = {{{12, 4, 1}}, {{1, 2, 6}, 1}, {{40, 8, 2}, 3}};
  const std::pair<DType, double> types[] = {
      {DType::kF64, 1e-12}, {DType::kF32, 1e-6}, {DType::kF16, 2e-3}, {DType::kBF16, 2e-2}};
  for (const auto& [dtype, error] : types) {
    for (int64_t dim = -3; dim < 3; ++dim) {
      for (const Layout& layout : layouts) {
        SCOPED_TRACE(concat(name_of(dtype), ", dim ", dim, ", strides ", layout.strides[0]));
        const auto at = static_cast<size_t>(dim < 0 ? dim + 3 : dim);
        TestTensor x(dtype, sizes, layout), grad(dtype, sizes, layouts[0]), out(dtype, sizes, layouts[1]);
        const Values of_x = numbers(24), of_grad = numbers(24);
        x.set(of_x);
        grad.set(of_grad);
        ASSERT_EQ(call(ANYNPU_PHASES(aclnnSoftmax), x, dim, out), ACL_SUCCESS) << message();
        expect_values(out, along(sizes, at, {of_x}, softmax), error);
        ASSERT_EQ(call(ANYNPU_PHASES(aclnnLogSoftmax), x, dim, out), ACL_SUCCESS) << message();
        expect_values(out, along(sizes, at, {of_x}, log_softmax), error);
        ASSERT_EQ(call(ANYNPU_PHASES(aclnnSoftmaxBackward), grad, x, dim, out), ACL_SUCCESS) << message();
        expect_values(out, along(sizes, at, {of_grad, of_x}, softmax_backward), error * 8);
        ASSERT_EQ(call(ANYNPU_PHASES(aclnnLogSoftmaxBackward), grad, x, dim, out), ACL_SUCCESS) << message();
        expect_values(out, along(sizes, at, {of_grad, of_x}, log_softmax_backward), error * 8);
      }
    }
  }
}

TEST_F(AclnnLines, SoftmaxInPlaceOfScalarsAndOfNothing) {
  TestTensor x(DType::kF32, {2, 2}, {1, 1, 2, 2});
  ASSERT_EQ(call(ANYNPU_PHASES(aclnnSoftmax), x, int64_t{1}, x), ACL_SUCCESS) << message();
  expect_values(x, {0.5, 0.5, 0.5, 0.5});
  TestTensor scalar(DType::kF32, {}, {3}), out(DType::kF32, {});
  ASSERT_EQ(call(ANYNPU_PHASES(aclnnSoftmax), scalar, int64_t{-1}, out), ACL_SUCCESS) << message();
  expect_values(out, {1});
  TestTensor empty(DType::kF32, {2, 0});
  EXPECT_EQ(call(ANYNPU_PHASES(aclnnSoftmax), empty, int64_t{1}, empty), ACL_SUCCESS) << message();
  constexpr double kInfinity = std::numeric_limits<double>::infinity(),
                   kNaN = std::numeric_limits<double>::quiet_NaN();
  TestTensor odd(DType::kF32, {3, 2}, {0, -kInfinity, kNaN, 1, kInfinity, 0});
  ASSERT_EQ(call(ANYNPU_PHASES(aclnnSoftmax), odd, int64_t{1}, odd), ACL_SUCCESS) << message();
  expect_values(odd, {1, 0, kNaN, kNaN, kNaN, kNaN});
}

/// Layer normalization of rows, in double.
struct LayerNorm {
  size_t rows, cols;
  Values x, weight, bias, grad;
  double eps = 0.25;
  Values y, mean, factor, of_x, of_weight, of_bias;

  void compute() {
    const auto n = static_cast<double>(cols);
    of_weight.assign(cols, 0);
    of_bias.assign(cols, 0);
    for (size_t r = 0; r < rows; ++r) {
      const double* row = &x[r * cols];
      const double* of_row = &grad[r * cols];
      double sum = 0, squares = 0, of_y = 0, of_y_y = 0;
      for (size_t c = 0; c < cols; ++c) sum += row[c];
      mean.push_back(sum / n);
      for (size_t c = 0; c < cols; ++c) squares += (row[c] - mean[r]) * (row[c] - mean[r]);
      factor.push_back(1 / std::sqrt(squares / n + eps));
      const auto normal = [&](size_t c) { return (row[c] - mean[r]) * factor[r]; };
      for (size_t c = 0; c < cols; ++c) {
        y.push_back(normal(c) * weight[c] + bias[c]);
        of_y += of_row[c] * weight[c] / n;
        of_y_y += of_row[c] * weight[c] * normal(c) / n;
        of_weight[c] += of_row[c] * normal(c);
        of_bias[c] += of_row[c];
      }
      for (size_t c = 0; c < cols; ++c)
        of_x.push_back(factor[r] * (of_row[c] * weight[c] - of_y - normal(c) * of_y_y));
    }
  }
};

class AclnnLayerNorm : public AclnnLines {
 protected:
  static std::shared_ptr<aclIntArray> shape_of(const Sizes& sizes) {
    return {aclCreateIntArray(sizes.data(), sizes.size()),
            [](aclIntArray* array) { EXPECT_EQ(aclDestroyIntArray(array), ACL_SUCCESS); }};
  }
  static std::shared_ptr<aclBoolArray> mask_of(bool a, bool b, bool c) {
    const bool values[] = {a, b, c};
    return {aclCreateBoolArray(&values[0], 3),
            [](aclBoolArray* array) { EXPECT_EQ(aclDestroyBoolArray(array), ACL_SUCCESS); }};
  }
};

TEST_F(AclnnLayerNorm, AgreesWithItsDefinitionAtAllStrides) {
  const Layout layouts[] = {{{30, 10, 5, 1}}, {{1, 2, 6, 12}, 1}, {{5, 10, 40, 1}}, {{80, 26, 12, 2}, 3}};
  const std::pair<DType, double> types[] = {
      {DType::kF64, 1e-11}, {DType::kF32, 2e-6}, {DType::kF16, 1e-2}, {DType::kBF16, 6e-2}};
  const Sizes sizes = {2, 3, 2, 5}, normalized = {2, 5};
  for (const auto& [dtype, error] : types) {
    for (const Layout& layout : layouts) {
      SCOPED_TRACE(concat(name_of(dtype), ", strides ", layout.strides[0]));
      LayerNorm expected = {6,  10, numbers(60), numbers(10), numbers(10), numbers(60), 0.25,
                            {}, {}, {},          {},          {},          {}};
      expected.compute();
      const auto shape = shape_of(normalized);
      const DType statistics = dtype == DType::kF64 ? DType::kF64 : DType::kF32;
      TestTensor x(dtype, sizes, layout), weight(dtype, normalized, Layout{{1, 2}}), bias(dtype, normalized),
          grad(dtype, sizes, layout);
      TestTensor y(dtype, sizes, layout), mean(statistics, {2, 3, 1, 1}),
          factor(statistics, {2, 3, 1, 1}, Layout{{1, 2, 9, 9}});
      x.set(expected.x);
      weight.set(expected.weight);
      bias.set(expected.bias);
      grad.set(expected.grad);
      ASSERT_EQ(
          call(ANYNPU_PHASES(aclnnLayerNorm), x, shape.get(), weight, bias, expected.eps, y, mean, factor),
          ACL_SUCCESS)
          << message();
      expect_values(y, expected.y, error);
      expect_values(mean, expected.mean, error);
      expect_values(factor, expected.factor, error);
      TestTensor of_x(dtype, sizes, layout), of_weight(dtype, normalized, Layout{{1, 2}}),
          of_bias(dtype, normalized);
      ASSERT_EQ(call(ANYNPU_PHASES(aclnnLayerNormBackward), grad, x, shape.get(), mean, factor, weight, bias,
                     mask_of(true, true, true).get(), of_x, of_weight, of_bias),
                ACL_SUCCESS)
          << message();
      expect_values(of_x, expected.of_x, error * 4);
      expect_values(of_weight, expected.of_weight, error * 4);
      expect_values(of_bias, expected.of_bias, error * 4);
    }
  }
}

TEST_F(AclnnLayerNorm, WhatIsAbsentIsNotComputed) {
  LayerNorm expected = {4,  6,  numbers(24), Values(6, 1), Values(6, 0), numbers(24), 0.25,
                        {}, {}, {},          {},           {},           {}};
  expected.compute();
  const Sizes sizes = {4, 6};
  const auto shape = shape_of({6});
  TestTensor x(DType::kF32, sizes, expected.x), grad(DType::kF32, sizes, expected.grad),
      y(DType::kF32, sizes);
  TestTensor mean(DType::kF32, {4, 1}, expected.mean), factor(DType::kF32, {4, 1}, expected.factor);
  const aclTensor* const absent = nullptr;
  aclTensor* const unwanted = nullptr;
  ASSERT_EQ(call(ANYNPU_PHASES(aclnnLayerNorm), x, shape.get(), absent, absent, 0.25, y, unwanted, unwanted),
            ACL_SUCCESS)
      << message();
  expect_values(y, expected.y, 1e-6);
  const auto backward = [&](const std::shared_ptr<aclBoolArray>& mask, aclTensor* of_x, aclTensor* of_weight,
                            aclTensor* of_bias) {
    return call(ANYNPU_PHASES(aclnnLayerNormBackward), grad, x, shape.get(), mean, factor, absent, absent,
                mask.get(), of_x, of_weight, of_bias);
  };
  TestTensor of_x(DType::kF32, sizes), of_weight(DType::kF32, {6}), of_bias(DType::kF32, {6});
  ASSERT_EQ(backward(mask_of(false, true, false), unwanted, of_weight, of_bias), ACL_SUCCESS) << message();
  expect_values(of_weight, expected.of_weight, 1e-5);
  expect_values(of_bias, Values(6, 0));
  ASSERT_EQ(backward(mask_of(true, false, false), of_x, unwanted, unwanted), ACL_SUCCESS) << message();
  expect_values(of_x, expected.of_x, 1e-5);
  ASSERT_EQ(backward(mask_of(false, false, true), unwanted, unwanted, of_bias), ACL_SUCCESS) << message();
  expect_values(of_bias, expected.of_bias, 1e-5);
  expect_failure(backward(mask_of(true, true, true), of_x, unwanted, of_bias), ACLNN_ERR_PARAM_NULLPTR,
                 "gradWeightOptional is null, but outputMask[1] is true");
}

TEST_F(AclnnLayerNorm, SumsOverNoRowsAreZero) {
  const auto shape = shape_of({3});
  TestTensor x(DType::kF32, {0, 3}), mean(DType::kF32, {0, 1}), of_weight(DType::kF32, {3}, {7, 7, 7}),
      of_bias(DType::kF32, {3}, {7, 7, 7});
  const aclTensor* const absent = nullptr;
  ASSERT_EQ(call(ANYNPU_PHASES(aclnnLayerNorm), x, shape.get(), absent, absent, 0.25, x, mean, mean),
            ACL_SUCCESS)
      << message();
  ASSERT_EQ(call(ANYNPU_PHASES(aclnnLayerNormBackward), x, x, shape.get(), mean, mean, absent, absent,
                 mask_of(true, true, true).get(), x, of_weight, of_bias),
            ACL_SUCCESS)
      << message();
  expect_values(of_weight, {0, 0, 0});
  expect_values(of_bias, {0, 0, 0});
}

TEST_F(AclnnLines, WrongArgumentsAreNamed) {
  TestTensor x(DType::kF32, {2, 3}), other(DType::kF32, {3, 2}), integers(DType::kI32, {2, 3}),
      mean(DType::kF32, {2, 1});
  constexpr aclnnStatus kInvalid = ACLNN_ERR_PARAM_INVALID;
  expect_failure(call(ANYNPU_PHASES(aclnnSoftmax), x, int64_t{2}, x), kInvalid,
                 "dim is 2; -2 to 1 are accepted");
  expect_failure(call(ANYNPU_PHASES(aclnnSoftmax), x, int64_t{0}, other), kInvalid,
                 "out has shape [3, 2]; [2, 3] is accepted");
  expect_failure(call(ANYNPU_PHASES(aclnnSoftmax), integers, int64_t{0}, x), kInvalid,
                 "self has type i32; accepted are f16, bf16, f32, f64");
  expect_failure(call(ANYNPU_PHASES(aclnnSoftmaxBackward), x, other, int64_t{0}, x), kInvalid,
                 "output has shape [3, 2]");
  const aclTensor* const absent = nullptr;
  const auto norm = [&](const Sizes& normalized, const aclTensor* weight, aclTensor* of_mean) {
    aclIntArray* shape = aclCreateIntArray(normalized.data(), normalized.size());
    const aclnnStatus status = call(ANYNPU_PHASES(aclnnLayerNorm), x, shape, weight, absent, 1e-5, x, of_mean,
                                    static_cast<aclTensor*>(nullptr));
    EXPECT_EQ(aclDestroyIntArray(shape), ACL_SUCCESS);
    return status;
  };
  expect_failure(norm({2}, absent, mean), kInvalid,
                 "normalizedShape is [2]; one or more of the last sizes of input, [2, 3], are accepted");
  expect_failure(norm({}, absent, mean), kInvalid, "normalizedShape is []");
  expect_failure(norm({3}, other, mean), kInvalid, "weightOptional has shape [3, 2]; [3] is accepted");
  expect_failure(norm({3}, absent, other), kInvalid, "meanOutOptional has shape [3, 2]; [2, 1] is accepted");
  expect_failure(norm({3}, integers, mean), kInvalid, "weightOptional has type i32");
}

}  // namespace
}  // namespace anynpu::aclnn
