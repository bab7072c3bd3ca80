// Convolutions and their gradients.

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "abi/aclnn/plans.h"
#include "abi/aclnn/shapes.h"
#include "abi/aclnn/status.h"
#include "ops/cube/convolution.h"
#include "ops/reduce/reduction.h"

namespace anynpu::aclnn {
namespace {

using ops::View;

/// Arguments from `first` on: stride, padding, dilation, transposed, outputPadding, groups.
ops::Convolution convolution_of(const Call& call, size_t first, const View& image) {
  const size_t dims = image.sizes.size() - 2;
  const auto numbers = [&](size_t i, int64_t least) {
    const Bound& argument = call[first + i];
    auto values = std::get<std::vector<int64_t>>(argument.value);
    if (values.size() == 1) values.resize(dims, values[0]);
    check(values.size() == dims && std::ranges::all_of(values, [&](int64_t n) { return n >= least; }),
          argument.name, " is ", Listed{values}, "; ", dims, " numbers, ", least, " or more, are accepted");
    return values;
  };
  ops::Convolution convolution = {numbers(0, 1), numbers(1, 0), numbers(2, 1),
                                  std::get<bool>(call[first + 3].value),
                                  std::get<int64_t>(call[first + 5].value)};
  numbers(4, 0);
  check(convolution.groups >= 1, call[first + 5].name, " is ", convolution.groups,
        "; 1 or more are accepted");
  return convolution;
}

/// The sizes of a result, or why there is none.
std::vector<int64_t> result_sizes(const Call& call, size_t first, const Bound& image, const Bound& weight,
                                  const ops::Convolution& convolution) {
  const auto &of = image.view().sizes, &by = weight.view().sizes;
  const int64_t groups = convolution.groups;
  const bool turned = convolution.transposed;
  check(by.size() == of.size(), weight.name, " has shape ", Listed{by}, "; ", of.size(), " dimensions, as ",
        image.name, " has, are accepted");
  check(of[1] == (turned ? by[0] : by[1] * groups) && by[0] % groups == 0, weight.name, " has shape ",
        Listed{by}, ", but ", image.name, " has shape ", Listed{of}, " and there are ", groups,
        " groups; their channels must be the same");
  std::vector<int64_t> sizes = {of[0], turned ? by[1] * groups : by[0]};
  const auto& more = std::get<std::vector<int64_t>>(call[first + 4].value);
  for (size_t d = 0; d + 2 < of.size(); ++d) {
    const int64_t reach = (by[d + 2] - 1) * convolution.dilation[d] + 1, around = 2 * convolution.padding[d],
                  stride = convolution.stride[d];
    const int64_t room = of[d + 2] + around - reach;
    sizes.push_back(turned      ? (of[d + 2] - 1) * stride - around + reach + more[more.size() == 1 ? 0 : d]
                    : room >= 0 ? room / stride + 1
                                : 0);
    check(by[d + 2] >= 1 && sizes.back() >= 1, weight.name, " has shape ", Listed{by}, ", but ", image.name,
          " has shape ", Listed{of}, "; with its padding it must be at least as large as the window");
  }
  return sizes;
}

/// Of the image: a tensor of one to three dimensions beside batch and channels.
void check_image(const Bound& image) {
  check_type(image, ops::kAllFloats);
  const size_t dims = image.view().sizes.size();
  check(dims >= 3 && dims <= 5, image.name, " has ", dims, " dimensions; 3 to 5 are accepted");
}

}  // namespace

Launches plan_convolution(const Call& call, Workspace& workspace) {
  const Bound &image = call[0], &weight = call[1], &bias = call[2], &out = call[9];
  check_image(image);
  for (const Bound* tensor : {&weight, &bias, &out})
    if (tensor->given()) check_type(*tensor, tile::DTypes(image.view().dtype));
  const ops::Convolution convolution = convolution_of(call, 3, image.view());
  const auto sizes = result_sizes(call, 3, image, weight, convolution);
  check_shape(out, sizes);
  if (bias.given()) check_shape(bias, std::array{sizes[1]});
  return convolution.forward(image.view(), weight.view(),
                             bias.given() ? std::optional(bias.view()) : std::nullopt, out.view(),
                             workspace.taker());
}

Launches plan_convolution_backward(const Call& call, Workspace& workspace) {
  const Bound &gradient = call[0], &image = call[1], &weight = call[2], &given_mask = call[10];
  const auto& mask = std::get<std::vector<bool>>(given_mask.value);
  check(mask.size() == 3, given_mask.name, " has ", mask.size(), " values; 3 are accepted");
  const Bound* const results[] = {&call[12], &call[13], &call[14]};
  for (size_t i = 0; i < 3; ++i)
    abi::check(!mask[i] || results[i]->given(), ACLNN_ERR_PARAM_NULLPTR, results[i]->name, " is null, but ",
               given_mask.name, "[", i, "] is true");
  check_image(image);
  const tile::DTypes type(image.view().dtype);
  for (const Bound* tensor : {&gradient, &weight}) check_type(*tensor, type);
  const ops::Convolution convolution = convolution_of(call, 4, image.view());
  const auto sizes = result_sizes(call, 4, image, weight, convolution);
  check_shape(gradient, sizes);
  const std::vector<int64_t> shapes[] = {image.view().sizes, weight.view().sizes, {sizes[1]}};
  for (size_t i = 0; i < 3; ++i) {
    if (!mask[i]) continue;
    check_type(*results[i], type);
    check_shape(*results[i], shapes[i]);
  }
  Launches launches;
  const auto add = [&](Launches more) {
    for (ops::Launch& launch : more) launches.push_back(std::move(launch));
  };
  if (mask[0])
    add(convolution.image_gradient(gradient.view(), weight.view(), results[0]->view(), workspace.taker()));
  if (mask[1])
    add(convolution.weight_gradient(gradient.view(), image.view(), results[1]->view(), workspace.taker()));
  if (mask[2]) {
    ops::Dims over;
    for (size_t d = 0; d < sizes.size(); ++d) over[d] = d != 1;
    add(prepare(ops::Reduction{ops::line_op("Sum"), gradient.view().dtype, std::span(&results[2]->view(), 1),
                               gradient.view(), over},
                workspace.taker()));
  }
  return launches;
}

}  // namespace anynpu::aclnn
