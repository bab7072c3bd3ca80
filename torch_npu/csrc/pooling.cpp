#include "ops/nn/pooling.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "torch_npu/csrc/dtypes.h"
#include "torch_npu/csrc/errors.h"
#include "torch_npu/csrc/formats.h"
#include "torch_npu/csrc/native_op.h"

namespace torch_npu {
namespace {

using anynpu::ops::Pool;
using anynpu::ops::View;
using at::Tensor;

std::span<const int64_t> span_of(at::IntArrayRef array) { return {array.data(), array.size()}; }

View images(const Tensor& tensor, size_t dims) { return anynpu::ops::pool_images(view_of(tensor), dims); }

at::IntArrayRef pooled_sizes(const Tensor& x, size_t dims) {
  return x.sizes().slice(x.sizes().size() - dims);
}

/// Of arguments kernel_size, stride, padding, and dilation where it is given, then ceil_mode. Nothing where
/// PyTorch is to refuse them.
std::optional<Pool> windows(const Tensor& x, size_t dims, Arguments arguments, bool has_dilation) {
  const size_t count = has_dilation ? 4 : 3;
  anynpu::ops::PoolWindows windows;
  windows.rounds_up = arguments[count].toBool();
  for (size_t i = 0; i < count; ++i) windows.numbers[i] = arguments[i].toIntVector();
  return anynpu::ops::windowed_pool(span_of(pooled_sizes(x, dims)), windows, [](size_t, const auto&) {});
}

std::optional<Pool> adaptive_windows(const Tensor& x, size_t dims, at::IntArrayRef positions) {
  if (positions.size() != dims || std::ranges::any_of(positions, [](int64_t n) { return n < 1; }))
    return std::nullopt;
  return anynpu::ops::adaptive_pool(span_of(pooled_sizes(x, dims)), span_of(positions));
}

std::vector<int64_t> sizes_of_result(const Tensor& x, size_t dims, const Pool& pool) {
  std::vector<int64_t> sizes(x.sizes().begin(), x.sizes().end() - static_cast<ptrdiff_t>(dims));
  for (size_t d = 3 - dims; d < 3; ++d) sizes.push_back(pool.axes[d].positions);
  return sizes;
}

/// What an operator of ATen's is.
struct Overload {
  std::string name;
  size_t dims;
  bool greatest, adaptive, outs;

  /// Of means in ordinary windows of volumes PyTorch has no halves.
  bool has_halves() const { return dims == 2 || greatest || adaptive; }

  /// Whether kernels of our own pool `x` over its last dimensions: floats, with elements.
  bool takes(const Tensor& x) const {
    const auto dtype = dtype_of(x.scalar_type());
    const auto rank = static_cast<size_t>(x.dim());
    return dtype && (has_halves() ? anynpu::ops::kAllFloats : anynpu::tile::kFloats).contains(*dtype) &&
           (rank == dims + 1 || rank == dims + 2) && x.numel() != 0;
  }

  /// How results lie, as on the CPU.
  at::MemoryFormat format(const Tensor& x) const {
    const bool as_given = dims == 2 || (greatest && !adaptive);
    return as_given ? x.suggest_memory_format() : at::MemoryFormat::Contiguous;
  }
  /// Kernel size and what follows, or the sizes of results.
  std::optional<Pool> pool(const Tensor& x, Arguments arguments) const {
    if (adaptive) return adaptive_windows(x, dims, arguments[0].toIntVector());
    auto pool = windows(x, dims, arguments, greatest);
    if (!pool || greatest) return pool;
    pool->counts_padding = arguments[4].toBool();
    if (arguments[5].isNone()) return pool;
    const int64_t divisor = arguments[5].toInt();
    if (divisor == 0) return std::nullopt;
    pool->divisor = static_cast<double>(divisor);
    return pool;
  }
};

/// Those that are given, where they take such results beside the operands, or new ones.
std::optional<std::vector<Tensor>> results(const Overload& overload, Arguments given, at::IntArrayRef sizes,
                                           at::ArrayRef<c10::ScalarType> types, at::MemoryFormat format,
                                           std::vector<Tensor> operands) {
  std::vector<Tensor> made;
  for (size_t i = 0; i < types.size(); ++i) {
    if (!overload.outs) {
      made.push_back(at::empty(sizes, operands[0].options().dtype(types[i]).memory_format(format)));
      continue;
    }
    const Tensor& out = given[i].toTensor();
    if (!takes_result(out, sizes, types[i], operands)) return std::nullopt;
    operands.push_back(out);
    made.push_back(out);
  }
  return made;
}

bool is_alike(const Tensor& tensor, const Tensor& x, c10::ScalarType type, at::IntArrayRef sizes) {
  return tensor.sizes() == sizes && tensor.scalar_type() == type && tensor.device() == x.device();
}

/// (self, how, ..., outs)
Results pool_forward(const Overload& overload, Arguments arguments, OpCounter& counter) {
  const Tensor& x = arguments[0].toTensor();
  const size_t dims = overload.dims;
  if (!overload.takes(x) || x.numel() > std::numeric_limits<int32_t>::max()) return std::nullopt;
  const auto pool = overload.pool(x, arguments.slice(1));
  if (!pool) return std::nullopt;
  const c10::ScalarType types[] = {x.scalar_type(), at::kLong};
  const size_t count = overload.greatest ? 2 : 1;
  const at::MemoryFormat format = overload.format(x);
  if (x.dim() == 4 && dims == 3 && format == at::MemoryFormat::ChannelsLast) return std::nullopt;
  const auto made = results(overload, arguments.slice(arguments.size() - count),
                            sizes_of_result(x, dims, *pool), at::ArrayRef(types, count), format, {x});
  if (!made) return std::nullopt;
  const auto launches = [&] {
    const View from = images(x, dims), to = images(made->front(), dims);
    return overload.greatest ? prepare_max_pool(*pool, from, to, images(made->back(), dims))
                             : prepare_average_pool(*pool, from, to);
  };
  enqueue_native(npu_call(launches), x, counter);
  return Results(std::in_place, made->begin(), made->end());
}

/// (grad, self, how, ..., indices where it is of the greatest, out)
Results pool_backward(const Overload& overload, Arguments arguments, OpCounter& counter) {
  const Tensor &grad = arguments[0].toTensor(), &x = arguments[1].toTensor();
  const size_t dims = overload.dims;
  if (!overload.takes(x)) return std::nullopt;
  const bool by_indices = overload.greatest;
  std::optional<Pool> pool;
  if (overload.adaptive && overload.takes(grad) && grad.dim() == x.dim())
    pool = adaptive_windows(x, dims, pooled_sizes(grad, dims));
  if (!overload.adaptive) pool = overload.pool(x, arguments.slice(2));
  if (!pool) return std::nullopt;
  const auto sizes = sizes_of_result(x, dims, *pool);
  if (!is_alike(grad, x, x.scalar_type(), sizes)) return std::nullopt;
  std::vector<Tensor> operands = {grad, x};
  if (by_indices) {
    operands.push_back(arguments[arguments.size() - (overload.outs ? 2 : 1)].toTensor());
    if (!is_alike(operands.back(), x, at::kLong, sizes)) return std::nullopt;
  }
  const c10::ScalarType type = x.scalar_type();
  const auto made = results(overload, arguments.slice(arguments.size() - 1), x.sizes(), at::ArrayRef(type),
                            x.suggest_memory_format(), operands);
  if (!made) return std::nullopt;
  Temporaries temporaries(x);
  const auto launches = [&] {
    const View from = images(grad, dims), to = images(made->front(), dims);
    return by_indices ? prepare_max_pool_backward(from, images(operands.back(), dims), to, temporaries.take())
                      : prepare_average_pool_backward(*pool, from, to, temporaries.take());
  };
  enqueue_native(npu_call(launches), x, counter);
  return {{made->front()}};
}

/// Calls over images in NC1HWC0. Their blocks are images of 16 channels that come last, and so are those of
/// results.
Results pool_blocks(const Overload& overload, bool backward, Arguments arguments, OpCounter& counter) {
  const Tensor& x = arguments[backward ? 1 : 0].toTensor();
  if (overload.outs || overload.dims != 2 || !is_whole(x) || format_of(x) != &kNC1HWC0) return std::nullopt;
  const auto images = [&](const Tensor& tensor) {
    const bool whole = is_whole(tensor) && format_of(tensor) == &kNC1HWC0;
    return blocks_of(whole ? tensor : cast_to(kNC1HWC0, tensor, counter)).flatten(0, 1).permute({0, 3, 1, 2});
  };
  c10::SmallVector<c10::IValue, 8> taken(arguments.begin(), arguments.end());
  for (c10::IValue& value : taken) {
    if (!value.isTensor()) continue;
    const Tensor& tensor = value.toTensor();
    if (tensor.dim() != 4 || tensor.size(0) != x.size(0) || tensor.size(1) != x.size(1)) return std::nullopt;
    value = images(tensor);
  }
  Results results =
      backward ? pool_backward(overload, taken, counter) : pool_forward(overload, taken, counter);
  if (!results) return results;
  for (c10::IValue& result : *results) {
    const Tensor made = result.toTensor().permute({0, 2, 3, 1}).contiguous();
    const int64_t height = made.size(1), width = made.size(2);
    result = from_blocks(kNC1HWC0, {x.size(0), x.size(1), height, width},
                         made.view({x.size(0), -1, height, width, Format::kBlock}));
  }
  return results;
}

void add_pooling(torch::Library& aten, const Overload& overload, bool backward) {
  std::string_view row = backward ? "AveragePoolBackward" : "AveragePool";
  if (overload.greatest) row = backward ? "MaxPoolBackward" : "MaxPool";
  if (!overload.has_halves()) row = backward ? "AveragePool3dBackward" : "AveragePool3d";
  add_native(
      aten, overload.name, {row},
      [=](Arguments arguments, OpCounter& counter) {
        return backward ? pool_backward(overload, arguments, counter)
                        : pool_forward(overload, arguments, counter);
      },
      [=](Arguments arguments, OpCounter& counter) {
        return pool_blocks(overload, backward, arguments, counter);
      });
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  for (const size_t dims : {2, 3}) {
    const auto named = [&](const char* name, const char* rest = "") {
      return std::string(name) + std::to_string(dims) + "d" + rest;
    };
    const bool greatest = true, adaptive = true, outs = true;
    const Overload forward[] = {
        {named("max_pool", "_with_indices"), dims, greatest, !adaptive, !outs},
        {named("max_pool", "_with_indices.out"), dims, greatest, !adaptive, outs},
        {named("avg_pool"), dims, !greatest, !adaptive, !outs},
        {named("avg_pool", ".out"), dims, !greatest, !adaptive, outs},
        {named("adaptive_max_pool"), dims, greatest, adaptive, !outs},
        {named("adaptive_max_pool", ".out"), dims, greatest, adaptive, outs},
        {named("_adaptive_avg_pool"), dims, !greatest, adaptive, !outs},
        {named("adaptive_avg_pool", ".out"), dims, !greatest, adaptive, outs},
    };
    const Overload backward[] = {
        {named("max_pool", "_with_indices_backward"), dims, greatest, !adaptive, !outs},
        {named("max_pool", "_with_indices_backward.grad_input"), dims, greatest, !adaptive, outs},
        {named("avg_pool", "_backward"), dims, !greatest, !adaptive, !outs},
        {named("avg_pool", "_backward.grad_input"), dims, !greatest, !adaptive, outs},
        {named("adaptive_max_pool", "_backward"), dims, greatest, adaptive, !outs},
        {named("adaptive_max_pool", "_backward.grad_input"), dims, greatest, adaptive, outs},
        {named("_adaptive_avg_pool", "_backward"), dims, !greatest, adaptive, !outs},
    };
    for (const Overload& overload : forward) add_pooling(m, overload, false);
    for (const Overload& overload : backward) add_pooling(m, overload, true);
  }
  add_pooling(m, {"adaptive_avg_pool3d_backward.grad_input", 3, false, true, true}, true);
}

}  // namespace
}  // namespace torch_npu
