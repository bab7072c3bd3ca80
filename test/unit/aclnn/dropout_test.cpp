#include "aclnnop/aclnn_dropout_do_mask.h"
#include "aclnnop/aclnn_dropout_gen_mask.h"
#include "aclnnop/aclnn_dropout_gen_mask_v2.h"
#include "tile/philox.h"
#include "unit/aclnn/aclnn_test.h"

namespace anynpu::aclnn {
namespace {

class AclnnDropout : public AclnnTest {
 protected:
  /// For so many elements, in whole groups of 128 as callers have it.
  static aclnnStatus fill(const TestTensor& mask, int64_t elements, double p, int64_t seed, int64_t offset) {
    const aclIntArray* const shape = aclCreateIntArray(&elements, 1);
    const aclnnStatus status =
        call(ANYNPU_PHASES(aclnnDropoutGenMaskV2), shape, p, seed, offset, ACL_FLOAT, mask);
    EXPECT_EQ(aclDestroyIntArray(shape), ACL_SUCCESS);
    return status;
  }
};

TEST_F(AclnnDropout, TakesBitsFromPhilox) {
  for (const int64_t elements : {1, 9, 1000, 20000})
    for (const double p : {0.0, 0.3, 1.0}) {
      const int64_t bytes = (elements + 127) / 128 * 16;
      const TestTensor mask(DType::kU8, {bytes});
      succeed(fill(mask, elements, p, 42, 7));
      std::vector<double> expected;
      for (int64_t byte = 0; byte < bytes; ++byte) {
        int bits = 0;
        for (int bit = 0; bit < 8; ++bit) {
          const auto words = tile::philox4x32(42, 7, static_cast<uint64_t>(2 * byte + bit / 4));
          bits |= (words[static_cast<size_t>(bit % 4)] >= p * 0x1p32 ? 1 : 0) << bit;
        }
        expected.push_back(bits);
      }
      expect_values(mask, expected);
    }
}

TEST_F(AclnnDropout, KeepsAndScalesWhatBitsSay) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kF64}) {
    const TestTensor mask(DType::kU8, {16}, {0b10100101, 0b1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0});
    TestTensor self(dtype, {3, 3}, Layout{{1, 3}}), out(dtype, {3, 3}, Layout{{1, 4}, 2});
    self.set({1, 2, 3, 4, 5, 6, 7, 8, 9});
    succeed(call(ANYNPU_PHASES(aclnnDropoutDoMask), self, mask, 0.75, out));
    expect_values(out, {4, 0, 12, 0, 0, 24, 0, 32, 36});
    succeed(call(ANYNPU_PHASES(aclnnDropoutDoMask), self, mask, 1.0, self));
    expect_values(self, std::vector<double>(9));
  }
}

TEST_F(AclnnDropout, SaysWhatItDoesNotTake) {
  const TestTensor mask(DType::kU8, {2}), floats(DType::kF32, {2}), self(DType::kF32, {17}),
      out(DType::kF32, {17});
  EXPECT_EQ(fill(mask, 17, 0.5, 1, 2), ACLNN_ERR_PARAM_INVALID);
  EXPECT_NE(std::string(aclGetRecentErrMsg())
                .find("out has 2 bytes; a bit for each of 17 elements, and so 3 or more"),
            std::string::npos);
  EXPECT_EQ(fill(mask, 16, 1.5, 1, 2), ACLNN_ERR_PARAM_INVALID);
  EXPECT_NE(std::string(aclGetRecentErrMsg()).find("prob is 1.5; 0 to 1 is accepted"), std::string::npos);
  EXPECT_EQ(fill(floats, 1, 0.5, 1, 2), ACLNN_ERR_PARAM_INVALID);
  EXPECT_EQ(call(ANYNPU_PHASES(aclnnDropoutDoMask), self, mask, 0.5, out), ACLNN_ERR_PARAM_INVALID);
}

}  // namespace
}  // namespace anynpu::aclnn
