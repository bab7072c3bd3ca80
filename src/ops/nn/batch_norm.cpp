#include "ops/nn/batch_norm.h"

#include <cstdint>
#include <string_view>
#include <utility>

#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/lines.h"

namespace anynpu::ops {
namespace {

constexpr float kOne = 1, kZero = 0;
constexpr int64_t kElementsOfPart = 512;  // at most, where it has more than one image

/// How many images a part has, of images of that many elements of a channel.
int64_t images_of_part(int64_t images, int64_t size) {
  if (size == 1) return images;
  int64_t most = 1;
  for (int64_t count = 2; count <= images && count * size <= kElementsOfPart; ++count)
    if (images % count == 0) most = count;
  return most;
}

/// The channels of a call's images, and the launches of its steps.
class Channels {
 public:
  /// `of_channels` is something that is of channels.
  Channels(const View& x, const View& of_channels, const TakeMemory& take)
      : take_(take), compute_(compute_type(x.dtype)), sizes_(x.sizes), channels_(of_channels.sizes) {
    int64_t size = 1;
    for (size_t d = first_position(); d < x.sizes.size(); ++d) size *= x.sizes[d];
    const int64_t images = images_of_part(x.sizes[0], size);
    parts_ = x.sizes[0] / images;
    of_parts_ = between(parts_, channels_, {images, size});
  }

  double size_of_part() const { return static_cast<double>(*(of_parts_.end() - 2) * of_parts_.back()); }
  View temporary_of_channels() const { return temporary(take_, compute_, channels_); }
  View temporary_of_parts() const { return temporary(take_, compute_, between(parts_, channels_)); }

  /// Parts x channels x images x elements of an image: a copy where no strides say so.
  View parts_of(const View& view) {
    const View images = merged_or_copied(view, first_position(), view.sizes.size(), take_, launches_);
    const int64_t image = images.strides.front();
    const std::vector<int64_t> channels(images.strides.begin() + 1, images.strides.end() - 1);
    return {view.dtype, images.data, of_parts_,
            between(image * *(of_parts_.end() - 2), channels, {image, images.strides.back()})};
  }
  /// One element for each part, beside its elements.
  View of_part(View view) const {
    view.sizes = of_parts_;
    view.strides.resize(of_parts_.size(), 0);
    return view;
  }
  /// The same of a channel.
  View beside_elements(const View& view) const {
    return {view.dtype, view.data, of_parts_, between(0, view.strides, {0, 0})};
  }
  /// One element for each channel, beside its parts.
  View beside_parts(const View& view) const {
    return {view.dtype, view.data, between(parts_, channels_), between(0, view.strides)};
  }
  View beside_parts(const std::optional<View>& view, const float& otherwise) const {
    return beside_parts(view ? *view : all(otherwise));
  }
  /// A result, which may not be wanted.
  View beside_parts_or_unused(const std::optional<View>& view) const {
    return beside_parts(view ? *view : temporary_of_channels());
  }

  /// Lines are the elements of parts: the last two dimensions.
  void of_elements(std::string_view op, std::vector<View> views) {
    std::vector<View> merged;
    for (const View& view : views)
      if (const auto one = view.merged(first_position(), first_position() + 2)) merged.push_back(*one);
    launches_.push_back(merged.size() == views.size()
                            ? prepare(line_op(op), compute_, std::move(merged), first_position())
                            : prepare_in_pieces(line_op(op), compute_, std::move(views)));
  }
  /// Lines are the parts: the first dimension.
  void of_parts(std::string_view op, std::vector<View> views, std::span<const double> numbers) {
    launches_.push_back(prepare(line_op(op), compute_, std::move(views), 0, numbers));
  }
  /// Of images, of which the first is the result, and what is of channels.
  void elementwise(std::string_view op, std::vector<View> views,
                   std::initializer_list<std::optional<View>> of_channels) {
    for (const auto& view : of_channels) views.push_back(beside_images(view ? *view : all(kOne)));
    const Iteration iteration(views);
    launches_.push_back(prepare(
        ElementwiseCall{elementwise_op(op), 0, compute_, iteration.sizes(), iteration.operands(), {}}));
  }

  View all(const float& number) const {
    return {DType::kF32, const_cast<float*>(&number), channels_, std::vector<int64_t>(channels_.size(), 0)};
  }
  std::vector<Launch> finish() { return std::move(launches_); }

 private:
  View beside_images(const View& view) const {
    std::vector<int64_t> strides = between(0, view.strides);
    strides.resize(sizes_.size(), 0);
    return {view.dtype, view.data, sizes_, std::move(strides)};
  }
  size_t first_position() const { return 1 + channels_.size(); }
  static std::vector<int64_t> between(int64_t first, const std::vector<int64_t>& numbers,
                                      std::initializer_list<int64_t> last = {}) {
    std::vector<int64_t> made = {first};
    made.insert(made.end(), numbers.begin(), numbers.end());
    made.insert(made.end(), last);
    return made;
  }

  const TakeMemory& take_;
  const DType compute_;
  const std::vector<int64_t> sizes_, channels_;
  int64_t parts_;
  std::vector<int64_t> of_parts_;
  std::vector<Launch> launches_;
};

}  // namespace

View batch_norm_factor(const View& variance, double eps, const TakeMemory& take,
                       std::vector<Launch>& launches) {
  const View factor = temporary(take, compute_type(variance.dtype), variance.sizes);
  launches.push_back(
      prepare(line_op("BatchNormFactor"), factor.dtype, {factor, variance}, 0, std::span(&eps, 1)));
  return factor;
}

std::vector<Launch> prepare(const BatchNorm& call, const TakeMemory& take) {
  Channels channels(call.x, call.mean, take);
  View mean = call.mean, factor = call.factor;
  if (call.training) {
    const auto& [running_mean, running_variance, momentum, eps] = *call.training;
    const View means = channels.temporary_of_parts(), squares = channels.temporary_of_parts();
    channels.of_elements("BatchNormMoments",
                         {channels.of_part(means), channels.of_part(squares), channels.parts_of(call.x)});
    // What is normalized with is not rounded to the results' type.
    mean = channels.temporary_of_channels();
    factor = channels.temporary_of_channels();
    const double numbers[] = {channels.size_of_part(), momentum, 1 - momentum, eps};
    channels.of_parts(
        "BatchNormStatistics",
        {channels.beside_parts(mean), channels.beside_parts(factor), channels.beside_parts(call.mean),
         channels.beside_parts(call.factor), channels.beside_parts_or_unused(running_mean),
         channels.beside_parts_or_unused(running_variance), means, squares,
         channels.beside_parts(running_mean, kZero), channels.beside_parts(running_variance, kOne)},
        numbers);
  }
  const View bias = call.bias ? *call.bias : channels.all(kZero);
  channels.elementwise("BatchNorm", {call.y, call.x}, {mean, factor, call.weight, bias});
  return channels.finish();
}

std::vector<Launch> prepare(const BatchNormBackward& call, const TakeMemory& take) {
  Channels channels(call.x, call.mean, take);
  const View shift = channels.temporary_of_channels(), slope = channels.temporary_of_channels();
  if ((call.training && call.of_x) || call.of_weight || call.of_bias) {
    const View products = channels.temporary_of_parts(), sums = channels.temporary_of_parts();
    channels.of_elements("BatchNormGradients",
                         {channels.of_part(products), channels.of_part(sums), channels.parts_of(call.grad),
                          channels.parts_of(call.x), channels.beside_elements(call.mean)});
    const double size = channels.size_of_part();
    channels.of_parts(
        "BatchNormBackwardAffine",
        {channels.beside_parts(shift), channels.beside_parts(slope),
         channels.beside_parts_or_unused(call.of_weight), channels.beside_parts_or_unused(call.of_bias),
         products, sums, channels.beside_parts(call.factor)},
        std::span(&size, 1));
  }
  if (call.of_x && call.training)
    channels.elementwise("BatchNormBackward", {*call.of_x, call.grad, call.x},
                         {call.mean, shift, slope, call.factor, call.weight});
  else if (call.of_x)
    channels.elementwise("BatchNormInferenceBackward", {*call.of_x, call.grad}, {call.factor, call.weight});
  return channels.finish();
}

}  // namespace anynpu::ops
