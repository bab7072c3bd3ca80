#include "ops/cube/convolution.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "base/error.h"
#include "ops/cube/block_product.h"
#include "ops/cube/depthwise.h"
#include "ops/cube/gemm.h"
#include "ops/cube/patch_product.h"
#include "ops/grid.h"

namespace anynpu::ops {
namespace {

const Formula kBiased = formula<2>([](auto sum, auto bias) { return sum + bias; });

View shifted(View view, size_t dim, int64_t by) {
  view.data =
      static_cast<char*>(view.data) + by * view.strides[dim] * static_cast<int64_t>(size_of(view.dtype));
  return view;
}

/// With dimensions of one element ahead of the last ones, so that there are six.
View with_all_dims(View view) {
  const size_t missing = 6 - view.sizes.size();
  view.sizes.insert(view.sizes.begin() + 3, missing, 1);
  view.strides.insert(view.strides.begin() + 3, missing, 0);
  return view;
}

/// A dimension of groups x channels as two of them.
View split(View view, size_t dim, int64_t groups) {
  const auto at = static_cast<std::ptrdiff_t>(dim);
  view.sizes[dim] /= groups;
  view.sizes.insert(view.sizes.begin() + at, groups);
  view.strides.insert(view.strides.begin() + at, view.strides[dim] * view.sizes[dim + 1]);
  return view;
}

/// Batch x channels x sizes as groups x batch x channels x three sizes.
View grouped_image(const View& view, int64_t groups) {
  View made = split(view, 1, groups);
  std::swap(made.sizes[0], made.sizes[1]);
  std::swap(made.strides[0], made.strides[1]);
  return with_all_dims(std::move(made));
}
/// Weights as groups x outputs x channels x three numbers of taps.
View grouped_weight(const View& view, int64_t groups) { return with_all_dims(split(view, 0, groups)); }

/// What a convolution that is not transposed goes from, and to, with its weight. The bias is the result's, or
/// of a transposed one the image's.
struct Tensors {
  View image, weight, out;  ///< grouped
  std::optional<View> bias = {};
};

/// `image` and `out` as of a convolution that is not transposed.
Tensors grouped(const Convolution& convolution, const View& image, const View& weight, const View& out,
                const std::optional<View>& bias = {}) {
  const auto& [stride, padding, dilation, transposed, groups] = convolution;
  const size_t rank = image.sizes.size();
  const auto has = [&](const std::vector<int64_t>& numbers, int64_t least) {
    return numbers.size() + 2 == rank && std::ranges::all_of(numbers, [&](int64_t n) { return n >= least; });
  };
  bool fits = rank >= 3 && rank <= 5 && weight.sizes.size() == rank && out.sizes.size() == rank &&
              has(stride, 1) && has(padding, 0) && has(dilation, 1) && groups >= 1 &&
              image.dtype == weight.dtype && image.dtype == out.dtype && image.sizes[0] == out.sizes[0] &&
              weight.sizes[0] == out.sizes[1] && weight.sizes[0] % groups == 0 &&
              weight.sizes[1] * groups == image.sizes[1];
  for (size_t d = 2; fits && d < rank; ++d) {
    const int64_t taps = (weight.sizes[d] - 1) * dilation[d - 2] + 1,
                  room = image.sizes[d] + 2 * padding[d - 2] - taps, most = room / stride[d - 2] + 1;
    fits = weight.sizes[d] >= 0 && (out.sizes[d] == 0 || (room >= 0 && out.sizes[d] <= most));
  }
  require(
      fits, ErrorCode::kInvalidArgument, "a convolution", transposed ? " (transposed) " : " ", "of ",
      image.text(), " by ", weight.text(), " to ", out.text(), " in ", groups,
      " groups; batch x channels x sizes by outputs x channels of a group x taps to batch x outputs x "
      "positions that windows have there is accepted, of one type, with a stride, a padding and a dilation "
      "for each of one to three sizes");
  return {grouped_image(image, groups), grouped_weight(weight, groups), grouped_image(out, groups), bias};
}

/// Of the three dimensions, 0 and 1 where there are fewer.
int64_t number_at(const std::vector<int64_t>& numbers, size_t dim, int64_t otherwise) {
  return dim + numbers.size() < 3 ? otherwise : numbers[dim + numbers.size() - 3];
}

/// `first` is the dimension of the first position of `out`, and of the first tap of `weight`.
Windows windows_of(const Convolution& convolution, const View& out, const View& weight, size_t first) {
  Windows windows;
  for (size_t d = 0; d < 3; ++d)
    windows[d] = {.positions = out.sizes[first + d],
                  .taps = weight.sizes[first + d],
                  .stride = number_at(convolution.stride, d, 1),
                  .step = number_at(convolution.dilation, d, 1),
                  .origin = -number_at(convolution.padding, d, 0)};
  return windows;
}
Windows windows_of(const Convolution& convolution, const Tensors& tensors) {
  return windows_of(convolution, tensors.out, tensors.weight, 3);
}

/// Weights times patches, of which the image and the windows are given.
struct Part {
  View weight, out;
  Windows windows;
};

/// Where channels are side by side, an image's elements as rows of them: groups x (batch, element) x
/// channels. Nothing where they are not, or rows have no one stride.
std::optional<View> rows_of(const View& image) {
  if (image.strides[2] != 1) return std::nullopt;
  View rows = {image.dtype, image.data, {}, {}};
  for (const size_t d : {0, 1, 3, 4, 5, 2}) {
    rows.sizes.push_back(image.sizes[d]);
    rows.strides.push_back(image.strides[d]);
  }
  return rows.merged(1, 5);
}

View turned(View matrices) {
  std::swap(matrices.sizes[1], matrices.sizes[2]);
  std::swap(matrices.strides[1], matrices.strides[2]);
  return matrices;
}

/// Of an image, a weight and a result, where each position is under one tap and is one of the image.
struct Matrices {
  View image, weight,
      out;  ///< groups x rows x channels, groups x outputs x channels, groups x rows x outputs
};
std::optional<Matrices> matrices_of(const View& image, const Part& part) {
  for (size_t d = 0; d < 3; ++d) {
    const Window& window = part.windows[d];
    if (window.taps != 1 || window.stride != 1 || window.origin != 0 ||
        window.positions != image.sizes[3 + d])
      return std::nullopt;
  }
  const auto from = rows_of(image), to = rows_of(part.out);
  if (!from || !to) return std::nullopt;
  View weight = part.weight;
  weight.sizes.resize(3);
  weight.strides.resize(3);
  return Matrices{*from, std::move(weight), *to};
}

/// The launches of products of one image, whose windows have one stride, each with the bias of its outputs.
std::vector<Launch> products(const View& image, std::span<const Part> parts, const std::optional<View>& bias,
                             const TakeMemory& take) {
  std::vector<Launch> launches;
  const auto biased = [&](auto product) {
    if (!bias) return product;
    const auto& sizes = product.out.sizes;
    View operand = {bias->dtype, bias->data, sizes, std::vector<int64_t>(sizes.size(), 0)};
    operand.strides[2] = bias->strides[0];  // of the outputs
    operand.strides[0] = bias->strides[0] * sizes[2];
    product.finish = &kBiased;
    product.operands = {operand};
    return product;
  };
  std::vector<Part> others;
  std::vector<Windows> windows;
  for (const Part& part : parts) {
    if (const auto matrices = matrices_of(image, part)) {
      for (Launch& launch :
           prepare(biased(GemmCall{matrices->image, turned(matrices->weight), matrices->out}), take))
        launches.push_back(std::move(launch));
    } else if (const DepthwiseProduct product = {image, part.weight, part.out, part.windows};
               has_depthwise_kernel(product)) {
      prepare(biased(product), launches);
    } else if (part.out.elements() != 0) {
      others.push_back(part);
      windows.push_back(part.windows);
    }
  }
  if (others.empty()) return launches;
  const std::vector<Patches> patches = patches_of(image, windows, sum_type(image.dtype), take, launches);
  for (size_t i = 0; i < others.size(); ++i)
    prepare(biased(PatchProduct{patches[i], others[i].weight, others[i].out}), take, launches);
  return launches;
}

std::vector<Launch> from_image(const Tensors& tensors, const Windows& windows, const TakeMemory& take) {
  const Part part = {tensors.weight, tensors.out, windows};
  return products(tensors.image, std::span(&part, 1), tensors.bias, take);
}

/// Elements of an image that have the same distance from a multiple of the stride: where they are, and the
/// taps that go there.
struct Phase {
  int64_t first, stride, count;  ///< elements
  int64_t tap, tap_step;         ///< the first one, and from one to the next
  Window window;                 ///< over the results, one position an element, one tap a tap
};

std::vector<Phase> phases_of(const Window& forward, int64_t size) {
  std::vector<Phase> phases;
  const int64_t common = std::gcd(forward.stride, forward.step), tap_step = forward.stride / common;
  for (int64_t first = 0; first < std::min(forward.stride, size); ++first) {
    Phase phase = {first, forward.stride, (size - first + forward.stride - 1) / forward.stride,
                   0,     tap_step,       {}};
    phase.window = {.positions = phase.count, .taps = 0, .stride = 1, .step = -(forward.step / common)};
    for (int64_t tap = 0; tap < std::min(forward.taps, tap_step); ++tap) {
      const int64_t distance = first - forward.origin - tap * forward.step;
      if (distance % forward.stride != 0) continue;
      phase.tap = tap;
      phase.window.taps = (forward.taps - tap + tap_step - 1) / tap_step;
      phase.window.origin = distance / forward.stride;
    }
    phases.push_back(phase);
  }
  return phases;
}

/// From results to the image: each phase of the image is a product of the patches of the results. The three
/// dimensions of `image` and of `weight` start at `first`; before them `weight` has outputs, then channels.
std::vector<Part> parts_to_image(const View& image, View weight, const Windows& forward, size_t first) {
  std::swap(weight.sizes[first - 2], weight.sizes[first - 1]);
  std::swap(weight.strides[first - 2], weight.strides[first - 1]);
  std::vector<Part> parts = {{std::move(weight), image, forward}};
  for (size_t d = 0; d < 3; ++d) {
    const size_t dim = first + d;
    std::vector<Part> finer;
    for (const Phase& phase : phases_of(forward[d], image.sizes[dim]))
      for (Part part : parts) {
        part.weight = shifted(part.weight, dim, phase.tap);
        part.weight.sizes[dim] = phase.window.taps;
        part.weight.strides[dim] *= phase.tap_step;
        part.out = shifted(part.out, dim, phase.first);
        part.out.sizes[dim] = phase.count;
        part.out.strides[dim] *= phase.stride;
        part.windows[d] = phase.window;
        finer.push_back(std::move(part));
      }
    parts = std::move(finer);
  }
  return parts;
}

std::vector<Launch> to_image(const Tensors& tensors, const Windows& windows, const TakeMemory& take) {
  const auto parts = parts_to_image(tensors.image, tensors.weight, windows, 3);
  return products(tensors.out, parts, tensors.bias, take);
}

std::vector<Launch> to_weight(const Tensors& tensors, const Windows& windows, const TakeMemory& take) {
  std::vector<Launch> launches;
  if (tensors.weight.elements() == 0) return launches;
  // Before what depends on layouts, as the order of its sums is its own.
  if (const DepthwiseCorrelation product = {tensors.image, tensors.out, tensors.weight, windows};
      has_depthwise_kernel(product)) {
    prepare(product, take, launches);
    return launches;
  }
  if (const auto matrices = matrices_of(tensors.image, {tensors.weight, tensors.out, windows}))
    return prepare(GemmCall{turned(matrices->out), matrices->image, matrices->weight}, take);
  const auto patches =
      patches_of(tensors.image, std::span(&windows, 1), sum_type(tensors.image.dtype), take, launches);
  prepare(PatchCorrelation{patches[0], tensors.out, tensors.weight}, take, launches);
  return launches;
}

/// Whether images come in blocks.
bool is_in_blocks(const View& image, const View& weight) {
  return image.sizes.size() == weight.sizes.size() + 1;
}

/// `image` and `out` of a convolution that is not transposed, in blocks, with three dimensions of sizes. The
/// channels of a block come last.
Tensors in_blocks(const Convolution& convolution, const View& image, const View& weight, const View& out,
                  const std::optional<View>& bias = {}) {
  const size_t rank = weight.sizes.size();
  bool fits = rank >= 3 && rank <= 5 && image.sizes.size() == rank + 1 && out.sizes.size() == rank + 1 &&
              image.strides.back() == 1 && out.strides.back() == 1 &&
              convolution.takes_blocks(weight.sizes[0], weight.sizes[1], image.sizes.back());
  const auto as_plain = [&](View view, int64_t channels) {
    fits = fits && view.sizes[1] == ceil_div(channels, view.sizes.back());
    view.sizes[1] = channels;
    view.sizes.pop_back();
    view.strides.pop_back();
    return view;
  };
  if (fits)  // checks what else there is
    grouped(convolution, as_plain(image, weight.sizes[1] * convolution.groups), weight,
            as_plain(out, weight.sizes[0]));
  fits = fits && image.sizes.back() == out.sizes.back();
  require(fits, ErrorCode::kInvalidArgument, "a convolution in blocks of ", image.text(), " by ",
          weight.text(), " to ", out.text(), " in ", convolution.groups,
          " groups; batch x blocks x sizes x channels of a block by outputs x channels of a group x taps to "
          "batch x blocks x positions x outputs of a block is accepted, with the channels of a block side by "
          "side, in one group, or where blocks have one group's channels only or, of as many as results, "
          "those of whole groups");
  const auto with_three_sizes = [&](View view) {
    view.sizes.insert(view.sizes.begin() + 2, 5 - rank, 1);
    view.strides.insert(view.strides.begin() + 2, 5 - rank, 0);
    return view;
  };
  return {with_three_sizes(image), with_three_sizes(weight), with_three_sizes(out), bias};
}

/// Some of a dimension.
View slice(const View& view, size_t dim, int64_t first, int64_t size) {
  View made = shifted(view, dim, first);
  made.sizes[dim] = size;
  return made;
}

/// The first channels of a block, as a grouped image.
View block_of(const View& blocks, int64_t number, int64_t groups, int64_t channels) {
  const auto &sizes = blocks.sizes, &strides = blocks.strides;
  return {blocks.dtype,
          slice(blocks, 1, number, 1).data,
          {groups, sizes[0], channels, sizes[2], sizes[3], sizes[4]},
          {strides[5] * channels, strides[0], strides[5], strides[2], strides[3], strides[4]}};
}

/// The launches of a convolution in blocks of some groups: of each group where it has blocks of its own,
/// whose tensors `of_group` takes; else of each block, whose grouped tensors `of_block` takes.
template <class OfGroup, class OfBlock>
std::vector<Launch> of_parts(int64_t groups, const Tensors& whole, const OfGroup& of_group,
                             const OfBlock& of_block) {
  if (groups == 1) return of_group(whole);
  const auto& [image, weight, out, bias] = whole;
  const int64_t block = image.sizes[5], channels = weight.sizes[1];
  const auto bias_of = [&](int64_t first, int64_t count) -> std::optional<View> {
    if (!bias) return std::nullopt;
    const int64_t each = bias->sizes[0] / groups;
    return slice(*bias, 0, first * each, count * each);
  };
  std::vector<std::vector<Launch>> calls;
  if (channels % block == 0) {
    const auto of = [&](const View& view, size_t dim, int64_t group) {
      const int64_t size = view.sizes[dim] / groups;
      return slice(view, dim, group * size, size);
    };
    for (int64_t g = 0; g < groups; ++g)
      calls.push_back(of_group(Tensors{of(image, 1, g), of(weight, 0, g), of(out, 1, g), bias_of(g, 1)}));
  } else {
    const int64_t most = block / channels;
    for (int64_t first = 0; first < groups; first += most) {
      const int64_t count = std::min(most, groups - first), number = first / most;
      calls.push_back(of_block(Tensors{block_of(image, number, count, channels),
                                       split(slice(weight, 0, first * channels, count * channels), 0, count),
                                       block_of(out, number, count, channels), bias_of(first, count)}));
    }
  }
  return joined(std::move(calls));
}

std::vector<Launch> from_image_in_blocks(const Convolution& convolution, const Tensors& whole,
                                         const TakeMemory& take) {
  const Windows windows = windows_of(convolution, whole.out, whole.weight, 2);
  const auto of_group = [&](const Tensors& tensors) {
    std::vector<Launch> launches;
    prepare(BlockProduct{tensors.image, windows, tensors.weight, tensors.out, tensors.bias}, take, launches);
    return launches;
  };
  return of_parts(convolution.groups, whole, of_group,
                  [&](const Tensors& block) { return from_image(block, windows, take); });
}

std::vector<Launch> to_image_in_blocks(const Convolution& convolution, const Tensors& whole,
                                       const TakeMemory& take) {
  const Windows windows = windows_of(convolution, whole.out, whole.weight, 2);
  const auto of_group = [&](const Tensors& tensors) {
    std::vector<Launch> launches;
    for (const Part& part : parts_to_image(tensors.image, tensors.weight, windows, 2))
      prepare(BlockProduct{tensors.out, part.windows, part.weight, part.out, tensors.bias}, take, launches);
    return launches;
  };
  return of_parts(convolution.groups, whole, of_group,
                  [&](const Tensors& block) { return to_image(block, windows, take); });
}

std::vector<Launch> to_weight_in_blocks(const Convolution& convolution, const Tensors& whole,
                                        const TakeMemory& take) {
  const Windows windows = windows_of(convolution, whole.out, whole.weight, 2);
  const auto of_group = [&](const Tensors& tensors) {
    std::vector<Launch> launches;
    const auto& [image, weight, out, bias] = tensors;
    const int64_t outputs = weight.sizes[0], block = out.sizes[5];
    std::vector<DepthwiseCorrelation> parts;
    for (int64_t first = 0; first < outputs; first += block) {
      const int64_t count = std::min(block, outputs - first);
      parts.push_back({block_of(image, 0, 1, std::min(weight.sizes[1], block)),
                       block_of(out, first / block, 1, count), split(slice(weight, 0, first, count), 0, 1),
                       windows});
    }
    const auto has_kernel = [](const DepthwiseCorrelation& part) { return has_depthwise_kernel(part); };
    if (std::ranges::all_of(parts, has_kernel)) {
      for (const DepthwiseCorrelation& part : parts) prepare(part, take, launches);
    } else {
      prepare(BlockCorrelation{image, windows, out, weight}, launches);
    }
    return launches;
  };
  return of_parts(convolution.groups, whole, of_group,
                  [&](const Tensors& block) { return to_weight(block, windows, take); });
}

}  // namespace

bool Convolution::takes_blocks(int64_t outputs, int64_t channels, int64_t block) const {
  if (groups <= 1 || outputs % groups != 0 || channels <= 0) return groups == 1;
  const bool own = outputs / groups % block == 0 && channels % block == 0,
             shared = outputs / groups == channels && block % channels == 0;
  return own || shared;
}

std::vector<Launch> Convolution::forward(const View& image, const View& weight,
                                         const std::optional<View>& bias, const View& out,
                                         const TakeMemory& take) const {
  const bool blocks = is_in_blocks(image, weight);
  int64_t outputs = out.sizes.size() > 1 ? out.sizes[1] : 0;
  if (blocks && weight.sizes.size() > 1) outputs = transposed ? weight.sizes[1] * groups : weight.sizes[0];
  require(!bias || (bias->sizes.size() == 1 && bias->dtype == out.dtype && bias->sizes[0] == outputs),
          ErrorCode::kInvalidArgument, "a convolution to ", out.text(), ": the bias is ",
          bias ? bias->text() : "", "; one number for each of its channels is accepted, of its type");
  if (blocks && transposed)
    return to_image_in_blocks(*this, in_blocks(*this, out, weight, image, bias), take);
  if (blocks) return from_image_in_blocks(*this, in_blocks(*this, image, weight, out, bias), take);
  const Tensors tensors =
      transposed ? grouped(*this, out, weight, image, bias) : grouped(*this, image, weight, out, bias);
  const Windows windows = windows_of(*this, tensors);
  return transposed ? to_image(tensors, windows, take) : from_image(tensors, windows, take);
}

std::vector<Launch> Convolution::image_gradient(const View& gradient, const View& weight, const View& out,
                                                const TakeMemory& take) const {
  Convolution back = *this;
  back.transposed = !transposed;
  return back.forward(gradient, weight, {}, out, take);
}

std::vector<Launch> Convolution::weight_gradient(const View& gradient, const View& image, const View& out,
                                                 const TakeMemory& take) const {
  const View &from = transposed ? gradient : image, &to = transposed ? image : gradient;
  if (is_in_blocks(image, out)) return to_weight_in_blocks(*this, in_blocks(*this, from, out, to), take);
  const Tensors tensors = grouped(*this, from, out, to);
  return to_weight(tensors, windows_of(*this, tensors), take);
}

}  // namespace anynpu::ops
