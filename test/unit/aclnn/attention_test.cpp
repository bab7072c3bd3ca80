#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <string>

#include "aclnnop/aclnn_dropout_gen_mask_v2.h"
#include "aclnnop/aclnn_flash_attention_score.h"
#include "aclnnop/aclnn_flash_attention_score_grad.h"
#include "aclnnop/aclnn_flash_attention_score_grad_v2.h"
#include "aclnnop/aclnn_flash_attention_score_grad_v3.h"
#include "aclnnop/aclnn_flash_attention_score_v2.h"
#include "aclnnop/aclnn_flash_attention_score_v3.h"
#include "aclnnop/aclnn_flash_attention_unpadding_score_grad.h"
#include "aclnnop/aclnn_flash_attention_unpadding_score_grad_v2.h"
#include "aclnnop/aclnn_flash_attention_unpadding_score_grad_v3.h"
#include "aclnnop/aclnn_flash_attention_unpadding_score_grad_v4.h"
#include "aclnnop/aclnn_flash_attention_unpadding_score_grad_v5.h"
#include "aclnnop/aclnn_flash_attention_var_len_score.h"
#include "aclnnop/aclnn_flash_attention_var_len_score_v2.h"
#include "aclnnop/aclnn_flash_attention_var_len_score_v3.h"
#include "aclnnop/aclnn_flash_attention_var_len_score_v4.h"
#include "aclnnop/aclnn_flash_attention_var_len_score_v5.h"
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
  static size_t score_at(int64_t b, int64_t h, int64_t i, int64_t j) {
    return static_cast<size_t>(((b * kHeads + h) * kQueries + i) * kKeys + j);
  }
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
    Values dpse;  ///< batch x heads x queries x keys
  };
  /// What is added to scores before they are scaled, and what weights are multiplied by, if anything.
  struct OfScores {
    Values pse, factors;
    double added(size_t at) const { return pse.empty() ? 0 : pse[at]; }
    double factor(size_t at) const { return factors.empty() ? 1 : factors[at]; }
  };
  /// Computed with doubles, of a layout's order; `hides` tells of query and key.
  static Expected expected(const std::string& layout, const Operand& q, const Operand& k, const Operand& v,
                           const Operand& dy, const std::function<bool(int64_t, int64_t)>& hides,
                           const OfScores& of_scores = {}) {
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
                     {},
                     {}};
    for (int64_t b = 0; b < kBatch; ++b)
      for (int64_t h = 0; h < kHeads; ++h)
        for (int64_t i = 0; i < kQueries; ++i) {
          double scores[kKeys], maximum = -INFINITY, total = 0, weights[kKeys], grads[kKeys], mean = 0;
          for (int64_t j = 0; j < kKeys; ++j) {
            scores[j] = kScale * of_scores.added(score_at(b, h, i, j));
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
            const double factor = of_scores.factor(score_at(b, h, i, j));
            for (int64_t d = 0; d < kWidth; ++d) {
              const double grad = dy.values[of_query(b, h, i, d)], value = v.values[of_key(b, j, d)];
              made.out[of_query(b, h, i, d)] += weights[j] * factor * value;
              made.dv[of_key(b, j, d)] += weights[j] * factor * grad;
              grads[j] += grad * factor * value;
            }
            mean += weights[j] * grads[j];
          }
          for (int64_t j = 0; j < kKeys; ++j) {
            const double of_score = kScale * weights[j] * (grads[j] - mean);
            made.dpse.push_back(of_score);
            for (int64_t d = 0; d < kWidth; ++d) {
              made.dq[of_query(b, h, i, d)] += of_score * k.values[of_key(b, j, d)];
              made.dk[of_key(b, j, d)] += of_score * q.values[of_query(b, h, i, d)];
            }
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

TEST_F(AclnnAttention, DropsWeightsByMaskAndGivesTheGradientOfWhatIsAdded) {
  const std::string layout = "BSND";
  const Operand q(layout, kHeads, kQueries, 0), k(layout, 1, kKeys, 1), v(layout, 1, kKeys, 2),
      dy(layout, kHeads, kQueries, 3);
  constexpr int64_t kScores = kBatch * kHeads * kQueries * kKeys;
  constexpr double kKeep = 0.6;
  const TestTensor drop(DType::kU8, {16});
  const aclIntArray* const shape = aclCreateIntArray(&kScores, 1);
  succeed(
      call(ANYNPU_PHASES(aclnnDropoutGenMaskV2), shape, 1 - kKeep, int64_t{3}, int64_t{4}, ACL_FLOAT, drop));
  EXPECT_EQ(aclDestroyIntArray(shape), ACL_SUCCESS);
  OfScores of_scores;
  const Values bytes = drop.values();
  for (int64_t n = 0; n < kScores; ++n) {
    const auto at = static_cast<size_t>(n);
    of_scores.factors.push_back((static_cast<int>(bytes[at / 8]) >> (at % 8) & 1) != 0 ? 1 / kKeep : 0);
    of_scores.pse.push_back(static_cast<float>(std::cos(static_cast<double>(n))));
  }
  const auto kept = std::count(of_scores.factors.begin(), of_scores.factors.end(), 1 / kKeep);
  ASSERT_TRUE(kept > 0 && kept < kScores);
  const TestTensor pse(DType::kF32, {kBatch, kHeads, kQueries, kKeys}, of_scores.pse),
      dpse(DType::kF32, pse.sizes());
  const Sizes of_rows = {kBatch, kHeads, kQueries, 8};
  const TestTensor maximum(DType::kF32, of_rows), total(DType::kF32, of_rows), none(DType::kF32, {0}),
      out(DType::kF32, q.tensor.sizes()), dq(DType::kF32, q.tensor.sizes()),
      dk(DType::kF32, k.tensor.sizes()), dv(DType::kF32, v.tensor.sizes());
  std::string name = layout;
  const aclTensor* const absent = nullptr;
  succeed(call(ANYNPU_PHASES(aclnnFlashAttentionScore), q.tensor, k.tensor, v.tensor, pse, drop, absent,
               absent, nullptr, kScale, kKeep, kAny, kAny, kHeads, name.data(), int64_t{0}, int64_t{0},
               maximum, total, none, out));
  const Expected wanted = expected(layout, q, k, v, dy, [](int64_t, int64_t) { return false; }, of_scores);
  expect_near(out, wanted.out);
  expect_near(maximum, wanted.maximum, 8);
  expect_near(total, wanted.total, 8);
  succeed(call(ANYNPU_PHASES(aclnnFlashAttentionScoreGrad), q.tensor, k.tensor, v.tensor, dy.tensor, pse,
               drop, absent, absent, maximum, total, absent, out, nullptr, kScale, kKeep, kAny, kAny, kHeads,
               name.data(), int64_t{0}, int64_t{0}, dq, dk, dv, dpse));
  expect_near(dq, wanted.dq);
  expect_near(dk, wanted.dk);
  expect_near(dv, wanted.dv);
  expect_near(dpse, wanted.dpse);
}

/// An array of an operator's argument.
class TestArray {
 public:
  TestArray(const Sizes& values) : handle_(aclCreateIntArray(values.data(), values.size())) {}
  ~TestArray() { EXPECT_EQ(aclDestroyIntArray(handle_), ACL_SUCCESS); }
  TestArray(const TestArray&) = delete;
  operator const aclIntArray*() const { return handle_; }  // NOLINT(google-explicit-constructor): an argument

 private:
  const aclIntArray* handle_;
};

TEST_F(AclnnAttention, EveryVersionServesPackedSequences) {
  // The batches of the layout BSND are sequences of TND, as long as each other.
  const std::string batched = "BSND";
  const Operand q(batched, kHeads, kQueries, 0), k(batched, 1, kKeys, 1), v(batched, 1, kKeys, 2),
      dy(batched, kHeads, kQueries, 3);
  const auto packed = [](const Operand& operand) {
    const Sizes& sizes = operand.tensor.sizes();
    return std::make_unique<TestTensor>(DType::kF32, Sizes{sizes[0] * sizes[1], sizes[2], sizes[3]},
                                        operand.values);
  };
  const auto query = packed(q), key = packed(k), value = packed(v), grad = packed(dy);
  const Expected wanted =
      expected(batched, q, k, v, dy, [](int64_t i, int64_t j) { return j > i + kKeys - kQueries; });
  const TestTensor triangle(DType::kBool, {2048, 2048}), none(DType::kF32, {0});
  const TestArray query_ends({kQueries, 2 * kQueries, 0}), key_ends({kKeys, 2 * kKeys, 0}), empty({});
  const aclTensor* const absent = nullptr;
  std::string tnd = "TND", as_input = "same_as_input";
  const Sizes of_rows = {kBatch * kQueries, kHeads, 8};
  /// Statistics of N x S x 8 for each sequence as T x N x 8.
  const auto by_token = [](const Values& rows) {
    Values made(rows.size());
    for (int64_t b = 0; b < kBatch; ++b)
      for (int64_t h = 0; h < kHeads; ++h)
        for (int64_t i = 0; i < kQueries; ++i)
          made[static_cast<size_t>((b * kQueries + i) * kHeads + h)] =
              rows[static_cast<size_t>((b * kHeads + h) * kQueries + i)];
    return made;
  };
  for (const int version : {1, 2, 3, 4, 5}) {
    SCOPED_TRACE(version);
    const TestTensor maximum(DType::kF32, of_rows), total(DType::kF32, of_rows),
        out(DType::kF32, query->sizes()), dq(DType::kF32, query->sizes()), dk(DType::kF32, key->sizes()),
        dv(DType::kF32, value->sizes());
    const auto forward = [&](auto first, auto second, const auto&... arguments) {
      succeed(call(first, second, arguments..., maximum, total, none, out));
    };
    const int64_t mode = 3, zero = 0, one = 1;
    const aclTensor *const x = *query, *const y = *key, *const z = *value, *const g = *grad;
    if (version == 1)
      forward(ANYNPU_PHASES(aclnnFlashAttentionVarLenScore), x, y, z, absent, absent, absent, triangle, empty,
              query_ends, key_ends, kScale, 1.0, kAny, kAny, kHeads, tnd.data(), zero, mode);
    if (version == 2)
      forward(ANYNPU_PHASES(aclnnFlashAttentionVarLenScoreV2), x, y, z, absent, absent, absent, triangle,
              empty, query_ends, key_ends, empty, empty, kScale, 1.0, kAny, kAny, kHeads, tnd.data(), zero,
              mode, one);
    if (version == 3)
      forward(ANYNPU_PHASES(aclnnFlashAttentionVarLenScoreV3), x, absent, y, absent, z, absent, absent,
              absent, triangle, empty, query_ends, key_ends, empty, empty, kScale, 1.0, kAny, kAny, kHeads,
              tnd.data(), zero, mode, one);
    if (version == 4)
      forward(ANYNPU_PHASES(aclnnFlashAttentionVarLenScoreV4), x, y, z, absent, absent, absent, triangle,
              empty, query_ends, key_ends, kScale, 1.0, kAny, kAny, kHeads, tnd.data(), zero, mode,
              as_input.data());
    if (version == 5)
      forward(ANYNPU_PHASES(aclnnFlashAttentionVarLenScoreV5), x, absent, y, absent, z, absent, absent,
              absent, triangle, absent, empty, query_ends, key_ends, empty, empty, kScale, 1.0, kAny, kAny,
              kHeads, tnd.data(), zero, mode, one, as_input.data());
    expect_near(out, wanted.out);
    expect_near(maximum, version < 4 ? wanted.maximum : by_token(wanted.maximum), 8);
    expect_near(total, version < 4 ? wanted.total : by_token(wanted.total), 8);
    const auto backward = [&](auto first, auto second, const auto&... arguments) {
      succeed(call(first, second, arguments...));
    };
    if (version == 1)
      backward(ANYNPU_PHASES(aclnnFlashAttentionUnpaddingScoreGrad), x, y, z, g, absent, absent, absent,
               triangle, maximum, total, absent, out, empty, query_ends, key_ends, kScale, 1.0, kAny, kAny,
               kHeads, tnd.data(), zero, mode, dq, dk, dv, none);
    if (version == 2)
      backward(ANYNPU_PHASES(aclnnFlashAttentionUnpaddingScoreGradV2), x, y, z, g, absent, absent, absent,
               triangle, maximum, total, absent, out, empty, query_ends, key_ends, empty, empty, kScale, 1.0,
               kAny, kAny, kHeads, tnd.data(), zero, mode, one, dq, dk, dv, none);
    if (version == 3)
      backward(ANYNPU_PHASES(aclnnFlashAttentionUnpaddingScoreGradV3), x, absent, y, absent, z, g, absent,
               absent, absent, triangle, maximum, total, absent, out, empty, query_ends, key_ends, empty,
               empty, kScale, 1.0, kAny, kAny, kHeads, tnd.data(), zero, mode, one, dq, none, dk, none, dv,
               none);
    if (version == 4)
      backward(ANYNPU_PHASES(aclnnFlashAttentionUnpaddingScoreGradV4), x, y, z, g, absent, absent, absent,
               triangle, maximum, total, absent, out, empty, query_ends, key_ends, kScale, 1.0, kAny, kAny,
               kHeads, tnd.data(), zero, mode, dq, dk, dv, none, as_input.data());
    if (version == 5)
      backward(ANYNPU_PHASES(aclnnFlashAttentionUnpaddingScoreGradV5), x, absent, y, absent, z, g, absent,
               absent, absent, triangle, maximum, total, absent, out, absent, empty, query_ends, key_ends,
               empty, empty, kScale, 1.0, kAny, kAny, kHeads, tnd.data(), zero, mode, one, as_input.data(),
               dq, none, dk, none, dv, none, none);
    expect_near(dq, wanted.dq);
    expect_near(dk, wanted.dk);
    expect_near(dv, wanted.dv);
  }
}

TEST_F(AclnnAttention, LaterVersionsSayWhenScoresAreScaled) {
  const std::string layout = "BNSD";
  const Operand q(layout, kHeads, kQueries, 0), k(layout, 1, kKeys, 1), v(layout, 1, kKeys, 2),
      dy(layout, kHeads, kQueries, 3);
  OfScores of_scores;
  for (int64_t n = 0; n < kBatch * kHeads * kQueries * kKeys; ++n)
    of_scores.pse.push_back(static_cast<float>(std::cos(static_cast<double>(n))));
  const TestTensor pse(DType::kF32, {kBatch, kHeads, kQueries, kKeys}, of_scores.pse);
  std::string name = layout;
  const aclTensor* const absent = nullptr;
  for (const int version : {2, 3})
    for (const int64_t type : {0, 1}) {
      const Sizes of_rows = {kBatch, kHeads, kQueries, 8};
      const TestTensor maximum(DType::kF32, of_rows), total(DType::kF32, of_rows), none(DType::kF32, {0}),
          out(DType::kF32, q.tensor.sizes()), dq(DType::kF32, q.tensor.sizes()),
          dk(DType::kF32, k.tensor.sizes()), dv(DType::kF32, v.tensor.sizes()),
          dpse(DType::kF32, pse.sizes());
      OfScores scaled = of_scores;
      if (type == 0)
        for (double& added : scaled.pse) added /= kScale;
      Expected wanted = expected(layout, q, k, v, dy, [](int64_t, int64_t) { return false; }, scaled);
      if (type == 0)
        for (double& each : wanted.dpse) each /= kScale;
      if (version == 2) {
        succeed(call(ANYNPU_PHASES(aclnnFlashAttentionScoreV2), q.tensor, k.tensor, v.tensor, pse, absent,
                     absent, absent, nullptr, nullptr, nullptr, kScale, 1.0, kAny, kAny, kHeads, name.data(),
                     int64_t{0}, int64_t{0}, type, maximum, total, none, out));
        succeed(call(ANYNPU_PHASES(aclnnFlashAttentionScoreGradV2), q.tensor, k.tensor, v.tensor, dy.tensor,
                     pse, absent, absent, absent, maximum, total, absent, out, nullptr, nullptr, nullptr,
                     kScale, 1.0, kAny, kAny, kHeads, name.data(), int64_t{0}, int64_t{0}, type, dq, dk, dv,
                     dpse));
      } else {
        succeed(call(ANYNPU_PHASES(aclnnFlashAttentionScoreV3), q.tensor, k.tensor, v.tensor, pse, absent,
                     absent, absent, absent, nullptr, nullptr, nullptr, kScale, 1.0, kAny, kAny, kHeads,
                     name.data(), int64_t{0}, int64_t{0}, type, maximum, total, none, out));
        succeed(call(ANYNPU_PHASES(aclnnFlashAttentionScoreGradV3), q.tensor, k.tensor, v.tensor, dy.tensor,
                     pse, absent, absent, absent, maximum, total, absent, out, absent, nullptr, nullptr,
                     nullptr, kScale, 1.0, kAny, kAny, kHeads, name.data(), int64_t{0}, int64_t{0}, type, dq,
                     dk, dv, dpse, none));
      }
      expect_near(out, wanted.out);
      expect_near(dq, wanted.dq);
      expect_near(dk, wanted.dk);
      expect_near(dv, wanted.dv);
      expect_near(dpse, wanted.dpse);
    }
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
  EXPECT_NE(message().find("inputLayout is \"BDNS\"; BNSD, BSND, BSH, SBH and TND are accepted"),
            std::string::npos)
      << message();
  EXPECT_EQ(attend("BNSD", 0.5, 0), ACLNN_ERR_PARAM_INVALID);
  EXPECT_NE(message().find("dropMaskOptional is absent, but keepProb is 0.5"), std::string::npos)
      << message();
  EXPECT_EQ(attend("TND", 1, 0), ACLNN_ERR_PARAM_INVALID);
  EXPECT_NE(message().find("query has shape [2, 2, 3, 2]; 3 dimensions are accepted with layout TND"),
            std::string::npos)
      << message();
  EXPECT_EQ(attend("BNSD", 1, 1), ACLNN_ERR_PARAM_INVALID);
  EXPECT_NE(message().find("attenMaskOptional is absent; with sparseMode 1"), std::string::npos) << message();
  EXPECT_EQ(attend("BSH", 1, 0), ACLNN_ERR_PARAM_INVALID);
  EXPECT_NE(message().find("query has shape [2, 2, 3, 2]; 3 dimensions are accepted"), std::string::npos)
      << message();
}

}  // namespace
}  // namespace anynpu::aclnn
