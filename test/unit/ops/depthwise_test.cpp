#include "ops/cube/depthwise.h"

#include <array>
#include <bit>

#include "convolution_case.h"

namespace anynpu::ops::convolutions {
namespace {

using DepthwiseTest = ConvolutionTest;

/// Groups of one channel, in windows of any kind that kernels are made for.
Case depthwise_case(Random& random) {
  const auto below = [&](int64_t most) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(most));
  };
  Case c = {
      std::array{kF32, DType::kF16, DType::kBF16, DType::kF64}[random() % 4],
      1 + below(3),
      std::array<int64_t, 4>{2 + below(6), 8 * (1 + below(5)), 33 + below(40), 260 + below(20)}[random() % 4],
      1,
      random() % 3 == 0 ? 2 + below(2) : 1,
      {},
      {},
      {}};
  for (int64_t d = 1 + below(3); d-- > 0;) {
    c.taps.push_back(1 + below(3));
    c.convolution.stride.push_back(1 + below(3));
    c.convolution.padding.push_back(below(3));
    c.convolution.dilation.push_back(1 + below(3));
    const int64_t reach = (c.taps.back() - 1) * c.convolution.dilation.back() + 1;
    c.sizes.push_back(std::max<int64_t>(1, reach - 2 * c.convolution.padding.back()) + below(8));
  }
  return c;
}
std::string text_of(const Case& c) {
  std::string text = concat(name_of(c.dtype), " ", c.batch, " ", c.groups, " ", c.outputs, ":");
  for (size_t d = 0; d < c.rank(); ++d)
    text += concat(" ", c.sizes[d], " ", c.taps[d], " ", c.convolution.stride[d], " ",
                   c.convolution.padding[d], " ", c.convolution.dilation[d], ";");
  return text;
}

TEST_F(DepthwiseTest, IsRightOfAnySizes) {
  SCOPED_TRACE("seed " + std::to_string(seed_));
  for (int turn = 0; turn < 12; ++turn) {
    const Case c = depthwise_case(random_);
    block_ = c.outputs == 1 && random_() % 2 == 0 ? 16 : 0;
    SCOPED_TRACE(concat(text_of(c), " blocks of ", block_));
    compare(c);
    if (HasFatalFailure()) return;
  }
}

TEST_F(DepthwiseTest, BitsDoNotDependOnTheLayout) {
  SCOPED_TRACE("seed " + std::to_string(seed_));
  for (int turn = 0; turn < 16; ++turn) {
    Case c = depthwise_case(random_);
    const bool by_interpreter = turn < 4;
    if (by_interpreter) c.groups = 17;
    SCOPED_TRACE(text_of(c));
    c.convolution.groups = c.groups;
    std::vector<size_t> usual(c.rank() + 2);
    std::iota(usual.begin(), usual.end(), size_t{0});
    std::vector<size_t> last = usual;
    std::rotate(last.begin() + 1, last.begin() + 2, last.end());
    const auto both = [&](const Sizes& sizes) {
      return std::array{Tensor(c.dtype, sizes, usual), Tensor(c.dtype, sizes, last)};
    };
    const auto random = [&](const Sizes& sizes) {
      auto tensors = both(sizes);
      const double special[] = {INFINITY, -INFINITY, NAN, -0.0, 0.0};
      for_each(sizes, [&](const Sizes& index) {
        const double value = turn % 2 == 1 && random_() % 50 == 0
                                 ? special[random_() % 5]
                                 : std::normal_distribution<double>()(random_);
        for (Tensor& tensor : tensors) tensor.elements.set<double>(tensor.at(index), value);
      });
      return tensors;
    };
    auto image = random(c.image()), weight = random(c.weight()), gradient = random(c.out());
    auto out = both(c.out()), of_image = both(c.image()), of_weight = both(c.weight());
    const auto view = [](Tensor& tensor) {
      View view = tensor.view;
      view.data = tensor.elements.data();
      return view;
    };
    for (const size_t i : {0, 1}) {
      const auto run_one = [&](const auto& plan) { run(plan, by_interpreter && i == 1); };
      run_one([&](const TakeMemory& take) {
        return c.convolution.forward(view(image[i]), view(weight[i]), {}, view(out[i]), take);
      });
      run_one([&](const TakeMemory& take) {
        return c.convolution.image_gradient(view(gradient[i]), view(weight[i]), view(of_image[i]), take);
      });
      run_one([&](const TakeMemory& take) {
        return c.convolution.weight_gradient(view(gradient[i]), view(image[i]), view(of_weight[i]), take);
      });
    }
    const auto equal = [&](const char* what, const std::array<Tensor, 2>& tensors) {
      for_each(tensors[0].view.sizes, [&](const Sizes& index) {
        const double plain = tensors[0].get(index), other = tensors[1].get(index);
        if (std::isnan(plain) && std::isnan(other)) return;
        ASSERT_EQ(std::bit_cast<uint64_t>(plain), std::bit_cast<uint64_t>(other))
            << what << ": " << plain << ", " << other;
      });
    };
    equal("result", out);
    equal("image gradient", of_image);
    equal("weight gradient", of_weight);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace anynpu::ops::convolutions
