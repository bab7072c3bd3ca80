#include "ops/nn/batch_norm.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <utility>
#include <vector>

#include "torch_npu/csrc/dtypes.h"
#include "torch_npu/csrc/errors.h"
#include "torch_npu/csrc/formats.h"
#include "torch_npu/csrc/native_op.h"

namespace torch_npu {
namespace {

using anynpu::ops::View;
using at::Tensor;

Tensor optional_tensor(const c10::IValue& given) { return given.isNone() ? Tensor() : given.toTensor(); }

std::optional<View> view_where_defined(const Tensor& tensor) {
  return tensor.defined() ? std::optional(view_of(tensor)) : std::nullopt;
}

/// Whether kernels of our own normalize `x`: floats, with elements.
bool is_normalized(const Tensor& x) {
  const auto dtype = dtype_of(x.scalar_type());
  return dtype && anynpu::ops::kAllFloats.contains(*dtype) && x.dim() >= 2 && x.numel() != 0;
}

/// The type of what is of channels, as on the CPU: that of x, or f32 where x is of halves. Nothing where a
/// tensor that is given has another type or size, or is elsewhere.
std::optional<c10::ScalarType> type_of_channels(const Tensor& x, std::initializer_list<Tensor> given) {
  std::optional<c10::ScalarType> type;
  for (const Tensor& tensor : given) {
    if (!tensor.defined()) continue;
    if (tensor.dim() != 1 || tensor.size(0) != x.size(1) || tensor.device() != x.device())
      return std::nullopt;
    if (type && *type != tensor.scalar_type()) return std::nullopt;
    type = tensor.scalar_type();
  }
  if (!type || *type == x.scalar_type()) return x.scalar_type();
  return at::isReducedFloatingType(x.scalar_type()) && *type == at::kFloat ? type : std::nullopt;
}

Tensor of_channels(const Tensor& x, c10::ScalarType type) {
  return at::empty({x.size(1)}, x.options().dtype(type));
}

/// The launches of a call, and what memory they take beside its tensors.
class CallBuilder {
 public:
  CallBuilder(const Tensor& x, OpCounter& counter)
      : x_(x), counter_(counter), temporaries_(x), take_(temporaries_.take()) {}

  View factor(const Tensor& variance, double eps) {
    return npu_call([&] { return batch_norm_factor(view_of(variance), eps, take_, launches_); });
  }
  template <class Call>
  void enqueue(const Call& call) {
    for (auto& launch : npu_call([&] { return prepare(call, take_); }))
      launches_.push_back(std::move(launch));
    enqueue_native(std::move(launches_), x_, counter_);
  }

 private:
  const Tensor& x_;
  OpCounter& counter_;
  Temporaries temporaries_;
  const anynpu::ops::TakeMemory take_;
  std::vector<anynpu::ops::Launch> launches_;
};

/// Some channels of a call's images, and of what is of channels.
class Channels {
 public:
  /// All, where the images are plain; else as many whole blocks as there are, and what is left.
  static std::vector<Channels> of(const Tensor& x) {
    if (!is_formatted(x)) return {Channels(0, -1)};
    const int64_t whole = x.size(1) / Format::kBlock, rest = x.size(1) % Format::kBlock;
    std::vector<Channels> all;
    if (whole != 0) all.push_back(Channels(0, whole));
    if (rest != 0) all.push_back(Channels(whole * Format::kBlock, 0, rest));
    return all;
  }

  Tensor images(const Tensor& tensor, bool written = false) const {
    if (blocks_ < 0 || !tensor.defined()) return tensor;
    const Tensor blocks = written ? blocks_to_write(tensor) : blocks_of(tensor);
    return blocks_ != 0
               ? blocks.narrow(1, 0, blocks_).permute({0, 1, 4, 2, 3})
               : blocks.select(1, first_ / Format::kBlock).narrow(3, 0, count_).permute({0, 3, 1, 2});
  }
  Tensor of_channels(const Tensor& tensor) const {
    if (blocks_ < 0 || !tensor.defined()) return tensor;
    return blocks_ != 0 ? tensor.narrow(0, 0, blocks_ * Format::kBlock).view({blocks_, Format::kBlock})
                        : tensor.narrow(0, first_, count_);
  }

 private:
  Channels(int64_t first, int64_t blocks, int64_t count = 0)
      : first_(first), blocks_(blocks), count_(count) {}

  int64_t first_, blocks_, count_;  // blocks: -1: all channels, of plain images; 0: `count` from `first` on
};

/// Whether those of images are in NC1HWC0 and nothing else is in a format.
bool are_blocks(std::initializer_list<Tensor> images, std::initializer_list<Tensor> of_channels) {
  return std::ranges::all_of(images,
                             [](const Tensor& image) {
                               return !image.defined() || (is_whole(image) && format_of(image) == &kNC1HWC0);
                             }) &&
         std::ranges::none_of(of_channels, [](const Tensor& tensor) { return is_formatted(tensor); });
}

/// What an overload takes beside input, weight, bias, momentum and eps, and returns beside the result, mean
/// and factor.
struct Overload {
  const char* name;
  bool running = true;                ///< running mean and variance
  std::optional<bool> training = {};  ///< takes it where it is not known
  bool outs = false;
  bool reserve = false;  ///< an empty tensor
};

constexpr Overload kForward[] = {
    {.name = "native_batch_norm"},
    {.name = "native_batch_norm.out", .outs = true},
    {.name = "_native_batch_norm_legit"},
    {.name = "_native_batch_norm_legit.out", .outs = true},
    {.name = "_native_batch_norm_legit.no_stats", .running = false},
    {.name = "_native_batch_norm_legit.no_stats_out", .running = false, .outs = true},
    {.name = "_batch_norm_with_update", .training = true, .reserve = true},
    {.name = "_batch_norm_no_update", .training = false, .reserve = true},
};

struct Given {
  Tensor x, weight, bias, running_mean, running_variance;
  bool training;
  double momentum, eps;
  std::vector<Tensor> outs;

  Given(Arguments arguments, const Overload& overload)
      : x(arguments[0].toTensor()),
        weight(optional_tensor(arguments[1])),
        bias(optional_tensor(arguments[2])) {
    size_t next = 3;
    if (overload.running) {
      running_mean = optional_tensor(arguments[next++]);
      running_variance = optional_tensor(arguments[next++]);
    }
    training = overload.training ? *overload.training : arguments[next++].toBool();
    momentum = arguments[next++].toDouble();
    eps = arguments[next++].toDouble();
    for (; next < arguments.size(); ++next) outs.push_back(arguments[next].toTensor());
  }

  /// The result, and in training mean and factor: new ones, or `outs` where they take them.
  std::optional<std::vector<Tensor>> results(c10::ScalarType type) const {
    if (outs.empty())
      return std::vector{at::empty_like(x, x.suggest_memory_format()),
                         training ? of_channels(x, type) : at::empty({0}, x.options().dtype(type)),
                         training ? of_channels(x, type) : at::empty({0}, x.options().dtype(type))};
    std::vector<Tensor> beside = {x};
    for (const Tensor& tensor : {weight, bias, running_mean, running_variance})
      if (tensor.defined()) beside.push_back(tensor);
    if (!takes_result(outs[0], x.sizes(), x.scalar_type(), beside)) return std::nullopt;
    for (size_t i = 1; i < outs.size() && training; ++i) {
      beside.push_back(outs[i - 1]);
      if (!takes_result(outs[i], {x.size(1)}, type, beside)) return std::nullopt;
    }
    return outs;
  }

  /// Whether what is moved in training has each element once.
  bool moves_apart() const {
    return std::ranges::all_of(
        std::initializer_list{running_mean, running_variance}, [](const Tensor& moved) {
          return !moved.defined() || at::has_internal_overlap(moved) == at::MemOverlap::No;
        });
  }
};

Results batch_norm(const Overload& overload, Arguments arguments, OpCounter& counter) {
  const Given given(arguments, overload);
  const auto& [x, weight, bias, running_mean, running_variance, training, momentum, eps, _] = given;
  if (!is_normalized(x) || running_mean.defined() != running_variance.defined() || !given.moves_apart() ||
      (!training && !running_mean.defined()))
    return std::nullopt;
  const auto type = type_of_channels(x, {weight, bias, running_mean, running_variance});
  if (!type) return std::nullopt;
  const auto results = given.results(*type);
  if (!results) return std::nullopt;
  if (is_formatted(x) && !are_blocks({x, results->front()}, {weight, bias, running_mean, running_variance,
                                                             (*results)[1], (*results)[2]}))
    return std::nullopt;
  for (const Channels& some : Channels::of(x)) {
    const auto view = [&](const Tensor& tensor) { return view_where_defined(some.of_channels(tensor)); };
    CallBuilder builder(x, counter);
    anynpu::ops::BatchNorm call = {
        .x = view_of(some.images(x)),
        .y = view_of(some.images(results->front(), true)),
        .weight = view(weight),
        .bias = view(bias),
        .mean = *view(training ? (*results)[1] : running_mean),
        .factor = training ? *view((*results)[2]) : builder.factor(some.of_channels(running_variance), eps),
        .training = {}};
    if (training) call.training = {view(running_mean), view(running_variance), momentum, eps};
    builder.enqueue(call);
  }
  Results all(std::in_place, results->begin(), results->end());
  if (overload.reserve) all->push_back(at::empty({0}, x.options().dtype(at::kByte)));
  return all;
}

/// (grad_out, input, weight, running_mean, running_var, save_mean, save_invstd, train, eps, output_mask, ...)
Results batch_norm_backward(Arguments arguments, OpCounter& counter) {
  Tensor grad = arguments[0].toTensor();
  const Tensor &x = arguments[1].toTensor(), weight = optional_tensor(arguments[2]);
  const bool training = arguments[7].toBool();
  const Tensor mean = optional_tensor(arguments[training ? 5 : 3]),
               spread = optional_tensor(arguments[training ? 6 : 4]);  // factor, or variance
  if (!is_normalized(x) || grad.sizes() != x.sizes() || grad.scalar_type() != x.scalar_type() ||
      grad.device() != x.device() || !mean.defined() || !spread.defined())
    return std::nullopt;
  const auto type = type_of_channels(x, {weight, mean, spread});
  if (!type) return std::nullopt;
  const auto mask = arguments[9].toBoolList();
  const Tensor of_x = mask[0] ? at::empty_like(x, x.suggest_memory_format()) : Tensor(),
               of_weight = mask[1] ? of_channels(x, *type) : Tensor(),
               of_bias = mask[2] ? of_channels(x, *type) : Tensor();
  if (is_formatted(x)) {
    if (!are_blocks({x}, {weight, mean, spread})) return std::nullopt;
    if (!is_whole(grad) || format_of(grad) != &kNC1HWC0) grad = cast_to(kNC1HWC0, grad, counter);
  }
  for (const Channels& some : Channels::of(x)) {
    const auto view = [&](const Tensor& tensor) { return view_where_defined(some.of_channels(tensor)); };
    CallBuilder builder(x, counter);
    builder.enqueue(anynpu::ops::BatchNormBackward{
        .grad = view_of(some.images(grad)),
        .x = view_of(some.images(x)),
        .mean = *view(mean),
        .factor =
            training ? *view(spread) : builder.factor(some.of_channels(spread), arguments[8].toDouble()),
        .weight = view(weight),
        .training = training,
        .of_x = view_where_defined(some.images(of_x, true)),
        .of_weight = view(of_weight),
        .of_bias = view(of_bias)});
  }
  return {{of_x, of_weight, of_bias}};
}

/// Adds a kernel that takes calls whose argument `images` is in NC1HWC0, too.
template <class Kernel>
void add(torch::Library& aten, const char* name, Rows rows, size_t images, Kernel kernel) {
  add_native(aten, name, std::move(rows), kernel, [=](Arguments arguments, OpCounter& counter) -> Results {
    if (!is_whole(arguments[images].toTensor())) return std::nullopt;
    return kernel(arguments, counter);
  });
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  for (const Overload& overload : kForward)
    add(m, overload.name, {"BatchNorm", "BatchNormMoments", "BatchNormStatistics", "BatchNormFactor"}, 0,
        [&overload](Arguments arguments, OpCounter& counter) {
          return batch_norm(overload, arguments, counter);
        });
  for (const char* name : {"native_batch_norm_backward", "batch_norm_backward"})
    add(m, name,
        {"BatchNormBackward", "BatchNormInferenceBackward", "BatchNormGradients", "BatchNormBackwardAffine",
         "BatchNormFactor"},
        1, batch_norm_backward);
}

}  // namespace
}  // namespace torch_npu
