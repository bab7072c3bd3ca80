// Batch normalization and pooling.

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "abi/aclnn/plans.h"
#include "abi/aclnn/shapes.h"
#include "abi/aclnn/status.h"
#include "ops/nn/batch_norm.h"
#include "ops/nn/pooling.h"

namespace anynpu::aclnn {
namespace {

using ops::View;

std::optional<View> view_where_given(const Bound& tensor) {
  return tensor.given() ? std::optional(tensor.view()) : std::nullopt;
}

/// Of batch normalization: images, and what is of their channels, where it is given.
void check_normalized(const Bound& input, std::initializer_list<const Bound*> like,
                      std::initializer_list<const Bound*> of_channels) {
  check_type(input, ops::kAllFloats);
  const View& x = input.view();
  check(x.sizes.size() >= 2 && x.elements() != 0, input.name, " has shape ", Listed{x.sizes},
        "; two or more dimensions and at least one element are accepted");
  for (const Bound* tensor : like) {
    check_type(*tensor, tile::DTypes(x.dtype));
    check_shape(*tensor, x.sizes);
  }
  for (const Bound* tensor : of_channels) {
    if (!tensor->given()) continue;
    check_type(*tensor, ops::kAllFloats);
    check_shape(*tensor, std::array{x.sizes[1]});
  }
}

void check_given(const Bound& tensor, const char* why) {
  abi::check(tensor.given(), ACLNN_ERR_PARAM_NULLPTR, tensor.name, " is null, but ", why);
}

/// A tensor that is pooled along its last `dims` dimensions.
void check_pooled(const Bound& tensor, size_t dims) {
  check_type(tensor, ops::kAllFloats);
  const View& view = tensor.view();
  check((view.sizes.size() == dims + 1 || view.sizes.size() == dims + 2) && view.elements() != 0, tensor.name,
        " has shape ", Listed{view.sizes}, "; ", dims + 1, " or ", dims + 2,
        " dimensions and at least one element are accepted");
}

std::vector<int64_t> pooled_sizes(const View& x, size_t dims) {
  return {x.sizes.end() - static_cast<ptrdiff_t>(dims), x.sizes.end()};
}

/// Kernel sizes, strides, paddings, dilations where there are some, and ceilMode, from argument `first` on.
ops::Pool windows(const Call& call, size_t first, bool has_dilation, const Bound& self, size_t dims) {
  const size_t count = has_dilation ? 4 : 3;
  ops::PoolWindows windows;
  windows.rounds_up = std::get<bool>(call[first + count].value);
  for (size_t i = 0; i < count; ++i)
    windows.numbers[i] = std::get<std::vector<int64_t>>(call[first + i].value);
  return *ops::windowed_pool(
      pooled_sizes(self.view(), dims), windows, [&](size_t number, const std::string& accepted) {
        if (number == windows.numbers.size())
          check(false, self.name, " has shape ", Listed{self.view().sizes}, "; ", accepted, " accepted");
        check(false, call[first + number].name, " is ", Listed{windows.numbers[number]}, "; ", accepted,
              " accepted");
      });
}

/// Of means: countIncludePad and divisorOverride, from argument `first` on.
void set_divisor(ops::Pool& pool, const Call& call, size_t first) {
  pool.counts_padding = std::get<bool>(call[first].value);
  const auto divisor = std::get<int64_t>(call[first + 1].value);
  if (divisor != 0) pool.divisor = static_cast<double>(divisor);
}

std::vector<int64_t> result_sizes(const View& x, const ops::Pool& pool, size_t dims) {
  std::vector<int64_t> sizes(x.sizes.begin(), x.sizes.end() - static_cast<ptrdiff_t>(dims));
  for (size_t d = 3 - dims; d < 3; ++d) sizes.push_back(pool.axes[d].positions);
  return sizes;
}

/// How many dimensions an operator pools, by its name.
size_t dims_of(const Call& call) {
  return std::string_view(call.op.function).find("3d") == std::string_view::npos ? 2 : 3;
}

void check_indices(const Bound& indices, std::span<const int64_t> sizes) {
  check_type(indices, tile::DTypes(tile::DType::kI32, tile::DType::kI64));
  check_shape(indices, sizes);
}

Launches maxima(const ops::Pool& pool, const Bound& self, const Bound& out, const Bound& indices,
                size_t dims) {
  const auto sizes = result_sizes(self.view(), pool, dims);
  check_type(out, tile::DTypes(self.view().dtype));
  check_shape(out, sizes);
  check_indices(indices, sizes);
  return prepare_max_pool(pool, ops::pool_images(self.view(), dims), ops::pool_images(out.view(), dims),
                          ops::pool_images(indices.view(), dims));
}

Launches gradients_of_maxima(const ops::Pool& pool, const Bound& grad, const Bound& self,
                             const Bound& indices, const Bound& out, size_t dims, Workspace& workspace) {
  const auto sizes = result_sizes(self.view(), pool, dims);
  const tile::DTypes type(self.view().dtype);
  check_type(grad, type);
  check_shape(grad, sizes);
  check_indices(indices, sizes);
  check_type(out, type);
  check_shape(out, self.view().sizes);
  return prepare_max_pool_backward(ops::pool_images(grad.view(), dims),
                                   ops::pool_images(indices.view(), dims), ops::pool_images(out.view(), dims),
                                   workspace.taker());
}

Launches means(const ops::Pool& pool, const Bound& self, const Bound& out, size_t dims) {
  check_type(out, tile::DTypes(self.view().dtype));
  check_shape(out, result_sizes(self.view(), pool, dims));
  return prepare_average_pool(pool, ops::pool_images(self.view(), dims), ops::pool_images(out.view(), dims));
}

Launches gradients_of_means(const ops::Pool& pool, const Bound& grad, const Bound& self, const Bound& out,
                            size_t dims, Workspace& workspace) {
  const tile::DTypes type(self.view().dtype);
  check_type(grad, type);
  check_shape(grad, result_sizes(self.view(), pool, dims));
  check_type(out, type);
  check_shape(out, self.view().sizes);
  return prepare_average_pool_backward(pool, ops::pool_images(grad.view(), dims),
                                       ops::pool_images(out.view(), dims), workspace.taker());
}

/// As many positions as `sizes` has last.
ops::Pool adaptive(const Bound& self, std::span<const int64_t> sizes, const char* name, size_t dims) {
  check(sizes.size() >= dims && std::ranges::all_of(sizes, [](int64_t n) { return n >= 1; }), name, " is ",
        Listed{sizes}, "; ", dims, " numbers, 1 or more, are accepted");
  return ops::adaptive_pool(pooled_sizes(self.view(), dims), sizes.last(dims));
}
ops::Pool adaptive(const Bound& self, const Bound& output_size, size_t dims) {
  const auto& sizes = std::get<std::vector<int64_t>>(output_size.value);
  check(sizes.size() == dims, output_size.name, " has ", sizes.size(), " numbers; ", dims, " are accepted");
  return adaptive(self, sizes, output_size.name, dims);
}

}  // namespace

Launches plan_batch_norm(const Call& call, Workspace& workspace) {
  const Bound &input = call[0], &mean = call[3], &variance = call[4], &output = call[8], &save_mean = call[9],
              &save_factor = call[10];
  const bool training = std::get<bool>(call[5].value);
  const double eps = std::get<double>(call[7].value);
  check_normalized(input, {&output}, {&call[1], &call[2], &mean, &variance});
  check(mean.given() == variance.given(), mean.name, " and ", variance.name,
        " must both be null, or neither of them");
  const ops::TakeMemory take = workspace.taker();
  Launches launches;
  ops::BatchNorm norm = {.x = input.view(),
                         .y = output.view(),
                         .weight = view_where_given(call[1]),
                         .bias = view_where_given(call[2]),
                         .mean = {},
                         .factor = {},
                         .training = {}};
  if (training) {
    for (const Bound* saved : {&save_mean, &save_factor}) {
      check_given(*saved, "training is true");
      check_normalized(input, {}, {saved});
    }
    norm.mean = save_mean.view();
    norm.factor = save_factor.view();
    norm.training = {view_where_given(mean), view_where_given(variance), std::get<double>(call[6].value),
                     eps};
  } else {
    check_given(mean, "training is false");
    norm.mean = mean.view();
    norm.factor = batch_norm_factor(variance.view(), eps, take, launches);
  }
  for (ops::Launch& launch : prepare(norm, take)) launches.push_back(std::move(launch));
  return launches;
}

Launches plan_batch_norm_backward(const Call& call, Workspace& workspace) {
  const Bound &grad = call[0], &input = call[1], &weight = call[2];
  const bool training = std::get<bool>(call[7].value);
  const Bound &mean = call[training ? 5 : 3], &spread = call[training ? 6 : 4];
  const auto& mask = std::get<std::vector<bool>>(call[9].value);
  check(mask.size() == 3, call[9].name, " has ", mask.size(), " values; 3 are accepted");
  for (size_t i = 0; i < 3; ++i)
    abi::check(!mask[i] || call[10 + i].given(), ACLNN_ERR_PARAM_NULLPTR, call[10 + i].name, " is null, but ",
               call[9].name, "[", i, "] is true");
  for (const Bound* given : {&mean, &spread})
    check_given(*given, training ? "training is true" : "training is false");
  check_normalized(input, {&grad}, {&weight, &mean, &spread});
  if (mask[0]) check_normalized(input, {&call[10]}, {});
  for (size_t i = 1; i < 3; ++i)
    if (mask[i]) check_normalized(input, {}, {&call[10 + i]});
  const auto wanted = [&](size_t i) { return mask[i] ? view_where_given(call[10 + i]) : std::nullopt; };
  const ops::TakeMemory take = workspace.taker();
  Launches launches;
  const View factor = training
                          ? spread.view()
                          : batch_norm_factor(spread.view(), std::get<double>(call[8].value), take, launches);
  for (ops::Launch& launch : prepare(ops::BatchNormBackward{.grad = grad.view(),
                                                            .x = input.view(),
                                                            .mean = mean.view(),
                                                            .factor = factor,
                                                            .weight = view_where_given(weight),
                                                            .training = training,
                                                            .of_x = wanted(0),
                                                            .of_weight = wanted(1),
                                                            .of_bias = wanted(2)},
                                     take))
    launches.push_back(std::move(launch));
  return launches;
}

Launches plan_max_pool(const Call& call, Workspace&) {
  const size_t dims = dims_of(call);
  check_pooled(call[0], dims);
  return maxima(windows(call, 1, true, call[0], dims), call[0], call[6], call[7], dims);
}

Launches plan_max_pool_backward(const Call& call, Workspace& workspace) {
  const size_t dims = dims_of(call);
  check_pooled(call[1], dims);
  return gradients_of_maxima(windows(call, 3, true, call[1], dims), call[0], call[1], call[2], call[8], dims,
                             workspace);
}

Launches plan_average_pool(const Call& call, Workspace&) {
  const size_t dims = dims_of(call);
  check_pooled(call[0], dims);
  ops::Pool pool = windows(call, 1, false, call[0], dims);
  set_divisor(pool, call, 5);
  return means(pool, call[0], call.arguments.back(), dims);
}

Launches plan_average_pool_backward(const Call& call, Workspace& workspace) {
  const size_t dims = dims_of(call);
  check_pooled(call[1], dims);
  ops::Pool pool = windows(call, 2, false, call[1], dims);
  set_divisor(pool, call, 6);
  return gradients_of_means(pool, call[0], call[1], call.arguments.back(), dims, workspace);
}

Launches plan_adaptive_max_pool(const Call& call, Workspace&) {
  const size_t dims = dims_of(call);
  check_pooled(call[0], dims);
  return maxima(adaptive(call[0], call[1], dims), call[0], call[2], call[3], dims);
}

Launches plan_adaptive_max_pool_backward(const Call& call, Workspace& workspace) {
  const size_t dims = dims_of(call);
  check_pooled(call[1], dims);
  const ops::Pool pool = adaptive(call[1], call[0].view().sizes, call[0].name, dims);
  return gradients_of_maxima(pool, call[0], call[1], call[2], call[3], dims, workspace);
}

Launches plan_adaptive_average_pool(const Call& call, Workspace&) {
  const size_t dims = dims_of(call);
  check_pooled(call[0], dims);
  return means(adaptive(call[0], call[1], dims), call[0], call[2], dims);
}

Launches plan_adaptive_average_pool_backward(const Call& call, Workspace& workspace) {
  const size_t dims = dims_of(call);
  check_pooled(call[1], dims);
  const ops::Pool pool = adaptive(call[1], call[0].view().sizes, call[0].name, dims);
  return gradients_of_means(pool, call[0], call[1], call[2], dims, workspace);
}

}  // namespace anynpu::aclnn
