#include "ops/cube/convolution.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>
#include <torch/library.h>

#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "torch_npu/csrc/dtypes.h"
#include "torch_npu/csrc/errors.h"
#include "torch_npu/csrc/formats.h"
#include "torch_npu/csrc/native_op.h"

namespace torch_npu {
namespace {

using anynpu::ops::Convolution;
using anynpu::ops::View;
using at::Tensor;

bool is_computed(const Tensor& tensor, const Tensor& beside) {
  const auto dtype = dtype_of(tensor.scalar_type());
  return dtype && anynpu::ops::kAllFloats.contains(*dtype) && tensor.scalar_type() == beside.scalar_type() &&
         tensor.device() == beside.device();
}

/// A convolution as ATen gives it: stride, padding, dilation, transposed, output_padding, groups, from
/// `first` on. Numbers may be one for all dimensions.
struct Given {
  Convolution convolution;
  std::vector<int64_t> output_padding;

  Given(Arguments arguments, size_t first, size_t dims) {
    const auto numbers = [&](size_t i) {
      std::vector<int64_t> all = arguments[first + i].toIntVector();
      if (all.size() == 1) all.resize(dims, all[0]);
      return all;
    };
    convolution = {numbers(0), numbers(1), numbers(2), arguments[first + 3].toBool(),
                   arguments[first + 5].toInt()};
    output_padding = numbers(4);
  }
};

/// The sizes of the result. Nothing where PyTorch is to refuse the call, or where an image or a weight has no
/// elements.
std::optional<std::vector<int64_t>> sizes_of_result(const Tensor& image, const Tensor& weight,
                                                    const Given& given) {
  const auto& [stride, padding, dilation, transposed, groups] = given.convolution;
  const auto dims = static_cast<size_t>(image.dim() - 2);
  const auto has = [&](const std::vector<int64_t>& numbers, int64_t least) {
    return numbers.size() == dims &&
           std::all_of(numbers.begin(), numbers.end(), [&](int64_t n) { return n >= least; });
  };
  if (!has(stride, 1) || !has(padding, 0) || !has(dilation, 1) || !has(given.output_padding, 0) ||
      groups < 1 || weight.size(0) % groups != 0 || weight.numel() == 0)
    return std::nullopt;
  const int64_t channels = transposed ? weight.size(0) : weight.size(1) * groups;
  if (image.size(1) != channels) return std::nullopt;
  std::vector<int64_t> sizes = {image.size(0), transposed ? weight.size(1) * groups : weight.size(0)};
  for (size_t d = 0; d < dims; ++d) {
    const auto dim = static_cast<int64_t>(d + 2);
    const int64_t size = image.size(dim), reach = (weight.size(dim) - 1) * dilation[d] + 1,
                  room = size + 2 * padding[d] - reach;
    if (size == 0 || (!transposed && room < 0)) return std::nullopt;
    if (transposed && given.output_padding[d] >= std::max(stride[d], dilation[d])) return std::nullopt;
    sizes.push_back(transposed ? (size - 1) * stride[d] - 2 * padding[d] + reach + given.output_padding[d]
                               : room / stride[d] + 1);
    if (sizes.back() < 1) return std::nullopt;
  }
  return sizes;
}

/// Whether kernels of our own compute with these tensors.
bool are_computed(const Tensor& image, const Tensor& weight) {
  return is_computed(image, image) && is_computed(weight, image) && image.dim() >= 3 && image.dim() <= 5 &&
         weight.dim() == image.dim();
}

/// As on the CPU, the channels come last where those of the image or of the weight do.
at::MemoryFormat memory_format_of(const Tensor& image, const Tensor& weight) {
  const auto last = image.dim() == 4   ? at::MemoryFormat::ChannelsLast
                    : image.dim() == 5 ? at::MemoryFormat::ChannelsLast3d
                                       : at::MemoryFormat::Contiguous;
  return image.suggest_memory_format() == last || weight.suggest_memory_format() == last
             ? last
             : at::MemoryFormat::Contiguous;
}

/// In NC1HWC0 where `like` is.
Tensor empty(at::IntArrayRef sizes, const Tensor& like, at::MemoryFormat format) {
  if (is_formatted(like)) return empty_in_format(kNC1HWC0, sizes, like.options());
  return at::empty(sizes, like.options().memory_format(format));
}

/// Of an image or a result: that of its blocks where it is in NC1HWC0.
View view_to_write(const Tensor& image) {
  return view_of(is_formatted(image) ? blocks_to_write(image) : image);
}
View view_to_read(const Tensor& image) { return view_of(is_formatted(image) ? blocks_of(image) : image); }

/// (input, weight, bias, stride, padding, dilation, transposed, output_padding, groups, ...)
Results convolution(Arguments arguments, OpCounter& counter) {
  const Tensor &image = arguments[0].toTensor(), &weight = arguments[1].toTensor();
  if (!are_computed(image, weight)) return std::nullopt;
  const Given given(arguments, 3, static_cast<size_t>(image.dim() - 2));
  const auto sizes = sizes_of_result(image, weight, given);
  if (!sizes) return std::nullopt;
  std::optional<View> bias;
  if (!arguments[2].isNone() && arguments[2].toTensor().defined()) {
    const Tensor& tensor = arguments[2].toTensor();
    if (!is_computed(tensor, image) || tensor.dim() != 1 || tensor.size(0) != (*sizes)[1])
      return std::nullopt;
    bias = view_of(tensor);
  }
  const Tensor out = empty(*sizes, image, memory_format_of(image, weight));
  Temporaries temporaries(image);
  enqueue_native(npu_call([&] {
                   return given.convolution.forward(view_to_read(image), view_of(weight), bias,
                                                    view_to_write(out), temporaries.take());
                 }),
                 out, counter);
  return {{out}};
}

/// (grad_output, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups,
/// output_mask)
Results convolution_backward(Arguments arguments, OpCounter& counter) {
  const Tensor &gradient = arguments[0].toTensor(), &image = arguments[1].toTensor(),
               &weight = arguments[2].toTensor();
  if (!are_computed(image, weight) || !is_computed(gradient, image)) return std::nullopt;
  const Given given(arguments, 4, static_cast<size_t>(image.dim() - 2));
  const auto sizes = sizes_of_result(image, weight, given);
  if (!sizes || gradient.sizes() != *sizes) return std::nullopt;
  const auto wanted = arguments[10].toBoolList();
  const at::MemoryFormat format = memory_format_of(image, weight);
  Temporaries temporaries(image);
  Tensor of_image, of_weight, of_bias;
  if (wanted[0]) {
    of_image = empty(image.sizes(), image, format);
    enqueue_native(npu_call([&] {
                     return given.convolution.image_gradient(view_to_read(gradient), view_of(weight),
                                                             view_to_write(of_image), temporaries.take());
                   }),
                   of_image, counter);
  }
  if (wanted[1]) {
    of_weight = empty(weight.sizes(), weight, format);
    enqueue_native(npu_call([&] {
                     return given.convolution.weight_gradient(view_to_read(gradient), view_to_read(image),
                                                              view_of(of_weight), temporaries.take());
                   }),
                   of_weight, counter);
  }
  if (wanted[2]) {
    std::vector<int64_t> summed = {0};
    for (int64_t dim = 2; dim < gradient.dim(); ++dim) summed.push_back(dim);
    of_bias = at::sum(gradient, summed);
  }
  return {{of_image, of_weight, of_bias}};
}

bool is_in_blocks(const Tensor& tensor) { return is_whole(tensor) && format_of(tensor) == &kNC1HWC0; }

/// Whether a convolution of a plain image makes blocks of it, and a result in blocks.
bool makes_blocks(const Tensor& image, const Tensor& weight, int64_t groups) {
  return are_formats_allowed() && groups == 1 && image.dim() == 4 && image.numel() != 0 &&
         !is_formatted(image) && are_computed(image, weight) &&
         memory_format_of(image, weight) == at::MemoryFormat::Contiguous;
}

/// With a plain image.
Results convolution_of_plain(Arguments arguments, OpCounter& counter) {
  const Tensor& image = arguments[0].toTensor();
  if (!makes_blocks(image, arguments[1].toTensor(), arguments[8].toInt()))
    return convolution(arguments, counter);
  c10::SmallVector<c10::IValue, 9> taken(arguments.begin(), arguments.end());
  taken[0] = cast_to(kNC1HWC0, image, counter);
  return convolution(taken, counter);
}

/// Whether kernels take an image in NC1HWC0 beside such a weight.
bool takes_blocks(const Tensor& weight, int64_t groups) {
  Convolution convolution;
  convolution.groups = groups;
  return weight.dim() == 4 && convolution.takes_blocks(weight.size(0), weight.size(1), Format::kBlock);
}

/// Calls with an image in NC1HWC0. Other tensors become plain, or a result's gradient blocks.
Results convolution_in_blocks(Arguments arguments, OpCounter& counter) {
  c10::SmallVector<c10::IValue, 9> taken(arguments.begin(), arguments.end());
  if (!is_in_blocks(taken[0].toTensor()) || !takes_blocks(taken[1].toTensor(), taken[8].toInt()))
    return std::nullopt;
  for (const size_t i : {1, 2})
    if (!taken[i].isNone()) taken[i] = plain_of(taken[i].toTensor(), counter);
  return convolution(taken, counter);
}

/// The same of a gradient; where it is in blocks the image may be the one that they were made of.
Results convolution_backward_in_blocks(Arguments arguments, OpCounter& counter) {
  c10::SmallVector<c10::IValue, 11> taken(arguments.begin(), arguments.end());
  const Tensor &gradient = arguments[0].toTensor(), &image = arguments[1].toTensor(),
               &weight = arguments[2].toTensor();
  const int64_t groups = taken[9].toInt();
  if (!takes_blocks(weight, groups) || gradient.dim() != 4 || gradient.device() != image.device())
    return std::nullopt;
  if (is_in_blocks(gradient) && makes_blocks(image, weight, groups))
    taken[1] = cast_to(kNC1HWC0, image, counter);
  else if (!is_in_blocks(image))
    return std::nullopt;
  if (!is_in_blocks(gradient)) taken[0] = cast_to(kNC1HWC0, gradient, counter);
  taken[2] = plain_of(weight, counter);
  return convolution_backward(taken, counter);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, aten) {
  add_native(aten, "convolution", {"Convolution"}, convolution_of_plain, convolution_in_blocks);
  add_native(aten, "_convolution", {"Convolution"}, convolution_of_plain, convolution_in_blocks);
  add_native(aten, "convolution_backward", {"Convolution"}, convolution_backward,
             convolution_backward_in_blocks);
}

}  // namespace torch_npu
