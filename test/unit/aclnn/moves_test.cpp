#include <array>
#include <cmath>
#include <limits>
#include <span>

#include "aclnnop/aclnn_cat.h"
#include "aclnnop/aclnn_embedding.h"
#include "aclnnop/aclnn_embedding_dense_backward.h"
#include "aclnnop/aclnn_gather.h"
#include "aclnnop/aclnn_index_select.h"
#include "aclnnop/aclnn_scatter_add.h"
#include "aclnnop/aclnn_uniform.h"
#include "tile/philox.h"
#include "unit/aclnn/aclnn_test.h"

namespace anynpu::aclnn {
namespace {

class AclnnMoves : public AclnnTest {};

TEST_F(AclnnMoves, FindElementsByIndices) {
  const TestTensor self(DType::kF16, {2, 3}, {1, 2, 3, 4, 5, 6}), index(DType::kI32, {4}, {2, 0, 0, 1});
  const TestTensor selected(DType::kF16, {2, 4});
  succeed(call(ANYNPU_PHASES(aclnnIndexSelect), self, -1, index, selected));
  expect_values(selected, {3, 1, 1, 2, 6, 4, 4, 5});
  const TestTensor places(DType::kI64, {1, 3}, {1, 0, 1}), gathered(DType::kF16, {1, 3});
  succeed(call(ANYNPU_PHASES(aclnnGather), self, 0, places, gathered));
  expect_values(gathered, {4, 2, 6});
  const TestTensor words(DType::kI64, {2, 2}, {1, 0, 1, 1}), rows(DType::kF16, {2, 2, 3});
  succeed(call(ANYNPU_PHASES(aclnnEmbedding), self, words, rows));
  expect_values(rows, {4, 5, 6, 1, 2, 3, 4, 5, 6, 4, 5, 6});
}

TEST_F(AclnnMoves, AddWhereIndicesSay) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI16}) {
    const TestTensor self(dtype, {3, 2}, {10, 20, 30, 40, 50, 60}), source(dtype, {3, 2}, {1, 2, 3, 4, 5, 6});
    const TestTensor index(DType::kI64, {3, 1}, {2, 2, 0}), out(dtype, {3, 2});
    succeed(call(ANYNPU_PHASES(aclnnScatterAdd), self, 0, index, source, out));
    expect_values(out, {15, 20, 30, 40, 54, 60});
    succeed(call(ANYNPU_PHASES(aclnnScatterAdd), self, 0, index, source, self));
    expect_values(self, {15, 20, 30, 40, 54, 60});
  }
}

TEST_F(AclnnMoves, JoinListsOfTensors) {
  const TestTensor a(DType::kF16, {2, 1}, {1, 2}), b(DType::kI32, {2, 2}, {3, 4, 5, 6}),
      none(DType::kF16, {0}), out(DType::kF32, {2, 3});
  const aclTensor* const members[] = {a, none, b};
  const auto join = [&](std::span<const aclTensor* const> given, int64_t dim, aclTensor* result) {
    const aclTensorList* const list = aclCreateTensorList(given.data(), given.size());
    return call(ANYNPU_PHASES(aclnnCat), list, dim, result);  // members are the test's: the list is left
  };
  succeed(join(members, -1, out));
  expect_values(out, {1, 3, 4, 2, 5, 6});
  EXPECT_EQ(join(members, 0, out), ACLNN_ERR_PARAM_INVALID);
  EXPECT_EQ(
      std::string(aclGetRecentErrMsg()),
      "aclnnCatGetWorkspaceSize failed (161002, ACLNN_ERR_PARAM_INVALID): tensors has members of shapes "
      "[2, 1] and [2, 2]; the same but for dimension 0 are accepted");
  EXPECT_EQ(join({}, 0, out), ACLNN_ERR_PARAM_INVALID);
  EXPECT_EQ(join(std::array<const aclTensor*, 2>{a, nullptr}, 0, out), ACLNN_ERR_PARAM_NULLPTR);
  EXPECT_EQ(call(ANYNPU_PHASES(aclnnCat), nullptr, int64_t{0}, out), ACLNN_ERR_PARAM_NULLPTR);
}

TEST_F(AclnnMoves, GiveTheGradientOfAnEmbedding) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kF64}) {
    const TestTensor grad(dtype, {2, 2, 2}, {1, 2, 3, 4, 5, 6, 7, 8}),
        index(DType::kI32, {2, 2}, {2, 0, 2, 1}), out(dtype, {4, 2});
    succeed(call(ANYNPU_PHASES(aclnnEmbeddingDenseBackward), grad, index, 4, 1, false, out));
    expect_values(out, {3, 4, 0, 0, 6, 8, 0, 0});
    EXPECT_EQ(call(ANYNPU_PHASES(aclnnEmbeddingDenseBackward), grad, index, 4, 1, true, out),
              ACL_ERROR_FEATURE_UNSUPPORTED);
  }
}

TEST_F(AclnnMoves, RaiseBadIndicesAtTheNextSynchronization) {
  const TestTensor self(DType::kF32, {3}, {1, 2, 3}), index(DType::kI64, {2}, {1, 3}), out(DType::kF32, {2});
  uint64_t size = 0;
  aclOpExecutor* executor = nullptr;
  succeed(aclnnIndexSelectGetWorkspaceSize(self, 0, index, out, &size, &executor));
  succeed(aclnnIndexSelect(nullptr, size, executor, nullptr));
  EXPECT_NE(aclrtSynchronizeStream(nullptr), ACL_SUCCESS);
  EXPECT_NE(std::string(aclGetRecentErrMsg()).find("IndexSelect: index 3 is out of range"),
            std::string::npos);
  succeed(aclrtSynchronizeStream(nullptr));
  const TestTensor weight(DType::kF32, {3, 2}), rows(DType::kF32, {2, 2});
  succeed(aclnnEmbeddingGetWorkspaceSize(weight, index, rows, &size, &executor));
  succeed(aclnnEmbedding(nullptr, size, executor, nullptr));
  EXPECT_NE(aclrtSynchronizeStream(nullptr), ACL_SUCCESS);
  EXPECT_NE(std::string(aclGetRecentErrMsg()).find("Embedding: index 3 is out of range"), std::string::npos);
  succeed(aclrtSynchronizeStream(nullptr));
}

TEST_F(AclnnMoves, DrawFromPhilox) {
  const TestTensor self(DType::kF32, {9});
  succeed(call(ANYNPU_PHASES(aclnnInplaceUniform), self, 2.0, 4.0, int64_t{7}, int64_t{12}));
  std::vector<double> expected;
  const auto drawn = [](uint32_t word) { return static_cast<double>(word >> 8) / (1 << 24) * 2 + 2; };
  for (size_t word = 0; word < 4; ++word)
    for (uint64_t counter = 0; counter < 2; ++counter)
      expected.push_back(static_cast<float>(drawn(tile::philox4x32(7, 3, counter)[word])));
  expected.push_back(static_cast<float>(drawn(tile::philox4x32(7, 3, 2)[0])));
  expect_values(self, expected, 1e-7);
}

TEST_F(AclnnMoves, DrawOnlyFromFiniteRanges) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity(), kNaN = std::nan("");
  struct Range {
    DType dtype;
    double from, to;
  };
  for (const auto& [dtype, from, to] :
       {Range{DType::kF32, 0, kInfinity}, Range{DType::kF32, -kInfinity, 0}, Range{DType::kF32, 0, kNaN},
        Range{DType::kF64, kNaN, 1}, Range{DType::kF32, 0, 1e39}, Range{DType::kF32, -3e38, 3e38},
        Range{DType::kF16, 0, 65505}, Range{DType::kF16, -40000, 40000}, Range{DType::kBF16, 0, 3.395e38},
        Range{DType::kF64, -1e308, 1e308}, Range{DType::kF32, 1, 0}}) {
    const TestTensor self(dtype, {9});
    EXPECT_EQ(call(ANYNPU_PHASES(aclnnInplaceUniform), self, from, to, int64_t{7}, int64_t{0}),
              ACLNN_ERR_PARAM_INVALID)
        << tile::name_of(dtype) << " from " << from << " to " << to;
    EXPECT_NE(std::string(aclGetRecentErrMsg()).find("numbers in order are accepted"), std::string::npos);
  }
  const TestTensor self(DType::kF16, {9});
  succeed(call(ANYNPU_PHASES(aclnnInplaceUniform), self, 0.0, 65504.0, int64_t{7}, int64_t{0}));
}

TEST_F(AclnnMoves, SayWhatDoesNotFit) {
  const TestTensor self(DType::kF32, {2, 3}), floats(DType::kF32, {2}), out(DType::kF32, {2, 2});
  EXPECT_EQ(call(ANYNPU_PHASES(aclnnIndexSelect), self, 1, floats, out), ACLNN_ERR_PARAM_INVALID);
  EXPECT_NE(std::string(aclGetRecentErrMsg()).find("index has type f32; accepted are i32, i64"),
            std::string::npos);
  const TestTensor index(DType::kI64, {3, 2}), wide(DType::kF32, {3, 2});
  EXPECT_EQ(call(ANYNPU_PHASES(aclnnGather), self, 1, index, wide), ACLNN_ERR_PARAM_INVALID);
  EXPECT_EQ(call(ANYNPU_PHASES(aclnnGather), self, 2, index, wide), ACLNN_ERR_PARAM_INVALID);
  EXPECT_NE(std::string(aclGetRecentErrMsg()).find("dim is 2; -2 to 1 are accepted"), std::string::npos);
}

}  // namespace
}  // namespace anynpu::aclnn
