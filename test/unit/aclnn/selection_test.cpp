// Results as long as values say.

#include <cmath>
#include <limits>

#include "aclnnop/aclnn_masked_select.h"
#include "aclnnop/aclnn_nonzero.h"
#include "aclnnop/aclnn_stack.h"
#include "unit/aclnn/aclnn_test.h"

namespace anynpu::aclnn {
namespace {

class AclnnSelection : public AclnnTest {
 protected:
  static Sizes shape(const aclTensor* tensor) {
    int64_t* sizes = nullptr;
    uint64_t count = 0;
    succeed(aclGetViewShape(tensor, &sizes, &count));
    const Sizes found(sizes, sizes + count);
    delete[] sizes;
    return found;
  }
  static void expect_first(const TestTensor& tensor, const std::vector<double>& expected) {
    auto found = tensor.values();
    ASSERT_GE(found.size(), expected.size());
    found.resize(expected.size());
    EXPECT_EQ(found, expected);
  }
};

TEST_F(AclnnSelection, GivesWhatAMaskChooses) {
  const TestTensor self(DType::kF16, {2, 3}, {1, 2, 3, 4, 5, 6}),
      mask(DType::kBool, {2, 3}, {0, 1, 1, 0, 0, 1}), row(DType::kU8, {3}, {0, 7, 0}), out(DType::kF16, {6});
  succeed(call(ANYNPU_PHASES(aclnnMaskedSelect), self, mask, out));
  EXPECT_EQ(shape(out), Sizes{3});
  expect_first(out, {2, 3, 6});
  const TestTensor two(DType::kF16, {6});
  succeed(call(ANYNPU_PHASES(aclnnMaskedSelect), self, row, two));
  EXPECT_EQ(shape(two), Sizes{2});
  expect_first(two, {2, 5});
  const TestTensor empty(DType::kF32, {0, 3}), none(DType::kBool, {0, 3}), nothing(DType::kF32, {0});
  succeed(call(ANYNPU_PHASES(aclnnMaskedSelect), empty, none, nothing));
  EXPECT_EQ(shape(nothing), Sizes{0});
}

TEST_F(AclnnSelection, GivesTheIndicesOfWhatIsNotZero) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kI64, DType::kBool, DType::kF64}) {
    TestTensor self(dtype, {2, 3}, Layout{{1, 4}, 1});
    self.set({0, 1, -0.0, 1, 0, tile::kBits.contains(dtype) ? 1 : kNan});
    const TestTensor out(DType::kI64, {6, 2});
    succeed(call(ANYNPU_PHASES(aclnnNonzero), self, out));
    EXPECT_EQ(shape(out), (Sizes{3, 2}));
    expect_first(out, {0, 1, 1, 0, 1, 2});
  }
  const TestTensor number(DType::kF32, {}, {3}), out(DType::kI64, {1, 0});
  succeed(call(ANYNPU_PHASES(aclnnNonzero), number, out));
  EXPECT_EQ(shape(out), (Sizes{1, 0}));
}

TEST_F(AclnnSelection, GoesOverManyBlocks) {
  constexpr int64_t kRows = 301, kCols = 101;
  std::vector<double> values, chosen, indices;
  for (int64_t i = 0; i < kRows * kCols; ++i) {
    const bool is_chosen = i * i % 7 == 2;
    values.push_back(is_chosen ? static_cast<double>(i) : 0);
    if (!is_chosen) continue;
    chosen.push_back(static_cast<double>(i));
    indices.insert(indices.end(), {static_cast<double>(i / kCols), static_cast<double>(i % kCols)});
  }
  const TestTensor self(DType::kF32, {kRows, kCols}, values), mask(DType::kBool, {kRows, kCols}, values);
  const TestTensor selected(DType::kF32, {kRows * kCols}), found(DType::kI64, {kRows * kCols, 2});
  succeed(call(ANYNPU_PHASES(aclnnMaskedSelect), self, mask, selected));
  EXPECT_EQ(shape(selected), Sizes{static_cast<int64_t>(chosen.size())});
  expect_first(selected, chosen);
  succeed(call(ANYNPU_PHASES(aclnnNonzero), self, found));
  EXPECT_EQ(shape(found), (Sizes{static_cast<int64_t>(chosen.size()), 2}));
  expect_first(found, indices);
}

TEST_F(AclnnSelection, SaysWhatItDoesNotTake) {
  const TestTensor self(DType::kF32, {2, 3}), mask(DType::kF32, {2, 3}), truths(DType::kBool, {2, 2}),
      out(DType::kF32, {6}), wide(DType::kF32, {2, 3}), indices(DType::kI64, {6, 3});
  EXPECT_EQ(call(ANYNPU_PHASES(aclnnMaskedSelect), self, mask, out), ACLNN_ERR_PARAM_INVALID);
  EXPECT_EQ(call(ANYNPU_PHASES(aclnnMaskedSelect), self, truths, out), ACLNN_ERR_PARAM_INVALID);
  const TestTensor all(DType::kBool, {2, 3}, {1, 1, 1, 1, 1, 1});
  EXPECT_EQ(call(ANYNPU_PHASES(aclnnMaskedSelect), self, all, wide), ACLNN_ERR_PARAM_INVALID);
  EXPECT_EQ(call(ANYNPU_PHASES(aclnnNonzero), self, indices), ACLNN_ERR_PARAM_INVALID);
  EXPECT_NE(std::string(aclGetRecentErrMsg()).find("two dimensions, the last one of 2, are accepted"),
            std::string::npos);
}

TEST_F(AclnnSelection, RaisesWhereThereIsNoRoomAtTheNextSynchronization) {
  const TestTensor self(DType::kF32, {6}, {1, 2, 3, 4, 5, 6}), all(DType::kBool, {6}, {1, 1, 1, 1, 1, 1}),
      out(DType::kF32, {4});
  uint64_t size = 0;
  aclOpExecutor* executor = nullptr;
  void* workspace = nullptr;
  succeed(aclnnMaskedSelectGetWorkspaceSize(self, all, out, &size, &executor));
  succeed(aclrtMalloc(&workspace, size, ACL_MEM_MALLOC_NORMAL_ONLY));
  succeed(aclnnMaskedSelect(workspace, size, executor, nullptr));
  EXPECT_NE(aclrtSynchronizeStream(nullptr), ACL_SUCCESS);
  EXPECT_NE(std::string(aclGetRecentErrMsg()).find("is out of range of a dimension of size 4"),
            std::string::npos);
  succeed(aclrtFree(workspace));
}

TEST_F(AclnnSelection, StacksMembersOfLists) {
  const TestTensor a(DType::kF32, {2}, {1, 2}), b(DType::kF32, {2}, {3, 4}), rows(DType::kF32, {2, 2}),
      cols(DType::kF32, {2, 2}), wrong(DType::kF32, {3});
  const auto stack = [&](std::vector<const aclTensor*> members, int64_t dim, aclTensor* out) {
    const aclTensorList* const list = aclCreateTensorList(members.data(), members.size());
    return call(ANYNPU_PHASES(aclnnStack), list, dim, out);  // members are the test's: the list is left
  };
  succeed(stack({a, b}, 0, rows));
  expect_values(rows, {1, 2, 3, 4});
  succeed(stack({a, b}, -1, cols));
  expect_values(cols, {1, 3, 2, 4});
  EXPECT_EQ(stack({a, wrong}, 0, rows), ACLNN_ERR_PARAM_INVALID);
  EXPECT_EQ(stack({a, b}, 2, rows), ACLNN_ERR_PARAM_INVALID);
  EXPECT_EQ(stack({}, 0, rows), ACLNN_ERR_PARAM_INVALID);
}

}  // namespace
}  // namespace anynpu::aclnn
