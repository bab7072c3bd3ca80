#include "ops/cube/attention.h"

#include <chrono>
#include <cmath>
#include <optional>
#include <random>

#include "base/error.h"
#include "elements.h"
#include "tile/philox.h"

namespace anynpu::ops {
namespace {

using Random = std::mt19937_64;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

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

  bool sees(int64_t h, int64_t i, int64_t j) const {
    const Attention& of = call.of;
    if (j - i < of.band.least || j - i > of.band.most) return false;
    return !mask || (mask->elements.get<int64_t>(mask->at(0, h, i, j)) != 0) != of.mask_hides;
  }
  double factor(int64_t b, int64_t h, int64_t i, int64_t j) const {
    const Dropout& dropout = call.of.dropout;
    if (dropout.keep == 1) return 1;
    const bool is_double = sums() == DType::kF64;
    const int64_t each = is_double ? 2 : 4, count = sizes.batch * sizes.heads * sizes.queries * sizes.keys,
                  counters = count / each,
                  element = ((b * sizes.heads + h) * sizes.queries + i) * sizes.keys + j;
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

double unit_of(DType sums) { return std::ldexp(1.0, sums == DType::kF64 ? -53 : -24); }

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
      EXPECT_EQ(launch.blocks(), launch.code().blocks(launch.arguments()));
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

std::string text(const Sizes& s) {
  return concat(s.batch, " x ", s.heads, " (", s.key_heads, ") x ", s.queries, " (", s.keys, ") x ", s.width,
                " (", s.value_width, ")");
}

/// What may hide keys, or change scores or weights, each now and then.
void add_options(Case& c, Random& random) {
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
  if (random() % 4 == 0) c.call.of.dropout = {0.7, random(), random() % 1000};
}

TEST_F(AttentionTest, IsTheWeightedMeanOfTheValues) {
  SCOPED_TRACE("seed " + std::to_string(seed_));
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16})
    for (int turn = 0; turn < 5; ++turn) {
      const Sizes sizes = some_sizes();
      Case c(dtype, sizes, random_);
      add_options(c, random_);
      const Band band = c.call.of.band;
      SCOPED_TRACE(concat(tile::name_of(dtype), " ", text(sizes), ", band ", band.least, " to ", band.most,
                          ", keep ", c.call.of.dropout.keep, ", bias ", c.bias.has_value(), ", mask ",
                          c.mask.has_value()));
      run(c.call);
      expect_forward(c);
      if (HasFatalFailure()) return;
    }
}

/// The gradients of a case, computed with doubles, and how far from them those of its type may be.
struct Gradients {
  std::vector<double> query, key, value, query_error, key_error, value_error;

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

void expect_near(const Tensor& got, const std::vector<double>& wanted, const std::vector<double>& error) {
  const auto& sizes = got.view.sizes;
  size_t n = 0;
  for (int64_t b = 0; b < sizes[0]; ++b)
    for (int64_t h = 0; h < sizes[1]; ++h)
      for (int64_t i = 0; i < sizes[2]; ++i)
        for (int64_t d = 0; d < sizes[3]; ++d, ++n)
          ASSERT_NEAR(got.get(b, h, i, d), wanted[n], error[n] + ulp(got.view.dtype, wanted[n]))
              << b << ", " << h << ", " << i << ", " << d;
}

TEST_F(AttentionTest, GradientsAreThoseOfTheWeightedMean) {
  SCOPED_TRACE("seed " + std::to_string(seed_));
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16})
    for (int turn = 0; turn < 4; ++turn) {
      const Sizes sizes = some_sizes();
      Case c(dtype, sizes, random_);
      add_options(c, random_);
      const Band band = c.call.of.band;
      SCOPED_TRACE(concat(tile::name_of(dtype), " ", text(sizes), ", band ", band.least, " to ", band.most,
                          ", keep ", c.call.of.dropout.keep, ", bias ", c.bias.has_value(), ", mask ",
                          c.mask.has_value()));
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
      Tensor* const results[] = {&backward.grad_query, &backward.grad_key, &backward.grad_value};
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
  const auto error_of = [&](const AttentionForward& call) -> std::string {
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
}

}  // namespace
}  // namespace anynpu::ops
