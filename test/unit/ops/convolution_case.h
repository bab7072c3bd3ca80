#pragma once

#include <chrono>
#include <cmath>
#include <functional>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "elements.h"
#include "ops/cube/convolution.h"
#include "ops/cube/gemm.h"

namespace anynpu::ops::convolutions {

using Random = std::mt19937_64;
using Sizes = std::vector<int64_t>;
inline constexpr DType kF32 = DType::kF32;

/// A tensor whose dimensions lie in some order, perhaps with gaps.
struct Tensor {
  Elements elements;
  View view;

  Tensor(DType dtype, const Sizes& sizes, const std::vector<size_t>& order, int64_t gap = 0)
      : elements(dtype, count_of(sizes, order, gap)) {
    view = {dtype, elements.data(), sizes, Sizes(sizes.size())};
    int64_t stride = 1 + gap;
    for (size_t i = order.size(); i-- > 0;) {
      view.strides[order[i]] = stride;
      stride = stride * std::max<int64_t>(sizes[order[i]], 1) + gap;
    }
  }
  static size_t count_of(const Sizes& sizes, const std::vector<size_t>& order, int64_t gap) {
    int64_t stride = 1 + gap, last = 0;
    for (size_t i = order.size(); i-- > 0;) {
      last += std::max<int64_t>(sizes[order[i]] - 1, 0) * stride;
      stride = stride * std::max<int64_t>(sizes[order[i]], 1) + gap;
    }
    return static_cast<size_t>(last + 1);
  }

  size_t at(const Sizes& index) const {
    return static_cast<size_t>(
        std::inner_product(index.begin(), index.end(), view.strides.begin(), int64_t{0}));
  }
  double get(const Sizes& index) const { return elements.get<double>(at(index)); }
  void fill(Random& random) {
    for (size_t i = 0; i < elements.count(); ++i)
      elements.set<double>(i, std::normal_distribution<double>()(random));
  }
};

/// Calls `function` with all indices, the last one first.
inline void for_each(const Sizes& sizes, const std::function<void(const Sizes&)>& function) {
  Sizes index(sizes.size(), 0);
  const int64_t count = std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
  for (int64_t i = 0; i < count; ++i) {
    function(index);
    for (size_t d = sizes.size(); d-- > 0 && ++index[d] == sizes[d];) index[d] = 0;
  }
}

/// A sum in the order of the contract.
template <class T>
class Sum {
 public:
  void add(double x, double y) {
    if (count_ == kDepth) {
      sum_ += block_;
      block_ = 0;
      count_ = 0;
      several_ = true;
    }
    block_ = std::fma(static_cast<T>(x), static_cast<T>(y), block_);
    ++count_;
  }
  T value() const { return several_ ? sum_ + block_ : block_; }

 private:
  T sum_ = 0, block_ = 0;
  int64_t count_ = 0;
  bool several_ = false;
};

struct Case {
  DType dtype;
  int64_t batch, groups, channels, outputs;  // channels and outputs of a group
  Sizes sizes, taps;
  Convolution convolution;

  size_t rank() const { return sizes.size(); }
  Sizes positions() const {
    Sizes positions;
    for (size_t d = 0; d < rank(); ++d)
      positions.push_back(
          (sizes[d] + 2 * convolution.padding[d] - (taps[d] - 1) * convolution.dilation[d] - 1) /
              convolution.stride[d] +
          1);
    return positions;
  }
  Sizes image() const { return with({batch, groups * channels}, sizes); }
  Sizes weight() const { return with({groups * outputs, channels}, taps); }
  Sizes out() const { return with({batch, groups * outputs}, positions()); }
  static Sizes with(Sizes first, const Sizes& last) {
    first.insert(first.end(), last.begin(), last.end());
    return first;
  }

  /// The element of the image under a tap at a position; nothing where it is outside.
  std::optional<Sizes> under(const Sizes& tap, const Sizes& position) const {
    Sizes at(rank());
    for (size_t d = 0; d < rank(); ++d) {
      at[d] = position[d] * convolution.stride[d] + tap[d] * convolution.dilation[d] - convolution.padding[d];
      if (at[d] < 0 || at[d] >= sizes[d]) return std::nullopt;
    }
    return at;
  }
  /// The position whose tap is over an element of the image; nothing where there is none.
  std::optional<Sizes> position_of(const Sizes& tap, const Sizes& at) const {
    Sizes position(rank());
    const Sizes there = positions();
    for (size_t d = 0; d < rank(); ++d) {
      const int64_t distance = at[d] + convolution.padding[d] - tap[d] * convolution.dilation[d];
      if (distance % convolution.stride[d] != 0) return std::nullopt;
      position[d] = distance / convolution.stride[d];
      if (position[d] < 0 || position[d] >= there[d]) return std::nullopt;
    }
    return position;
  }
  /// Whether some position has that tap over an element so far from the first one, in an image without end.
  bool meets(const Sizes& tap, const Sizes& at) const {
    for (size_t d = 0; d < rank(); ++d)
      if ((at[d] + convolution.padding[d] - tap[d] * convolution.dilation[d]) % convolution.stride[d] != 0)
        return false;
    return true;
  }
};

template <class T>
void forward(const Case& c, const Tensor& image, const Tensor& weight, const Tensor* bias, Tensor& out) {
  for_each(c.out(), [&](const Sizes& index) {
    const Sizes position(index.begin() + 2, index.end());
    const int64_t group = index[1] / c.outputs;
    Sum<T> sum;
    for_each(c.taps, [&](const Sizes& tap) {
      const auto at = c.under(tap, position);
      for (int64_t channel = 0; channel < c.channels; ++channel)
        sum.add(weight.get(Case::with({index[1], channel}, tap)),
                at ? image.get(Case::with({index[0], group * c.channels + channel}, *at)) : 0);
    });
    const T biased = bias == nullptr ? sum.value() : sum.value() + static_cast<T>(bias->get({index[1]}));
    out.elements.set<double>(out.at(index), static_cast<double>(biased));
  });
}

template <class T>
void image_gradient(const Case& c, const Tensor& gradient, const Tensor& weight, const Tensor* bias,
                    Tensor& out) {
  for_each(c.image(), [&](const Sizes& index) {
    const Sizes at(index.begin() + 2, index.end());
    const int64_t group = index[1] / c.channels;
    Sum<T> sum;
    for_each(c.taps, [&](const Sizes& tap) {
      if (!c.meets(tap, at)) return;
      const auto position = c.position_of(tap, at);
      for (int64_t output = group * c.outputs; output < (group + 1) * c.outputs; ++output)
        sum.add(weight.get(Case::with({output, index[1] % c.channels}, tap)),
                position ? gradient.get(Case::with({index[0], output}, *position)) : 0);
    });
    const T biased = bias == nullptr ? sum.value() : sum.value() + static_cast<T>(bias->get({index[1]}));
    out.elements.set<double>(out.at(index), static_cast<double>(biased));
  });
}

template <class T>
void weight_gradient(const Case& c, const Tensor& gradient, const Tensor& image, Tensor& out) {
  for_each(c.weight(), [&](const Sizes& index) {
    const Sizes tap(index.begin() + 2, index.end());
    const int64_t group = index[0] / c.outputs;
    Sum<T> sum;
    for (int64_t n = 0; n < c.batch; ++n)
      for_each(c.positions(), [&](const Sizes& position) {
        const auto at = c.under(tap, position);
        sum.add(gradient.get(Case::with({n, index[0]}, position)),
                at ? image.get(Case::with({n, group * c.channels + index[1]}, *at)) : 0);
      });
    out.elements.set<double>(out.at(index), static_cast<double>(sum.value()));
  });
}

class ConvolutionTest : public testing::Test {
 protected:
  ConvolutionTest() { RecordProperty("seed", std::to_string(seed_)); }

  using Plan = std::function<std::vector<Launch>(const TakeMemory&)>;
  /// Runs a call's launches, each in blocks of their own, so that their order does not matter.
  void run(const Plan& plan, bool by_interpreter = false) {
    memory_.clear();
    const TakeMemory take = [&](int64_t bytes) {
      return memory_.emplace_back(DType::kI8, static_cast<size_t>(bytes)).data();
    };
    for (const Launch& launch : plan(take)) {
      EXPECT_EQ(launch.blocks(), grid_of(launch));
      if (by_interpreter) {
        interpret(launch);
      } else {
        for (int64_t block = launch.blocks(); block-- > 0;) launch.run(block, block + 1);
      }
    }
  }

  /// Some order of a tensor's dimensions: the usual one, with the channels last, or any.
  std::vector<size_t> order(size_t rank) {
    std::vector<size_t> order(rank);
    std::iota(order.begin(), order.end(), size_t{0});
    const auto turn = random_() % 3;
    if (turn == 1) std::rotate(order.begin() + 1, order.begin() + 2, order.end());
    if (turn == 2) std::shuffle(order.begin(), order.end(), random_);
    return order;
  }
  Tensor tensor(const Case& c, const Sizes& sizes) {
    Tensor made(c.dtype, sizes, order(sizes.size()), random_() % 4 == 0 ? 1 : 0);
    made.fill(random_);
    return made;
  }

  void compare(const Case& c, bool by_interpreter = false) {
    if (sum_type(c.dtype) == DType::kF64)
      compare_as<double>(c, by_interpreter);
    else
      compare_as<float>(c, by_interpreter);
  }
  template <class T>
  void compare_as(const Case& c, bool by_interpreter) {
    const Tensor image = tensor(c, c.image()), weight = tensor(c, c.weight()), gradient = tensor(c, c.out());
    const Tensor image_given = as_given(image), gradient_given = as_given(gradient);
    const auto check = [&](const char* what, const Sizes& sizes, const auto& plan, const auto& reference) {
      Tensor out = tensor(c, sizes), wanted = out;
      wanted.view.data = wanted.elements.data();
      reference(wanted);
      const bool of_weight = std::string(what).ends_with("weight gradient");
      const auto run_to = [&](const View& view) {
        run([&](const TakeMemory& take) { return plan(view, take); }, by_interpreter);
      };
      if (of_weight || block_ == 0) {
        run_to(out.view);
      } else {
        Tensor blocks = as_given(out), padding = blocks;
        run_to(blocks.view);
        padding.view.data = padding.elements.data();
        for_each(sizes, [&](const Sizes& index) {
          const Sizes there = in_block(index);
          padding.elements.set<double>(padding.at(there), blocks.get(there));
          out.elements.set<double>(out.at(index), blocks.get(there));
        });
        ASSERT_TRUE(blocks.elements == padding.elements) << what << ": padding was written";
      }
      const bool sums_columns = of_weight && c.channels == 1;
      if (!sums_columns) {
        ASSERT_TRUE(out.elements == wanted.elements) << what;
        return;
      }
      for_each(sizes, [&](const Sizes& index) {  // each sum is of some hundred products of numbers about 1
        ASSERT_NEAR(out.get(index), wanted.get(index),
                    1e3 * ulp(sum_type(c.dtype), 1) + ulp(c.dtype, wanted.get(index)))
            << what;
      });
    };
    Tensor bias(c.dtype, {c.groups * c.outputs}, {0}), other(c.dtype, {c.groups * c.channels}, {0});
    bias.fill(random_);
    other.fill(random_);
    Convolution convolution = c.convolution;
    convolution.groups = c.groups;
    Convolution transposed = convolution;
    transposed.transposed = true;
    const auto given = [&](const Tensor& tensor) {
      View view = tensor.view;
      view.data = const_cast<Elements&>(tensor.elements).data();
      return view;
    };
    const bool biased = random_() % 2 == 0;
    const auto bias_of = [&](const Tensor& bias) {
      return biased ? std::optional(given(bias)) : std::nullopt;
    };
    check(
        "forward", c.out(),
        [&](const View& out, const TakeMemory& take) {
          return convolution.forward(given(image_given), given(weight), bias_of(bias), out, take);
        },
        [&](Tensor& out) { forward<T>(c, image, weight, biased ? &bias : nullptr, out); });
    check(
        "image gradient", c.image(),
        [&](const View& out, const TakeMemory& take) {
          return convolution.image_gradient(given(gradient_given), given(weight), out, take);
        },
        [&](Tensor& out) { image_gradient<T>(c, gradient, weight, nullptr, out); });
    check(
        "weight gradient", c.weight(),
        [&](const View& out, const TakeMemory& take) {
          return convolution.weight_gradient(given(gradient_given), given(image_given), out, take);
        },
        [&](Tensor& out) { weight_gradient<T>(c, gradient, image, out); });
    check(
        "transposed forward", c.image(),
        [&](const View& out, const TakeMemory& take) {
          return transposed.forward(given(gradient_given), given(weight), bias_of(other), out, take);
        },
        [&](Tensor& out) { image_gradient<T>(c, gradient, weight, biased ? &other : nullptr, out); });
    check(
        "transposed image gradient", c.out(),
        [&](const View& out, const TakeMemory& take) {
          return transposed.image_gradient(given(image_given), given(weight), out, take);
        },
        [&](Tensor& out) { forward<T>(c, image, weight, nullptr, out); });
    check(
        "transposed weight gradient", c.weight(),
        [&](const View& out, const TakeMemory& take) {
          return transposed.weight_gradient(given(image_given), given(gradient_given), out, take);
        },
        [&](Tensor& out) { weight_gradient<T>(c, gradient, image, out); });
  }

  /// Where the element of an image is in blocks.
  Sizes in_block(Sizes index) const {
    index.push_back(index[1] % block_);
    index[1] /= block_;
    return index;
  }
  /// An image as calls have it: itself, or in blocks whose padding is NaN.
  Tensor as_given(const Tensor& image) {
    if (block_ == 0) return image;
    Sizes sizes = image.view.sizes;
    sizes[1] = (sizes[1] + block_ - 1) / block_;
    std::vector<size_t> of_blocks = order(sizes.size());
    of_blocks.push_back(sizes.size());
    sizes.push_back(block_);
    Tensor made(image.view.dtype, sizes, of_blocks);
    for (size_t i = 0; i < made.elements.count(); ++i) made.elements.set<double>(i, NAN);
    for_each(image.view.sizes, [&](const Sizes& index) {
      made.elements.set<double>(made.at(in_block(index)), image.get(index));
    });
    return made;
  }

  int64_t block_ = 0;  ///< channels of a block; 0: images are plain
  const uint64_t seed_ = static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
  Random random_{seed_};
  std::vector<Elements> memory_;
};

}  // namespace anynpu::ops::convolutions
