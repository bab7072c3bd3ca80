#pragma once

#include <array>
#include <chrono>
#include <cmath>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "elements.h"
#include "ops/cube/attention.h"
#include "tile/philox.h"

namespace anynpu::ops {

using Random = std::mt19937_64;
inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// batch x heads x tokens x width, tokens before heads or after them in memory, with gaps; or columns apart.
struct Tensor {
  Elements elements;
  View view;

  Tensor(DType dtype, std::array<int64_t, 4> sizes, uint64_t order)
      : elements(dtype, static_cast<size_t>(
                            std::max<int64_t>(sizes[0] * sizes[1] * sizes[2] * (2 * sizes[3] + 3), 1))) {
    view = {dtype, elements.data(), {sizes.begin(), sizes.end()}, {0, 0, 0, 1}};
    auto& strides = view.strides;
    strides[3] = order % 3 == 2 ? 2 : 1;
    const int64_t row = strides[3] * sizes[3] + 3;
    const bool tokens_first = order % 3 == 1;
    strides[2] = tokens_first ? row * sizes[1] : row;
    strides[1] = tokens_first ? row : row * sizes[2];
    strides[0] = row * sizes[1] * sizes[2];
  }
  size_t at(int64_t b, int64_t h, int64_t i, int64_t d) const {
    const auto& s = view.strides;
    return static_cast<size_t>(b * s[0] + h * s[1] + i * s[2] + d * s[3]);
  }
  double get(int64_t b, int64_t h, int64_t i, int64_t d) const {
    return elements.get<double>(at(b, h, i, d));
  }
  void fill(Random& random) {
    for (size_t i = 0; i < elements.count(); ++i)
      elements.set<double>(i, std::normal_distribution<double>()(random));
  }
  void fill(double value) {
    for (size_t i = 0; i < elements.count(); ++i) elements.set<double>(i, value);
  }
};

struct Sizes {
  int64_t batch = 1, heads = 1, key_heads = 1, queries = 1, keys = 1, width = 1, value_width = 1;
};

/// A call with its tensors.
struct Case {
  Sizes sizes;
  Tensor query, key, value, out, log_sum_exp, maximum, total;
  std::optional<Tensor> bias, mask;
  std::optional<Elements> bits;
  AttentionForward call;

  Case(DType dtype, const Sizes& s, Random& random)
      : sizes(s),
        query(dtype, {s.batch, s.heads, s.queries, s.width}, random()),
        key(dtype, {s.batch, s.key_heads, s.keys, s.width}, random()),
        value(dtype, {s.batch, s.key_heads, s.keys, s.value_width}, random()),
        out(dtype, {s.batch, s.heads, s.queries, s.value_width}, random()),
        log_sum_exp(sums(), {s.batch, s.heads, s.queries, 2}, 0),
        maximum(sums(), {s.batch, s.heads, s.queries, 2}, 1),
        total(sums(), {s.batch, s.heads, s.queries, 2}, 2) {
    for (Tensor* tensor : {&query, &key, &value, &out, &log_sum_exp, &maximum, &total}) tensor->fill(random);
    call.of = {query.view, key.view, value.view};
    call.of.scale = 1 / std::sqrt(static_cast<double>(s.width));
    call.out = out.view;
    call.log_sum_exp = log_sum_exp.view;
    call.maximum = maximum.view;
    call.total = total.view;
  }
  DType sums() const { return query.view.dtype == DType::kF64 ? DType::kF64 : DType::kF32; }

  void add_bias(DType dtype, Random& random) {
    bias.emplace(dtype, std::array{sizes.batch, sizes.heads, sizes.queries, sizes.keys}, random());
    bias->fill(random);
    call.of.bias = bias->view;
  }
  void add_mask(Random& random) {
    mask.emplace(DType::kBool, std::array{int64_t{1}, sizes.heads, sizes.queries, sizes.keys}, random());
    for (size_t i = 0; i < mask->elements.count(); ++i)
      mask->elements.set<int64_t>(i, static_cast<int64_t>(random() % 2));
    call.of.mask = mask->view;
    call.of.mask->sizes[0] = sizes.batch;
    call.of.mask->strides[0] = 0;
  }

  /// A mask of dropout, with bits before the first one that counts.
  void add_bits(double keep, Random& random) {
    const auto first = static_cast<int64_t>(random() % 30);
    bits.emplace(DType::kU8, static_cast<size_t>(first + weights() + 7) / 8);
    for (size_t i = 0; i < bits->count(); ++i) bits->set<int64_t>(i, static_cast<int64_t>(random() % 256));
    const auto bytes = static_cast<int64_t>(bits->count());
    call.of.dropout = {.keep = keep, .bits = contiguous(DType::kU8, bits->data(), {bytes}), .first = first};
  }
  int64_t weights() const { return sizes.batch * sizes.heads * sizes.queries * sizes.keys; }

  bool sees(int64_t h, int64_t i, int64_t j) const {
    const Attention& of = call.of;
    if (j - i < of.band.least || (j - i > of.band.most && j >= of.prefix)) return false;
    return !mask || (mask->elements.get<int64_t>(mask->at(0, h, i, j)) != 0) != of.mask_hides;
  }
  double factor(int64_t b, int64_t h, int64_t i, int64_t j) const {
    const Dropout& dropout = call.of.dropout;
    if (dropout.keep == 1) return 1;
    const bool is_double = sums() == DType::kF64;
    const int64_t each = is_double ? 2 : 4, counters = dropout.count.value_or(weights()) / each,
                  element = dropout.first + ((b * sizes.heads + h) * sizes.queries + i) * sizes.keys + j;
    if (bits) {
      const auto byte = bits->get<int64_t>(static_cast<size_t>(element / 8));
      return (byte >> (element % 8) & 1) != 0 ? 1 / dropout.keep : 0;
    }
    const bool is_left = element >= counters * each;
    const auto words = tile::philox4x32(dropout.seed, dropout.offset,
                                        static_cast<uint64_t>(is_left ? counters : element % counters));
    const auto word = static_cast<size_t>(is_left ? element - counters * each : element / counters);
    const double u =
        is_double
            ? std::ldexp(static_cast<double>((uint64_t{words[2 * word + 1]} << 32 | words[2 * word]) >> 11),
                         -53)
            : std::ldexp(static_cast<double>(words[word] >> 8), -24);
    const double keep = is_double ? dropout.keep : static_cast<double>(static_cast<float>(dropout.keep));
    return u < keep ? 1 / dropout.keep : 0;
  }

  /// A row's scores, and how far from them those of a type with rounding `unit` may be.
  struct Row {
    std::vector<double> scores;
    double maximum = -kInfinity, total = 0, error = 0;
    double weight(int64_t j) const {
      return total == 0 ? 0 : std::exp(scores[static_cast<size_t>(j)] - maximum) / total;
    }
  };
  Row row(int64_t b, int64_t h, int64_t i, double unit) const {
    Row row;
    const int64_t key_head = h / (sizes.heads / sizes.key_heads);
    for (int64_t j = 0; j < sizes.keys; ++j) {
      double product = 0, size = 0;
      for (int64_t d = 0; d < sizes.width; ++d) {
        const double term = query.get(b, h, i, d) * key.get(b, key_head, j, d);
        product += term;
        size += std::abs(term);
      }
      const double added = bias ? bias->get(b, h, i, j) : 0, scale = call.of.scale;
      const double score = call.of.bias_is_scaled ? (product + added) * scale : product * scale + added;
      const auto steps = static_cast<double>(sizes.width + 4);
      if (sees(h, i, j)) row.error = std::max(row.error, unit * steps * (size * scale + std::abs(added)));
      row.scores.push_back(sees(h, i, j) ? score : -kInfinity);
      row.maximum = std::max(row.maximum, row.scores.back());
    }
    for (const double score : row.scores)
      if (row.maximum != -kInfinity) row.total += std::exp(score - row.maximum);
    return row;
  }
};

inline double unit_of(DType sums) { return std::ldexp(1.0, sums == DType::kF64 ? -53 : -24); }

class AttentionTest : public testing::Test {
 protected:
  AttentionTest() { RecordProperty("seed", std::to_string(seed_)); }

  template <class Call>
  void run(const Call& call, bool by_interpreter = false) {
    memory_.clear();
    const TakeMemory take = [&](int64_t bytes) {
      return memory_.emplace_back(static_cast<size_t>(bytes), std::byte{0xff}).data();
    };
    for (const Launch& launch : prepare(call, take)) {
      if (launch.joined().empty()) {
        EXPECT_EQ(launch.blocks(), launch.code().blocks(launch.arguments()));
      }
      if (by_interpreter) {
        interpret(launch);
      } else {
        for (int64_t block = launch.blocks(); block-- > 0;) launch.run(block, block + 1);
      }
    }
  }

  void expect_forward(const Case& c) {
    const double unit = unit_of(c.sums());
    for (int64_t b = 0; b < c.sizes.batch; ++b)
      for (int64_t h = 0; h < c.sizes.heads; ++h)
        for (int64_t i = 0; i < c.sizes.queries; ++i) expect_row(c, c.row(b, h, i, unit), unit, b, h, i);
  }

  static void expect_row(const Case& c, const Case::Row& row, double unit, int64_t b, int64_t h, int64_t i) {
    // The errors of a weight are those of its score and of the maximum's, of exponentials and of sums.
    const double relative = 2 * row.error + unit * static_cast<double>(c.sizes.keys + 32);
    for (int64_t d = 0; d < c.sizes.value_width; ++d) {
      double wanted = 0, size = 0;
      for (int64_t j = 0; j < c.sizes.keys; ++j) {
        const double term = row.weight(j) * c.factor(b, h, i, j) *
                            c.value.get(b, h / (c.sizes.heads / c.sizes.key_heads), j, d);
        wanted += term;
        size += std::abs(term);
      }
      ASSERT_NEAR(c.out.get(b, h, i, d), wanted, relative * size + ulp(c.out.view.dtype, wanted))
          << "out " << b << ", " << h << ", " << i << ", " << d;
    }
    for (const int64_t repeat : {0, 1}) {
      const bool any = row.total != 0;
      ASSERT_EQ(c.total.get(b, h, i, repeat) == 0, !any);
      const double log_sum_exp = any ? row.maximum + std::log(row.total) : kInfinity;
      const double got = c.log_sum_exp.get(b, h, i, repeat);
      if (!any) {
        ASSERT_EQ(got, kInfinity);
        continue;
      }
      const double allowed = relative + 4 * unit * std::abs(log_sum_exp) + 4 * unit * std::abs(row.maximum);
      ASSERT_NEAR(got, log_sum_exp, allowed);
      ASSERT_NEAR(c.maximum.get(b, h, i, repeat), row.maximum, allowed);
      ASSERT_NEAR(c.total.get(b, h, i, repeat), row.total, 2 * allowed * row.total);
    }
  }

  /// The elements at a tensor's indices.
  static void expect_same(const Tensor& got, const Elements& wanted, const std::string& what) {
    const auto& sizes = got.view.sizes;
    for (int64_t b = 0; b < sizes[0]; ++b)
      for (int64_t h = 0; h < sizes[1]; ++h)
        for (int64_t i = 0; i < sizes[2]; ++i)
          for (int64_t d = 0; d < sizes[3]; ++d)
            ASSERT_EQ(got.get(b, h, i, d), wanted.get<double>(got.at(b, h, i, d)))
                << what << ": " << b << ", " << h << ", " << i << ", " << d;
  }

  Sizes some_sizes() {
    const auto some = [&](std::initializer_list<int64_t> of) { return of.begin()[random_() % of.size()]; };
    Sizes sizes = {some({1, 2}),
                   0,
                   some({1, 2}),
                   some({1, 3, 5, 6, 50, 100, 200}),
                   some({1, 15, 40, 256, 300, 530}),
                   some({1, 8, 17, 64}),
                   some({1, 16, 24, 40})};
    sizes.heads = sizes.key_heads * some({1, 3});
    return sizes;
  }

  const uint64_t seed_ = static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
  Random random_{seed_};
  std::vector<std::vector<std::byte>> memory_;
};

inline std::string text(const Sizes& s) {
  return concat(s.batch, " x ", s.heads, " (", s.key_heads, ") x ", s.queries, " (", s.keys, ") x ", s.width,
                " (", s.value_width, ")");
}

/// What a case is, for failures.
inline std::string text(const Case& c) {
  const Attention& of = c.call.of;
  return concat(tile::name_of(of.query.dtype), " ", text(c.sizes), ", band ", of.band.least, " to ",
                of.band.most, ", prefix ", of.prefix, ", keep ", of.dropout.keep, c.bits ? " by bits" : "",
                ", bias ", c.bias.has_value(), ", mask ", c.mask.has_value());
}

/// What may hide keys, or change scores or weights, each now and then.
inline void add_options(Case& c, Random& random) {
  if (random() % 3 == 0) {
    c.add_bias(random() % 2 == 0 ? DType::kF32 : DType::kBF16, random);
    c.call.of.bias_is_scaled = random() % 2 == 0;
  }
  if (random() % 3 == 0) {
    c.add_mask(random);
    c.call.of.mask_hides = random() % 2 == 0;
  }
  if (random() % 2 == 0) c.call.of.band.most = static_cast<int64_t>(random() % 300) - 100;
  if (random() % 3 == 0) c.call.of.band.least = static_cast<int64_t>(random() % 300) - 200;
  if (random() % 3 == 0) c.call.of.prefix = static_cast<int64_t>(random() % 300) % (c.sizes.keys + 1);
  if (random() % 4 == 0) c.call.of.dropout = {.keep = 0.7, .seed = random(), .offset = random() % 1000};
  if (random() % 4 == 0) c.add_bits(0.6, random);
}

/// The gradients of a case, computed with doubles, and how far from them those of its type may be.
struct Gradients {
  std::vector<double> query, key, value, query_error, key_error, value_error;
  std::vector<double> score, score_error;  ///< to what is added to scores

  Gradients(const Case& c, const Tensor& grad_out) {
    const Sizes& s = c.sizes;
    const auto sized = [&](int64_t heads, int64_t tokens, int64_t width, std::vector<double>& a,
                           std::vector<double>& b) {
      a.resize(static_cast<size_t>(s.batch * heads * tokens * width));
      b.resize(a.size());
    };
    sized(s.heads, s.queries, s.width, query, query_error);
    sized(s.key_heads, s.keys, s.width, key, key_error);
    sized(s.key_heads, s.keys, s.value_width, value, value_error);
    sized(s.heads, s.queries, s.keys, score, score_error);
    for (int64_t b = 0; b < s.batch; ++b)
      for (int64_t h = 0; h < s.heads; ++h)
        for (int64_t i = 0; i < s.queries; ++i) add_row(c, grad_out, b, h, i);
  }

 private:
  void add_row(const Case& c, const Tensor& grad_out, int64_t b, int64_t h, int64_t i) {
    const Sizes& s = c.sizes;
    const double unit = unit_of(c.sums()), scale = c.call.of.scale;
    const Case::Row row = c.row(b, h, i, unit);
    const double relative =
        2 * row.error + unit * static_cast<double>(s.keys + s.queries + s.width + s.value_width + 64);
    const int64_t key_head = h / (s.heads / s.key_heads);
    double mean = 0, mean_size = 0, mean_error = 0;  // of the weights' gradients
    for (int64_t d = 0; d < s.value_width; ++d) {
      double out = 0, size = 0;
      for (int64_t j = 0; j < s.keys; ++j) {
        const double weight = row.weight(j) * c.factor(b, h, i, j), v = c.value.get(b, key_head, j, d);
        out += weight * v;
        size += weight * std::abs(v);
      }
      const double grad = grad_out.get(b, h, i, d);
      mean += grad * out;
      mean_size += std::abs(grad) * size;
      mean_error += std::abs(grad) * ulp(c.out.view.dtype, out);  // out is rounded
    }
    for (int64_t j = 0; j < s.keys; ++j) {
      const double weight = row.weight(j), factor = c.factor(b, h, i, j);
      double product = 0, size = 0;
      for (int64_t d = 0; d < s.value_width; ++d) {
        const double grad = grad_out.get(b, h, i, d), term = grad * c.value.get(b, key_head, j, d);
        product += term;
        size += std::abs(term);
        const size_t at =
            static_cast<size_t>(((b * s.key_heads + key_head) * s.keys + j) * s.value_width + d);
        value[at] += weight * factor * grad;
        value_error[at] += relative * weight * factor * std::abs(grad);
      }
      const double of_score = weight * (factor * product - mean) * scale,
                   error = weight * scale * (relative * (factor * size + mean_size) + mean_error);
      const auto of_bias = static_cast<size_t>(((b * s.heads + h) * s.queries + i) * s.keys + j);
      const double by = c.call.of.bias_is_scaled ? 1 : 1 / scale;
      score[of_bias] = of_score * by;
      score_error[of_bias] = error * by;
      for (int64_t d = 0; d < s.width; ++d) {
        const auto of_query = static_cast<size_t>(((b * s.heads + h) * s.queries + i) * s.width + d),
                   of_key = static_cast<size_t>(((b * s.key_heads + key_head) * s.keys + j) * s.width + d);
        const double q = c.query.get(b, h, i, d), k = c.key.get(b, key_head, j, d);
        query[of_query] += of_score * k;
        query_error[of_query] += error * std::abs(k) + relative * std::abs(of_score * k);
        key[of_key] += of_score * q;
        key_error[of_key] += error * std::abs(q) + relative * std::abs(of_score * q);
      }
    }
  }
};

/// The results of a backward call of a case.
struct Backward {
  Tensor grad_out, grad_query, grad_key, grad_value;
  AttentionBackward call;

  Backward(const Case& c, Random& random)
      : grad_out(c.query.view.dtype, sizes_of(c.out), random()),
        grad_query(c.query.view.dtype, sizes_of(c.query), random()),
        grad_key(c.query.view.dtype, sizes_of(c.key), random()),
        grad_value(c.query.view.dtype, sizes_of(c.value), random()) {
    for (Tensor* tensor : {&grad_out, &grad_query, &grad_key, &grad_value}) tensor->fill(random);
    call.of = c.call.of;
    call.out = c.out.view;
    call.grad_out = grad_out.view;
    if (random() % 2 == 0) {
      call.log_sum_exp = c.log_sum_exp.view;
    } else {
      call.maximum = c.maximum.view;
      call.total = c.total.view;
    }
    call.grad_query = grad_query.view;
    call.grad_key = grad_key.view;
    call.grad_value = grad_value.view;
  }
  static std::array<int64_t, 4> sizes_of(const Tensor& tensor) {
    const auto& sizes = tensor.view.sizes;
    return {sizes[0], sizes[1], sizes[2], sizes[3]};
  }
};

inline void expect_near(const Tensor& got, const std::vector<double>& wanted,
                        const std::vector<double>& error) {
  const auto& sizes = got.view.sizes;
  size_t n = 0;
  for (int64_t b = 0; b < sizes[0]; ++b)
    for (int64_t h = 0; h < sizes[1]; ++h)
      for (int64_t i = 0; i < sizes[2]; ++i)
        for (int64_t d = 0; d < sizes[3]; ++d, ++n)
          ASSERT_NEAR(got.get(b, h, i, d), wanted[n], error[n] + ulp(got.view.dtype, wanted[n]))
              << b << ", " << h << ", " << i << ", " << d;
}

}  // namespace anynpu::ops
