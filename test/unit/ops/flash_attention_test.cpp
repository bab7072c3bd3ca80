#include "ops/cube/flash_attention.h"

#include <deque>
#include <functional>
#include <span>
#include <string>

#include "attention_case.h"
#include "base/error.h"

namespace anynpu::ops {
namespace {

constexpr int64_t kAny = FlashAttention::kAnyDistance, kRepeats = FlashAttention::kRepeats;

/// A contiguous tensor in a layout, and its view as batch x heads x tokens x width.
struct Laid {
  Elements elements;
  View view, plain;

  Laid(DType dtype, const std::string& layout, std::array<int64_t, 4> sizes, Random& random)
      : elements(dtype,
                 static_cast<size_t>(std::max<int64_t>(sizes[0] * sizes[1] * sizes[2] * sizes[3], 1))) {
    const auto [batch, heads, tokens, width] = sizes;
    for (size_t i = 0; i < elements.count(); ++i)
      elements.set<double>(i, std::normal_distribution<double>()(random));
    const auto of = [&](std::vector<int64_t> shape) {
      view = contiguous(dtype, elements.data(), std::move(shape));
    };
    plain = {dtype, elements.data(), {sizes.begin(), sizes.end()}, {}};
    const int64_t row = heads * width;
    if (layout == "BNSD") {
      of({batch, heads, tokens, width});
      plain.strides = {row * tokens, tokens * width, width, 1};
    } else if (layout == "SBH") {
      of({tokens, batch, row});
      plain.strides = {row, width, batch * row, 1};
    } else {
      if (layout == "TND") {
        of({tokens, heads, width});
      } else if (layout == "BSH") {
        of({batch, tokens, row});
      } else {
        of({batch, tokens, heads, width});
      }
      plain.strides = {row * tokens, width, row, 1};
    }
  }
  double at(std::array<int64_t, 4> place) const {
    int64_t element = 0;
    for (size_t d = 0; d < 4; ++d) element += place[d] * plain.strides[d];
    return elements.get<double>(static_cast<size_t>(element));
  }
};

/// So many tokens of a tensor from one on.
View tokens_of(View plain, int64_t first, int64_t count) {
  plain.data = static_cast<char*>(plain.data) +
               first * plain.strides[2] * static_cast<int64_t>(tile::size_of(plain.dtype));
  plain.sizes[2] = count;
  return plain;
}

/// A call with tensors of a layout.
struct Call {
  Laid query, key, value, out, grad_out, grad_query, grad_key, grad_value;
  Elements maximum, total;
  FlashAttentionForward forward;
  FlashAttentionBackward backward;

  Call(DType dtype, const std::string& layout, const Sizes& s, Random& random)
      : query(dtype, layout, {s.batch, s.heads, s.queries, s.width}, random),
        key(dtype, layout, {s.batch, s.key_heads, s.keys, s.width}, random),
        value(dtype, layout, {s.batch, s.key_heads, s.keys, s.value_width}, random),
        out(dtype, layout, {s.batch, s.heads, s.queries, s.value_width}, random),
        grad_out(dtype, layout, {s.batch, s.heads, s.queries, s.value_width}, random),
        grad_query(dtype, layout, {s.batch, s.heads, s.queries, s.width}, random),
        grad_key(dtype, layout, {s.batch, s.key_heads, s.keys, s.width}, random),
        grad_value(dtype, layout, {s.batch, s.key_heads, s.keys, s.value_width}, random),
        maximum(DType::kF32, static_cast<size_t>(s.batch * s.heads * s.queries * kRepeats)),
        total(DType::kF32, maximum.count()) {
    const std::vector<int64_t> rows = layout == "TND" ? std::vector{s.queries, s.heads, kRepeats}
                                                      : std::vector{s.batch, s.heads, s.queries, kRepeats};
    const View of_maximum = contiguous(DType::kF32, maximum.data(), rows),
               of_total = contiguous(DType::kF32, total.data(), rows);
    FlashAttention of;
    of.query = query.view;
    of.key = key.view;
    of.value = value.view;
    of.layout = layout;
    of.heads = s.heads;
    of.scale = 0.3;
    forward = {of, out.view, of_maximum, of_total};
    backward = {.of = of,
                .out = out.view,
                .grad_out = grad_out.view,
                .maximum = of_maximum,
                .total = of_total,
                .grad_query = grad_query.view,
                .grad_key = grad_key.view,
                .grad_value = grad_value.view};
  }
  void set(const std::function<void(FlashAttention&)>& change) {
    change(forward.of);
    change(backward.of);
  }
};

/// The same call of the operator that it is made of, with results of its own.
struct Plain {
  Laid out, maximum, total, grad_query, grad_key, grad_value;
  AttentionForward forward;
  AttentionBackward backward;

  Plain(const Call& call, const View& query, const View& key, const View& value, const View& grad_out,
        Random& random)
      : out(query.dtype, "BNSD", sizes(query, value.sizes[3]), random),
        maximum(DType::kF32, "BNSD", sizes(query, 1), random),
        total(DType::kF32, "BNSD", sizes(query, 1), random),
        grad_query(query.dtype, "BNSD", sizes(query, query.sizes[3]), random),
        grad_key(query.dtype, "BNSD", sizes(key, key.sizes[3]), random),
        grad_value(query.dtype, "BNSD", sizes(value, value.sizes[3]), random) {
    Attention of = {query, key, value};
    of.scale = call.forward.of.scale;
    of.dropout = call.forward.of.dropout;
    forward = {.of = of, .out = out.view, .maximum = maximum.view, .total = total.view};
    backward = {.of = of,
                .out = out.view,
                .grad_out = grad_out,
                .maximum = maximum.view,
                .total = total.view,
                .grad_query = grad_query.view,
                .grad_key = grad_key.view,
                .grad_value = grad_value.view};
  }
  static std::array<int64_t, 4> sizes(const View& view, int64_t width) {
    return {view.sizes[0], view.sizes[1], view.sizes[2], width};
  }
  void set(const std::function<void(Attention&)>& change) {
    change(forward.of);
    change(backward.of);
  }
};

class FlashAttentionTest : public AttentionTest {
 protected:
  /// Part of a tensor of a call against the whole one of another: to the bit, or as near as that.
  static void expect_tokens(const Laid& got, int64_t first, const Laid& wanted, double error,
                            const std::string& what) {
    const auto& sizes = wanted.plain.sizes;
    for (int64_t b = 0; b < sizes[0]; ++b)
      for (int64_t h = 0; h < sizes[1]; ++h)
        for (int64_t i = 0; i < sizes[2]; ++i)
          for (int64_t d = 0; d < sizes[3]; ++d)
            ASSERT_NEAR(got.at({b, h, first + i, d}), wanted.at({b, h, i, d}), error)
                << what << ": " << b << ", " << h << ", " << i << ", " << d;
  }
  void run_both(Call& call) {
    run(call.forward);
    run(call.backward);
  }
  void run_both(Plain& plain) {
    run(plain.forward);
    run(plain.backward);
  }
  static void expect_results(const Call& call, const Plain& plain, double error, const std::string& what) {
    expect_tokens(call.out, 0, plain.out, error, what + ", out");
    expect_tokens(call.grad_query, 0, plain.grad_query, error, what + ", gradient of queries");
    expect_tokens(call.grad_key, 0, plain.grad_key, error, what + ", gradient of keys");
    expect_tokens(call.grad_value, 0, plain.grad_value, error, what + ", gradient of values");
  }

  template <class T>
  std::string error_of(const T& call) {
    try {
      run(call);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
};

TEST_F(FlashAttentionTest, LayoutsSayWhereDimensionsLie) {
  SCOPED_TRACE("seed " + std::to_string(seed_));
  for (const char* layout : {"BNSD", "BSND", "BSH", "SBH"})
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      const Sizes s = {2, 6, 3, 50, 70, 24, 17};
      Call call(dtype, layout, s, random_);
      Plain plain(call, call.query.plain, call.key.plain, call.value.plain, call.grad_out.plain, random_);
      run_both(call);
      run_both(plain);
      expect_results(call, plain, 0, layout);
      for (int64_t row = 0; row < s.batch * s.heads * s.queries; ++row)
        for (int64_t repeat = 0; repeat < kRepeats; ++repeat) {
          const auto at = static_cast<size_t>(row * kRepeats + repeat);
          ASSERT_EQ(call.maximum.get<double>(at),
                    plain.maximum.elements.get<double>(static_cast<size_t>(row)));
          ASSERT_EQ(call.total.get<double>(at), plain.total.elements.get<double>(static_cast<size_t>(row)));
        }
    }
}

/// A mode, with how far keys may be before and after a query.
struct Mode {
  int64_t mode, before = kAny, after = kAny;
};

/// Written from the definition of the modes: of query i and key j of so many.
bool hides(const Mode& mode, int64_t i, int64_t j, int64_t queries, int64_t keys, int64_t prefix) {
  const int64_t from_first = j - i, from_last = (j - keys) - (i - queries);
  switch (mode.mode) {
    case 0:
      return from_first > mode.after || -from_first > mode.before;
    case 2:
      return from_first > 0;
    case 3:
      return from_last > 0;
    case 4:
      return from_last > mode.after || -from_last > mode.before;
    case 6:
      return from_last > 0 && j >= prefix;
    default:
      return false;
  }
}

TEST_F(FlashAttentionTest, ModesHideByPosition) {
  SCOPED_TRACE("seed " + std::to_string(seed_));
  const View triangle = contiguous(DType::kBool, nullptr, {2048, 2048}),
             with_prefix = contiguous(DType::kU8, nullptr, {1, 1, 3072, 2048});
  for (const auto& [queries, keys] : {std::pair{130, 300}, {300, 130}, {5, 9}, {200, 200}})
    for (const Mode mode : {Mode{0, 20, 3}, Mode{0, -4, 30}, Mode{0, kAny, 0}, Mode{1}, Mode{2}, Mode{3},
                            Mode{4, 10, 7}, Mode{4, 40, -3}, Mode{4, kAny, kAny}, Mode{5}, Mode{6}}) {
      const Sizes s = {2, 2, 1, queries, keys, 16, 16};
      Call call(DType::kF32, "BNSD", s, random_);
      Elements given(DType::kBool, static_cast<size_t>(2 * queries * keys)),
          all(DType::kBool, static_cast<size_t>(2 * queries * keys));
      const std::vector<int64_t> prefix = {keys / 3, keys / 2};
      const bool reads = mode.mode < 2 || mode.mode == 5;
      for (size_t n = 0; n < given.count(); ++n) {
        const auto at = static_cast<int64_t>(n);
        given.set<int64_t>(n, static_cast<int64_t>(random_() % 3 == 0));
        const bool hidden = hides(mode, at / keys % queries, at % keys, queries, keys,
                                  prefix[static_cast<size_t>(at / keys / queries)]);
        all.set<int64_t>(n, static_cast<int64_t>(hidden || (reads && given.get<int64_t>(n) != 0)));
      }
      call.set([&](FlashAttention& of) {
        of.mode = mode.mode;
        of.before = mode.before;
        of.after = mode.after;
        of.mask = reads            ? contiguous(DType::kBool, given.data(), {2, 1, queries, keys})
                  : mode.mode == 6 ? with_prefix
                                   : triangle;
        if (mode.mode >= 5) of.prefix = prefix;
      });
      Plain plain(call, call.query.plain, call.key.plain, call.value.plain, call.grad_out.plain, random_);
      plain.set([&](Attention& of) {
        of.mask = contiguous(DType::kBool, all.data(), {2, 1, queries, keys})
                      .expanded(std::vector<int64_t>{2, 2, queries, keys});
        of.mask_hides = true;
      });
      run_both(call);
      run_both(plain);
      expect_results(call, plain, 2e-4,
                     concat("mode ", mode.mode, ", ", mode.before, " before, ", mode.after, " after, ",
                            queries, " queries, ", keys, " keys"));
      if (HasFatalFailure()) return;
    }
}

TEST_F(FlashAttentionTest, DistancesCountWithAMaskOnly) {
  Call call(DType::kF32, "BNSD", {1, 1, 1, 40, 50, 8, 8}, random_);
  Plain plain(call, call.query.plain, call.key.plain, call.value.plain, call.grad_out.plain, random_);
  call.set([](FlashAttention& of) { of.before = of.after = 1; });
  run_both(call);
  run_both(plain);
  expect_results(call, plain, 0, "");
}

/// Lengths of sequences, and tokens after them.
struct Lengths {
  std::vector<int64_t> queries, keys;
  int64_t more_queries = 0, more_keys = 0;

  static std::vector<int64_t> ends(const std::vector<int64_t>& lengths) {
    std::vector<int64_t> ends;
    for (const int64_t length : lengths) ends.push_back(length + (ends.empty() ? 0 : ends.back()));
    return ends;
  }
};

TEST_F(FlashAttentionTest, APackedSequenceHasTheBitsOfItAlone) {
  SCOPED_TRACE("seed " + std::to_string(seed_));
  const Lengths some[] = {{{3, 130, 1, 0, 97}, {40, 300, 1, 0, 97}},
                          {{0, 7, 0, 200}, {0, 7, 30, 210}, 5, 9},
                          {{5}, {9}},
                          {{50, 4}, {0, 4}, 0, 3}};
  for (const Lengths& lengths : some)
    for (const int64_t mode : {0, 3, 6, 7, 8})
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        if (dtype != DType::kF32 && mode != 3) continue;
        const auto query_ends = Lengths::ends(lengths.queries), key_ends = Lengths::ends(lengths.keys);
        const int64_t heads = 4, longest = std::ranges::max(lengths.queries),
                      longest_keys = std::ranges::max(lengths.keys);
        const Sizes s = {
            1,  heads, 2, query_ends.back() + lengths.more_queries, key_ends.back() + lengths.more_keys,
            24, 17};
        Call call(dtype, "TND", s, random_);
        Elements mask(DType::kBool, static_cast<size_t>(longest * longest_keys));
        for (size_t i = 0; i < mask.count(); ++i)
          mask.set<int64_t>(i, static_cast<int64_t>(random_() % 3 == 0));
        int64_t weights = 0;
        for (size_t i = 0; i < query_ends.size(); ++i)
          weights += heads * lengths.queries[i] * lengths.keys[i];
        Laid bias(dtype, "BNSD", {1, 1, 1, weights}, random_),
            grad_bias(dtype, "BNSD", {1, 1, 1, weights}, random_);
        const auto line = [&](Laid& laid) { return contiguous(dtype, laid.elements.data(), {weights}); };
        Elements bits(DType::kU8, static_cast<size_t>(weights + 7) / 8);
        for (size_t i = 0; i < bits.count(); ++i) bits.set<int64_t>(i, static_cast<int64_t>(random_() % 256));
        // By the mode, so that one set of kernels serves all lengths.
        const bool has_bias = mode % 4 == 0 && mode != 8, by_bits = mode % 3 == 0,
                   drops = mode != 2 && mode != 8, by_token = random_() % 2 == 0,
                   left_out = random_() % 2 == 0;
        std::vector<int64_t> prefix;
        for (const int64_t keys : lengths.keys) prefix.push_back(keys / 2);
        call.set([&](FlashAttention& of) {
          of.mode = mode;
          of.before = 12;
          of.after = 5;
          of.query_ends = query_ends;
          of.key_ends = key_ends;
          of.mask = mode < 2    ? contiguous(DType::kBool, mask.data(), {longest, longest_keys})
                    : mode == 6 ? contiguous(DType::kBool, nullptr, {3072, 2048})
                                : contiguous(DType::kBool, nullptr, {2048, 2048});
          if (mode == 6) of.prefix = prefix;
          if (left_out) {  // a sequence at the end
            of.query_ends.push_back(0);
            of.key_ends.push_back(0);
            if (mode == 6) of.prefix.push_back(0);
          }
          if (has_bias) of.bias = line(bias);
          if (drops) of.dropout = {.keep = 0.7, .seed = 5, .offset = 8};
          if (by_bits)
            of.dropout.bits = contiguous(DType::kU8, bits.data(), {static_cast<int64_t>(bits.count())});
          of.statistics_by_token = by_token;
        });
        EXPECT_EQ(call.forward.of.weights(), weights);
        if (has_bias) call.backward.grad_bias = line(grad_bias);
        run_both(call);

        int64_t weight = 0;
        for (size_t i = 0; i < query_ends.size(); ++i) {
          const int64_t queries = lengths.queries[i], keys = lengths.keys[i],
                        first_query = query_ends[i] - queries, first_key = key_ends[i] - keys;
          const std::string what =
              concat("mode ", mode, ", sequence ", i, ": ", queries, " queries, ", keys, " keys");
          Plain plain(call, tokens_of(call.query.plain, first_query, queries),
                      tokens_of(call.key.plain, first_key, keys),
                      tokens_of(call.value.plain, first_key, keys),
                      tokens_of(call.grad_out.plain, first_query, queries), random_);
          Elements of_bias(dtype, static_cast<size_t>(std::max<int64_t>(heads * queries * keys, 1)));
          const View scores = contiguous(dtype, nullptr, {1, heads, queries, keys});
          plain.set([&](Attention& of) {
            const int64_t shift = keys - queries;
            const Band distances = {-12, 5}, shifted = {-12 + shift, 5 + shift};
            const bool first = i == 0 || (query_ends[i - 1] == 0 && key_ends[i - 1] == 0);
            const bool last = query_ends[i] == query_ends.back() && key_ends[i] == key_ends.back() &&
                              (queries != 0 || keys != 0);
            const Band from_last = {.most = shift}, from_first = {.most = 0};
            of.band = mode == 0   ? distances
                      : mode == 1 ? Band()
                      : mode == 2 ? from_first
                      : mode == 4 ? shifted
                      : mode == 7 ? (last ? shifted : from_last)
                      : mode == 8 ? (first ? shifted : from_first)
                                  : from_last;
            if (mode == 6) of.prefix = prefix[i];
            if (mode < 2) {
              of.mask = View{DType::kBool, mask.data(), scores.sizes, {0, 0, longest_keys, 1}};
              of.mask_hides = true;
            }
            if (has_bias) {
              of.bias = scores;
              of.bias->data =
                  static_cast<char*>(bias.view.data) + weight * static_cast<int64_t>(tile::size_of(dtype));
              of.bias_is_scaled = true;
            }
            of.dropout.first = weight;
            of.dropout.count = weights;
          });
          if (has_bias) {
            plain.backward.grad_bias = scores;
            plain.backward.grad_bias->data = of_bias.data();
          }
          run_both(plain);
          expect_tokens(call.out, first_query, plain.out, 0, what + ", out");
          expect_tokens(call.grad_query, first_query, plain.grad_query, 0, what + ", gradient of queries");
          expect_tokens(call.grad_key, first_key, plain.grad_key, 0, what + ", gradient of keys");
          expect_tokens(call.grad_value, first_key, plain.grad_value, 0, what + ", gradient of values");
          for (int64_t h = 0; h < heads; ++h)
            for (int64_t t = 0; t < queries; ++t)
              for (int64_t repeat = 0; repeat < kRepeats; ++repeat) {
                const int64_t row =
                    by_token ? (first_query + t) * heads + h : first_query * heads + h * queries + t;
                const auto at = static_cast<size_t>(row * kRepeats + repeat);
                ASSERT_EQ(call.maximum.get<double>(at), plain.maximum.at({0, h, t, 0})) << what;
                ASSERT_EQ(call.total.get<double>(at), plain.total.at({0, h, t, 0})) << what;
              }
          if (has_bias) {
            for (int64_t n = 0; n < heads * queries * keys; ++n)
              ASSERT_EQ(grad_bias.elements.get<double>(static_cast<size_t>(weight + n)),
                        of_bias.get<double>(static_cast<size_t>(n)))
                  << what << ", gradient of the bias, " << n;
          }
          weight += heads * queries * keys;
          if (HasFatalFailure()) return;
        }
        for (int64_t t = 0; t < lengths.more_queries; ++t) {
          ASSERT_EQ(call.out.at({0, 3, query_ends.back() + t, 16}), 0);
          ASSERT_EQ(call.grad_query.at({0, 3, query_ends.back() + t, 23}), 0);
        }
        for (int64_t t = 0; t < lengths.more_keys; ++t) {
          ASSERT_EQ(call.grad_key.at({0, 1, key_ends.back() + t, 23}), 0);
          ASSERT_EQ(call.grad_value.at({0, 1, key_ends.back() + t, 16}), 0);
        }
      }
}

TEST_F(FlashAttentionTest, ABiasIsBroadcastAndHasAGradientOfItsSizes) {
  SCOPED_TRACE("seed " + std::to_string(seed_));
  const Sizes s = {2, 4, 2, 30, 140, 16, 16};
  for (const std::vector<int64_t>& sizes :
       {std::vector<int64_t>{2, 4, 30, 140}, {1, 4, 30, 140}, {2, 4, 1, 140}, {30, 140}})
    for (const bool is_scaled : {true, false}) {
      Call call(DType::kF32, "BSH", s, random_);
      std::array<int64_t, 4> four = {1, 1, 1, 1};
      std::copy(sizes.begin(), sizes.end(), four.end() - static_cast<std::ptrdiff_t>(sizes.size()));
      Laid bias(DType::kF32, "BNSD", four, random_), got(DType::kF32, "BNSD", four, random_),
          wanted(DType::kF32, "BNSD", four, random_);
      call.set([&](FlashAttention& of) {
        of.bias = contiguous(DType::kF32, bias.elements.data(), sizes);
        of.bias_is_scaled = is_scaled;
      });
      call.backward.grad_bias = contiguous(DType::kF32, got.elements.data(), sizes);
      Plain plain(call, call.query.plain, call.key.plain, call.value.plain, call.grad_out.plain, random_);
      plain.set([&](Attention& of) {
        of.bias = bias.view.expanded(std::vector<int64_t>{2, 4, 30, 140});
        of.bias_is_scaled = is_scaled;
      });
      plain.backward.grad_bias = wanted.view;
      run_both(call);
      run_both(plain);
      expect_results(call, plain, 0, concat(sizes.size(), " dimensions"));
      expect_tokens(got, 0, wanted, 0, "gradient of the bias");
    }
}

TEST_F(FlashAttentionTest, SaysWhichArgumentIsWrong) {
  const auto expect = [&](const std::string& layout, const std::function<void(FlashAttention&)>& change,
                          const std::string& message) {
    Call call(DType::kF32, layout, {layout == "TND" ? 1 : 2, 2, 1, 3, 4, 8, 8}, random_);
    if (layout == "TND")
      call.set([](FlashAttention& of) {
        of.query_ends = {3};
        of.key_ends = {4};
      });
    call.set(change);
    EXPECT_NE(error_of(call.forward).find(message), std::string::npos) << error_of(call.forward);
    EXPECT_NE(error_of(call.backward).find(message), std::string::npos) << error_of(call.backward);
  };
  const auto view = [](DType dtype, std::vector<int64_t> sizes) {
    return contiguous(dtype, nullptr, std::move(sizes));
  };
  expect(
      "BNSD", [](FlashAttention& of) { of.layout = "BDNS"; },
      "input_layout is \"BDNS\"; BNSD, BSND, BSH, SBH and TND are accepted");
  expect(
      "BNSD", [](FlashAttention& of) { of.layout = "BSH"; },
      "query has shape [2, 2, 3, 8]; 3 dimensions are accepted with layout BSH");
  expect(
      "BSH", [](FlashAttention& of) { of.heads = 3; },
      "query has shape [2, 3, 16]; a last size that 3 heads divide is accepted");
  expect("BNSD", [](FlashAttention& of) { of.heads = 3; }, "head_num is 3, but query has shape [2, 2, 3, 8]");
  expect(
      "BNSD", [](FlashAttention& of) { of.mode = 7; },
      "sparse_mode is 7; 0 to 6 are accepted with layout BNSD");
  expect(
      "TND", [](FlashAttention& of) { of.mode = 5; },
      "sparse_mode is 5; 0 to 4 and 6 to 8 are accepted with layout TND");
  expect(
      "BNSD", [](FlashAttention& of) { of.mode = 2; },
      "atten_mask is absent; with sparse_mode 2 it has shape [2048, 2048]");
  expect(
      "BNSD", [](FlashAttention& of) { of.mode = 1; },
      "atten_mask is absent; with sparse_mode 1 it covers all scores");
  expect(
      "BNSD",
      [&](FlashAttention& of) {
        of.mode = 3;
        of.mask = view(DType::kBool, {3, 4});
      },
      "atten_mask has shape [3, 4]; with sparse_mode 3 it has shape [2048, 2048]");
  expect(
      "BNSD", [&](FlashAttention& of) { of.mask = view(DType::kBool, {4, 4}); },
      "atten_mask has shape [4, 4]; what is broadcast to the scores' [2, 2, 3, 4] is accepted");
  expect(
      "BNSD", [&](FlashAttention& of) { of.mask = view(DType::kF32, {3, 4}); },
      "atten_mask is f32[3, 4]; bool and u8 are accepted");
  expect(
      "TND", [&](FlashAttention& of) { of.mask = view(DType::kBool, {3, 3}); },
      "atten_mask has shape [3, 3]; two sizes, of the longest sequence, at least [3, 4]");
  expect("BNSD", [&](FlashAttention& of) { of.bias = view(DType::kF32, {3, 3}); }, "pse has shape [3, 3]");
  expect(
      "TND", [&](FlashAttention& of) { of.bias = view(DType::kF32, {3, 4}); },
      "pse has shape [3, 4]; [24], the scores of all sequences, is accepted with layout TND");
  expect(
      "BNSD", [&](FlashAttention& of) { of.bias = view(DType::kI32, {3, 4}); }, "pse is i32[3, 4]; floats");
  expect(
      "BNSD", [](FlashAttention& of) { of.prefix = {1, 1}; },
      "prefix is [1, 1], but sparse_mode is 0; with 5 and 6 it is accepted");
  expect(
      "BNSD",
      [&](FlashAttention& of) {
        of.mode = 6;
        of.mask = view(DType::kBool, {3072, 2048});
        of.prefix = {1};
      },
      "prefix is [1]; with sparse_mode 6 a number for each of 2 batches is accepted");
  expect(
      "BNSD",
      [&](FlashAttention& of) {
        of.mode = 6;
        of.mask = view(DType::kBool, {3072, 2048});
        of.prefix = {1, 5};
      },
      "prefix is [1, 5]; numbers from 0 to those of keys, 4, are accepted");
  expect("BNSD", [](FlashAttention& of) { of.dropout.keep = 0; }, "keep_prob is 0; more than 0");
  expect(
      "BNSD", [](FlashAttention& of) { of.key_ends = {1}; },
      "actual_seq_kvlen is [1], but input_layout is BNSD; with TND it is accepted");
  expect(
      "TND", [](FlashAttention& of) { of.key_ends = {}; },
      "actual_seq_qlen is [3] and actual_seq_kvlen []; layout TND needs both");
  expect(
      "TND",
      [](FlashAttention& of) {
        of.query_ends = {2, 1};
        of.key_ends = {2, 3};
      },
      "actual_seq_qlen is [2, 1]; sums that do not fall, to 3 tokens at most, are accepted");
  expect(
      "TND", [](FlashAttention& of) { of.key_ends = {5}; }, "actual_seq_kvlen is [5]; sums that do not fall");

  Call call(DType::kF32, "TND", {1, 2, 1, 3, 4, 8, 8}, random_);
  call.set([](FlashAttention& of) {
    of.query_ends = {3};
    of.key_ends = {4};
  });
  call.forward.maximum.sizes = {1, 2, 3, 8};
  EXPECT_NE(error_of(call.forward).find("softmax_max is f32[1, 2, 3, 8]; f32[3, 2, 8] is accepted"),
            std::string::npos)
      << error_of(call.forward);
  call.backward.grad_bias = view(DType::kF32, {24});
  EXPECT_NE(error_of(call.backward).find("dpse is wanted, but pse is absent"), std::string::npos)
      << error_of(call.backward);
}

}  // namespace
}  // namespace anynpu::ops
