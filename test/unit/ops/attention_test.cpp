#include <deque>
#include <span>
#include <tuple>

#include "attention_case.h"
#include "base/error.h"

namespace anynpu::ops {
namespace {

TEST_F(AttentionTest, IsTheWeightedMeanOfTheValues) {
  SCOPED_TRACE("seed " + std::to_string(seed_));
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16})
    for (int turn = 0; turn < 5; ++turn) {
      const Sizes sizes = some_sizes();
      Case c(dtype, sizes, random_);
      add_options(c, random_);
      SCOPED_TRACE(text(c));
      run(c.call);
      expect_forward(c);
      if (HasFatalFailure()) return;
    }
}

TEST_F(AttentionTest, GradientsAreThoseOfTheWeightedMean) {
  SCOPED_TRACE("seed " + std::to_string(seed_));
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16})
    for (int turn = 0; turn < 4; ++turn) {
      const Sizes sizes = some_sizes();
      Case c(dtype, sizes, random_);
      add_options(c, random_);
      SCOPED_TRACE(text(c));
      run(c.call);
      Backward backward(c, random_);
      run(backward.call);
      const Gradients wanted(c, backward.grad_out);
      expect_near(backward.grad_query, wanted.query, wanted.query_error);
      expect_near(backward.grad_key, wanted.key, wanted.key_error);
      expect_near(backward.grad_value, wanted.value, wanted.value_error);
      if (HasFatalFailure()) return;
    }
}

TEST_F(AttentionTest, GradientsOfManyKeysAreSumsOfGroups) {
  SCOPED_TRACE("seed " + std::to_string(seed_));
  for (const auto& [keys, count, of_group] : {std::tuple{0, 1, 0},
                                              {1023, 1, 1024},
                                              {1024, 2, 512},
                                              {2047, 3, 768},
                                              {2048, 4, 512},
                                              {70000, 4, 17536}}) {
    EXPECT_EQ(gradient_groups(keys).count, count) << keys;
    EXPECT_EQ(gradient_groups(keys).keys, of_group) << keys;
  }
  for (const DType dtype : {DType::kF32}) {
    Case c(dtype, {1, 2, 1, 40, 2100, 8, 9}, random_);
    add_options(c, random_);
    SCOPED_TRACE(text(c));
    run(c.call);
    Backward backward(c, random_);
    run(backward.call);
    const Gradients wanted(c, backward.grad_out);
    expect_near(backward.grad_query, wanted.query, wanted.query_error);
    expect_near(backward.grad_key, wanted.key, wanted.key_error);
    expect_near(backward.grad_value, wanted.value, wanted.value_error);
  }
}

TEST_F(AttentionTest, ABiasHasTheGradientOfTheScoresThatItIsAddedTo) {
  SCOPED_TRACE("seed " + std::to_string(seed_));
  constexpr Sizes kSizes = {2, 4, 2, 110, 150, 9, 8};
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Case c(dtype, kSizes, random_);
    add_options(c, random_);
    const DType of_bias = random_() % 2 == 0 ? DType::kF32 : dtype;
    c.add_bias(of_bias, random_);
    run(c.call);
    Backward backward(c, random_);
    const Gradients each(c, backward.grad_out);
    for (const auto& [batches, heads, rows] :
         {std::array<int64_t, 3>{2, 4, 110}, {1, 4, 110}, {2, 4, 1}, {1, 1, 1}, {2, 1, 110}}) {
      SCOPED_TRACE(concat(text(c), ", gradient of ", batches, " x ", heads, " x ", rows));
      Tensor grad_bias(of_bias, {batches, heads, rows, kSizes.keys}, 0);
      backward.call.grad_bias = grad_bias.view;
      run(backward.call);
      std::vector<double> wanted(static_cast<size_t>(batches * heads * rows * kSizes.keys)),
          error(wanted.size());
      size_t from = 0;
      for (int64_t b = 0; b < kSizes.batch; ++b)
        for (int64_t h = 0; h < kSizes.heads; ++h)
          for (int64_t i = 0; i < kSizes.queries; ++i)
            for (int64_t j = 0; j < kSizes.keys; ++j, ++from) {
              const auto to = static_cast<size_t>(
                  ((b % batches * heads + h % heads) * rows + i % rows) * kSizes.keys + j);
              wanted[to] += each.score[from];
              error[to] += each.score_error[from] + std::abs(each.score[from]) * 400 * unit_of(c.sums());
            }
      expect_near(grad_bias, wanted, error);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(AttentionTest, CallsTogetherHaveTheBitsOfEachAlone) {
  SCOPED_TRACE("seed " + std::to_string(seed_));
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const bool has_band : {false, true}) {
      std::deque<Case> cases;
      std::deque<Backward> backwards;
      std::vector<AttentionForward> calls;
      std::vector<AttentionBackward> backward_calls;
      const Random alike(1);  // by which all tensors lie alike, and few kernels serve them
      for (const auto& [queries, keys] :
           {std::pair{3, 40}, {200, 1300}, {1, 1}, {0, 5}, {97, 97}, {5, 0}, {6, 600}}) {
        Random random = alike;
        Case& c = cases.emplace_back(dtype, Sizes{1, 4, 2, queries, keys, 24, 17}, random);
        if (has_band) c.call.of.band.most = keys - queries;
        calls.push_back(c.call);
      }
      const auto results_of = [](Case& c) {
        return std::vector{&c.out, &c.maximum, &c.total, &c.log_sum_exp};
      };
      std::vector<std::vector<Elements>> alone;
      for (Case& c : cases) {
        run(c.call);
        alone.emplace_back();
        for (Tensor* tensor : results_of(c)) alone.back().push_back(tensor->elements), tensor->fill(7);
      }
      run(std::span<const AttentionForward>(calls));
      for (size_t i = 0; i < cases.size(); ++i)
        for (size_t k = 0; k < 4; ++k)
          expect_same(*results_of(cases[i])[k], alone[i][k], concat(text(cases[i]), ", result ", k));

      for (Case& c : cases) {
        Random random = alike;
        backward_calls.push_back(backwards.emplace_back(c, random).call);
      }
      const auto gradients_of = [](Backward& b) {
        return std::vector{&b.grad_query, &b.grad_key, &b.grad_value};
      };
      alone.clear();
      for (Backward& backward : backwards) {
        run(backward.call);
        alone.emplace_back();
        for (Tensor* tensor : gradients_of(backward))
          alone.back().push_back(tensor->elements), tensor->fill(7);
      }
      run(std::span<const AttentionBackward>(backward_calls));
      for (size_t i = 0; i < cases.size(); ++i)
        for (size_t k = 0; k < 3; ++k)
          expect_same(*gradients_of(backwards[i])[k], alone[i][k], concat(text(cases[i]), ", gradient ", k));
    }
}

TEST_F(AttentionTest, GradientsDoNotDependOnTheBatch) {
  SCOPED_TRACE("seed " + std::to_string(seed_));
  Case all(DType::kF32, {2, 4, 2, 130, 1100, 24, 17}, random_);
  run(all.call);
  Backward backward(all, random_);
  run(backward.call);
  const int64_t batch = 1, key_head = 1;
  const auto part_of = [&](const Tensor& tensor, int64_t first, int64_t heads) {
    View view = tensor.view;
    view.data = static_cast<char*>(view.data) + tensor.at(batch, first, 0, 0) * tile::size_of(view.dtype);
    view.sizes[0] = 1;
    view.sizes[1] = heads;
    return view;
  };
  AttentionBackward part = backward.call;
  for (const auto& [view, tensor] :
       {std::pair{&part.of.query, &all.query}, {&part.out, &all.out}, {&part.grad_out, &backward.grad_out}})
    *view = part_of(*tensor, 2 * key_head, 2);
  for (const auto& [view, tensor] : {std::pair{&part.log_sum_exp, &all.log_sum_exp},
                                     {&part.maximum, &all.maximum},
                                     {&part.total, &all.total}})
    if (*view) *view = part_of(*tensor, 2 * key_head, 2);
  part.of.key = part_of(all.key, key_head, 1);
  part.of.value = part_of(all.value, key_head, 1);
  Tensor of_query(DType::kF32, {1, 2, 130, 24}, 0), of_key(DType::kF32, {1, 1, 1100, 24}, 0),
      of_value(DType::kF32, {1, 1, 1100, 17}, 0);
  part.grad_query = of_query.view;
  part.grad_key = of_key.view;
  part.grad_value = of_value.view;
  run(part);
  for (int64_t i = 0; i < 130; ++i)
    for (int64_t h = 0; h < 2; ++h)
      for (int64_t d = 0; d < 24; ++d)
        ASSERT_EQ(of_query.get(0, h, i, d), backward.grad_query.get(batch, 2 * key_head + h, i, d));
  for (int64_t j = 0; j < 1100; ++j)
    for (int64_t d = 0; d < 17; ++d) {
      ASSERT_EQ(of_key.get(0, 0, j, d), backward.grad_key.get(batch, key_head, j, d));
      ASSERT_EQ(of_value.get(0, 0, j, d), backward.grad_value.get(batch, key_head, j, d));
    }
}

TEST_F(AttentionTest, WhatIsNoNumberStaysInItsRow) {
  SCOPED_TRACE("seed " + std::to_string(seed_));
  for (const double odd : {std::nan(""), kInfinity}) {
    Case c(DType::kF32, {1, 1, 1, 40, 300, 16, 8}, random_);
    c.call.of.band.most = 260;
    run(c.call);
    const Elements before = c.out.elements;
    c.query.elements.set<double>(c.query.at(0, 0, 7, 3), odd);
    run(c.call);
    for (int64_t i = 0; i < 40; ++i)
      for (int64_t d = 0; d < 8; ++d) {
        const double got = c.out.get(0, 0, i, d);
        if (i == 7) {
          ASSERT_TRUE(std::isnan(got)) << odd;
        } else {
          ASSERT_EQ(got, before.get<double>(c.out.at(0, 0, i, d))) << i;
        }
      }
    c.key.fill(odd);  // of hidden keys too, which stay hidden
    c.query.elements.set<double>(c.query.at(0, 0, 7, 3), 1);
    c.call.of.band.most = -20;
    run(c.call);
    for (int64_t i = 0; i < 40; ++i) ASSERT_EQ(std::isnan(c.out.get(0, 0, i, 0)), i >= 20) << i;
  }
}

TEST_F(AttentionTest, MachineCodeDoesWhatTheInterpreterDoes) {
  SCOPED_TRACE("seed " + std::to_string(seed_));
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kF64})
    for (const auto& sizes :
         {Sizes{1, 2, 1, 7, 20, 5, 3}, Sizes{1, 1, 1, 3, 260, 4, 2}, Sizes{1, 1, 1, 110, 5, 2, 3}}) {
      Case c(dtype, sizes, random_);
      add_options(c, random_);
      run(c.call);
      const Elements code = c.out.elements, log_sum_exp = c.log_sum_exp.elements;
      c.out.fill(0.0);
      run(c.call, true);
      for (int64_t h = 0; h < sizes.heads; ++h)
        for (int64_t i = 0; i < sizes.queries; ++i) {
          for (int64_t d = 0; d < sizes.value_width; ++d)
            ASSERT_EQ(code.get<double>(c.out.at(0, h, i, d)), c.out.get(0, h, i, d)) << text(sizes);
          ASSERT_EQ(log_sum_exp.get<double>(c.log_sum_exp.at(0, h, i, 0)), c.log_sum_exp.get(0, h, i, 0));
        }
      Backward backward(c, random_);
      Tensor grad_bias(c.bias ? c.bias->view.dtype : dtype, {1, sizes.heads, 1, sizes.keys}, 0);
      if (c.bias) backward.call.grad_bias = grad_bias.view;
      Tensor* const results[] = {&backward.grad_query, &backward.grad_key, &backward.grad_value, &grad_bias};
      run(backward.call);
      std::vector<Elements> of_code;
      for (Tensor* tensor : results) of_code.push_back(tensor->elements);
      run(backward.call, true);
      for (size_t i = 0; i < of_code.size(); ++i)
        ASSERT_TRUE(results[i]->elements == of_code[i]) << i << ", " << text(sizes);
    }
}

TEST_F(AttentionTest, ARowDoesNotDependOnTheOthers) {
  SCOPED_TRACE("seed " + std::to_string(seed_));
  const Sizes all = {2, 4, 2, 230, 300, 40, 24};
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const int64_t most : {Band::kNoLimit, int64_t{20}}) {
      Case whole(dtype, all, random_);
      whole.call.of.band.most = most;
      run(whole.call);
      for (const int64_t queries : {1, 2, 5, 6, 7, 97, 193}) {
        const auto first = static_cast<int64_t>(random_() % static_cast<uint64_t>(all.queries - queries));
        const int64_t batch = 1, head = 3;
        Tensor out(dtype, {1, 1, queries, all.value_width}, 0);
        AttentionForward part = {whole.call.of, out.view};
        const auto from = [&](View& view, const Tensor& tensor, int64_t h, int64_t i) {
          view.data = static_cast<char*>(view.data) + tensor.at(batch, h, i, 0) * tile::size_of(dtype);
          view.sizes[0] = view.sizes[1] = 1;
        };
        from(part.of.query, whole.query, head, first);
        part.of.query.sizes[2] = queries;
        from(part.of.key, whole.key, head / 2, 0);
        from(part.of.value, whole.value, head / 2, 0);
        if (most != Band::kNoLimit) part.of.band.most = most + first;
        run(part);
        for (int64_t i = 0; i < queries; ++i)
          for (int64_t d = 0; d < all.value_width; ++d)
            ASSERT_EQ(out.get(0, 0, i, d), whole.out.get(batch, head, first + i, d))
                << queries << " rows from " << first << ": " << i << ", " << d;
      }
    }
}

TEST_F(AttentionTest, HeadsThatShareKeysHaveTheBitsOfHeadsApart) {
  SCOPED_TRACE("seed " + std::to_string(seed_));
  for (const int64_t most : {Band::kNoLimit, int64_t{270}, int64_t{-1}}) {
    Case shared(DType::kF32, {2, 6, 2, 1, 300, 24, 40}, random_);
    shared.add_bias(DType::kF32, random_);
    shared.add_mask(random_);
    shared.call.of.band.most = most;
    run(shared.call);
    expect_forward(shared);
    for (int64_t h = 0; h < 6; ++h) {
      Tensor out(DType::kF32, {2, 1, 1, 40}, 0);
      AttentionForward apart = {shared.call.of, out.view};
      const auto take_head = [](View& view, int64_t head) {
        view.data = static_cast<char*>(view.data) +
                    head * view.strides[1] * static_cast<int64_t>(tile::size_of(view.dtype));
        view.sizes[1] = 1;
      };
      take_head(apart.of.query, h);
      take_head(apart.of.key, h / 3);
      take_head(apart.of.value, h / 3);
      take_head(*apart.of.bias, h);
      take_head(*apart.of.mask, h);
      run(apart);
      for (int64_t b = 0; b < 2; ++b)
        for (int64_t d = 0; d < 40; ++d) ASSERT_EQ(out.get(b, 0, 0, d), shared.out.get(b, h, 0, d)) << h;
    }
  }
}

TEST_F(AttentionTest, OfNoKeysIsZero) {
  Case c(DType::kF32, {1, 2, 1, 8, 0, 4, 4}, random_);
  run(c.call);
  expect_forward(c);
  Case none(DType::kF32, {1, 2, 1, 0, 5, 4, 4}, random_);
  EXPECT_TRUE(prepare(none.call, {}).empty());
}

TEST_F(AttentionTest, SaysWhatDoesNotFit) {
  Case c(DType::kF32, {1, 3, 1, 2, 5, 4, 4}, random_);
  const auto error_of = [&](const auto& call) -> std::string {
    try {
      run(call);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  AttentionForward call = c.call;
  call.of.key.sizes[3] = 3;
  EXPECT_NE(error_of(call).find("queries f32[1, 3, 2, 4], keys f32[1, 1, 5, 3]"), std::string::npos)
      << error_of(call);
  call = c.call;
  call.of.mask = View{DType::kBool, nullptr, {1, 3, 2, 4}, {0, 0, 0, 0}};
  EXPECT_NE(error_of(call).find("mask is bool[1, 3, 2, 4]; scores are [1, 3, 2, 5]"), std::string::npos)
      << error_of(call);
  call = c.call;
  call.out.sizes[2] = 3;
  EXPECT_NE(error_of(call).find("out is f32[1, 3, 3, 4]"), std::string::npos) << error_of(call);
  call = c.call;
  call.of.dropout = {.keep = 0.5, .bits = View{DType::kU8, nullptr, {3}, {1}}};
  EXPECT_NE(
      error_of(call).find("the mask of dropout is u8[3]; adjacent u8 with a bit for each weight, and so 4"),
      std::string::npos)
      << error_of(call);
  Backward backward(c, random_);
  backward.call.grad_bias = View{DType::kF32, nullptr, {1, 3, 2, 5}, {0, 0, 0, 0}};
  EXPECT_NE(error_of(backward.call).find("no bias is given"), std::string::npos);
  c.add_bias(DType::kF32, random_);
  backward.call.of.bias = c.call.of.bias;
  backward.call.grad_bias->sizes[2] = 3;
  EXPECT_NE(error_of(backward.call).find("that of the bias is f32[1, 3, 3, 5] for f32[1, 3, 2, 5]"),
            std::string::npos)
      << error_of(backward.call);
}

}  // namespace
}  // namespace anynpu::ops
