#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <string>

#include "aclnnop/aclnn_flash_attention_score.h"
#include "aclnnop/aclnn_flash_attention_score_grad.h"
#include "unit/aclnn/aclnn_test.h"

namespace anynpu::aclnn {
namespace {

constexpr int64_t kBatch = 2, kHeads = 2, kQueries = 3, kKeys = 4, kWidth = 2, kAny = 2147483647;
constexpr double kScale = 0.6;
using Values = std::vector<double>;

/// Values of batch x heads x tokens x width in the order of a layout, and back.
Sizes sizes_in(const std::string& layout, int64_t heads, int64_t tokens) {
  if (layout == "BNSD") return {kBatch, heads, tokens, kWidth};
  if (layout == "BSND") return {kBatch, tokens, heads, kWidth};
  if (layout == "BSH") return {kBatch, tokens, heads * kWidth};
  return {tokens, kBatch, heads * kWidth};
}
size_t place_in(const std::string& layout, int64_t heads, int64_t tokens, std::array<int64_t, 4> at) {
  const auto [b, h, t, d] = at;
  if (layout == "BNSD") return static_cast<size_t>(((b * heads + h) * tokens + t) * kWidth + d);
  if (layout == "SBH") return static_cast<size_t>(((t * kBatch + b) * heads + h) * kWidth + d);
  return static_cast<size_t>(((b * tokens + t) * heads + h) * kWidth + d);
}

class AclnnAttention : public AclnnTest {
 protected:
  /// A tensor of one head of keys, or of kHeads of queries, with numbers that repeat late.
  struct Operand {
    Values values;
    TestTensor tensor;
    Operand(const std::string& layout, int64_t heads, int64_t tokens, double phase)
        : values(static_cast<size_t>(kBatch * heads * tokens * kWidth)),
          tensor(DType::kF32, sizes_in(layout, heads, tokens)) {
      for (size_t i = 0; i < values.size(); ++i)
        values[i] = static_cast<float>(std::sin(phase + 1.7 * static_cast<double>(i)));
      tensor.set(values);
    }
  };

  struct Expected {
    Values out, dq, dk, dv, maximum, total;
  };
  /// Computed with doubles, of a layout's order; `hides` tells of query and key.
  static Expected expected(const std::string& layout, const Operand& q, const Operand& k, const Operand& v,
                           const Operand& dy, const std::function<bool(int64_t, int64_t)>& hides) {
    const auto of_query = [&](int64_t b, int64_t h, int64_t i, int64_t d) {
      return place_in(layout, kHeads, kQueries, {b, h, i, d});
    };
    const auto of_key = [&](int64_t b, int64_t j, int64_t d) {
      return place_in(layout, 1, kKeys, {b, 0, j, d});
    };
    Expected made = {Values(q.values.size()),
                     Values(q.values.size()),
                     Values(k.values.size()),
                     Values(v.values.size()),
                     {},
                     {}};
    for (int64_t b = 0; b < kBatch; ++b)
      for (int64_t h = 0; h < kHeads; ++h)
        for (int64_t i = 0; i < kQueries; ++i) {
          double scores[kKeys], maximum = -INFINITY, total = 0, weights[kKeys], grads[kKeys], mean = 0;
          for (int64_t j = 0; j < kKeys; ++j) {
            scores[j] = 0;
            for (int64_t d = 0; d < kWidth; ++d)
              scores[j] += kScale * q.values[of_query(b, h, i, d)] * k.values[of_key(b, j, d)];
            if (hides(i, j)) scores[j] = -INFINITY;
            maximum = std::max(maximum, scores[j]);
          }
          for (const double score : scores) total += std::exp(score - maximum);
          made.maximum.push_back(maximum);
          made.total.push_back(total);
          for (int64_t j = 0; j < kKeys; ++j) {
            weights[j] = std::exp(scores[j] - maximum) / total;
            grads[j] = 0;
            for (int64_t d = 0; d < kWidth; ++d) {
              const double grad = dy.values[of_query(b, h, i, d)], value = v.values[of_key(b, j, d)];
              made.out[of_query(b, h, i, d)] += weights[j] * value;
              made.dv[of_key(b, j, d)] += weights[j] * grad;
              grads[j] += grad * value;
            }
            mean += weights[j] * grads[j];
          }
          for (int64_t j = 0; j < kKeys; ++j)
            for (int64_t d = 0; d < kWidth; ++d) {
              const double of_score = kScale * weights[j] * (grads[j] - mean);
              made.dq[of_query(b, h, i, d)] += of_score * k.values[of_key(b, j, d)];
              made.dk[of_key(b, j, d)] += of_score * q.values[of_query(b, h, i, d)];
            }
        }
    return made;
  }

  static void expect_near(const TestTensor& got, const Values& wanted, size_t repeats = 1) {
    const Values values = got.values();
    ASSERT_EQ(values.size(), wanted.size() * repeats);
    for (size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(values[i], wanted[i / repeats], 2e-6) << i;
  }

  void expect_both(const std::string& layout, const aclTensor* mask, int64_t mode, int64_t before,
                   int64_t after, const std::function<bool(int64_t, int64_t)>& hides) {
    SCOPED_TRACE(layout + ", mode " + std::to_string(mode));
    const Operand q(layout, kHeads, kQueries, 0), k(layout, 1, kKeys, 1), v(layout, 1, kKeys, 2),
        dy(layout, kHeads, kQueries, 3);
    const Sizes of_rows = {kBatch, kHeads, kQueries, 8};
    const TestTensor maximum(DType::kF32, of_rows), total(DType::kF32, of_rows), none(DType::kF32, {0}),
        out(DType::kF32, q.tensor.sizes()), dq(DType::kF32, q.tensor.sizes()),
        dk(DType::kF32, k.tensor.sizes()), dv(DType::kF32, v.tensor.sizes());
    std::string name = layout;
    const aclTensor* const absent = nullptr;
    succeed(call(ANYNPU_PHASES(aclnnFlashAttentionScore), q.tensor, k.tensor, v.tensor, absent, absent,
                 absent, mask, nullptr, kScale, 1.0, before, after, kHeads, name.data(), int64_t{0}, mode,
                 maximum, total, none, out));
    const Expected wanted = expected(layout, q, k, v, dy, hides);
    expect_near(out, wanted.out);
    expect_near(maximum, wanted.maximum, 8);
    expect_near(total, wanted.total, 8);
    succeed(call(ANYNPU_PHASES(aclnnFlashAttentionScoreGrad), q.tensor, k.tensor, v.tensor, dy.tensor, absent,
                 absent, absent, mask, maximum, total, absent, out, nullptr, kScale, 1.0, before, after,
                 kHeads, name.data(), int64_t{0}, mode, dq, dk, dv, none));
    expect_near(dq, wanted.dq);
    expect_near(dk, wanted.dk);
    expect_near(dv, wanted.dv);
  }
};

TEST_F(AclnnAttention, HasTheLayoutsMasksAndModesOfTheCard) {
  const TestTensor mask(DType::kU8, {kQueries, kKeys}, {0, 1, 0, 0, 1, 0, 0, 1, 0, 0, 1, 1}),
      triangle(DType::kBool, {2048, 2048});
  const Values hidden = mask.values();
  const auto by_mask = [&](int64_t i, int64_t j) { return hidden[static_cast<size_t>(i * kKeys + j)] != 0; };
  for (const char* layout : {"BNSD", "BSND", "BSH", "SBH"}) {
    expect_both(layout, nullptr, 0, kAny, kAny, [](int64_t, int64_t) { return false; });
    expect_both(layout, mask, 1, 0, 0, by_mask);
  }
  expect_both("BSH", mask, 0, 2, 2,
              [&](int64_t i, int64_t j) { return by_mask(i, j) || j - i > 2 || i - j > 2; });
  expect_both("BNSD", triangle, 2, kAny, kAny, [](int64_t i, int64_t j) { return j > i; });
  expect_both("BNSD", triangle, 3, kAny, kAny, [](int64_t i, int64_t j) { return j > i + kKeys - kQueries; });
}

TEST_F(AclnnAttention, SaysWhatIsNotAccepted) {
  const Operand q("BNSD", kHeads, kQueries, 0), k("BNSD", 1, kKeys, 1);
  const Sizes of_rows = {kBatch, kHeads, kQueries, 8};
  const TestTensor maximum(DType::kF32, of_rows), total(DType::kF32, of_rows), none(DType::kF32, {0}),
      out(DType::kF32, q.tensor.sizes());
  const aclTensor* const absent = nullptr;
  const auto attend = [&](std::string layout, double keep, int64_t mode) {
    return call(ANYNPU_PHASES(aclnnFlashAttentionScore), q.tensor, k.tensor, k.tensor, absent, absent, absent,
                absent, nullptr, kScale, keep, kAny, kAny, kHeads, layout.data(), int64_t{0}, mode, maximum,
                total, none, out);
  };
  const auto message = [] { return std::string(aclGetRecentErrMsg()); };
  EXPECT_EQ(attend("BDNS", 1, 0), ACLNN_ERR_PARAM_INVALID);
  EXPECT_NE(message().find("inputLayout is \"BDNS\"; BNSD, BSND, BSH and SBH are accepted"),
            std::string::npos)
      << message();
  EXPECT_NE(attend("BNSD", 0.5, 0), ACL_SUCCESS);
  EXPECT_NE(message().find("not supported: keepProb is 0.5; 1 is accepted"), std::string::npos) << message();
  EXPECT_EQ(attend("BNSD", 1, 1), ACLNN_ERR_PARAM_INVALID);
  EXPECT_NE(message().find("attenMaskOptional is absent; with sparseMode 1"), std::string::npos) << message();
  EXPECT_EQ(attend("BSH", 1, 0), ACLNN_ERR_PARAM_INVALID);
  EXPECT_NE(message().find("query has shape [2, 2, 3, 2]; 3 dimensions are accepted"), std::string::npos)
      << message();
}

}  // namespace
}  // namespace anynpu::aclnn
