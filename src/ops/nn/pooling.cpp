#include "ops/nn/pooling.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "ops/copy.h"
#include "ops/indexing.h"
#include "ops/nn/pooling_kernel.h"

namespace anynpu::ops {
namespace {

/// What sums of gradients are computed in: of_x itself, or where it has another type than is computed with or
/// no one stride of its planes, memory of its own.
View sums_for(const View& of_x, const TakeMemory& take) {
  View sums = of_x;
  const DType dtype = compute_type(of_x.dtype);
  if (dtype != of_x.dtype || !of_x.merged(2, of_x.sizes.size())) {
    const bool channels_last = of_x.strides[1] == 1;
    std::vector<int64_t> sizes = of_x.sizes;
    if (channels_last) std::rotate(sizes.begin() + 1, sizes.begin() + 2, sizes.end());
    sums = temporary(take, dtype, sizes);
    if (channels_last)
      for (auto* numbers : {&sums.sizes, &sums.strides})
        std::rotate(numbers->begin() + 1, numbers->end() - 1, numbers->end());
  }
  return sums;
}

void finish(const View& sums, const View& of_x, std::vector<Launch>& launches) {
  if (sums.data != of_x.data) launches.push_back(prepare_copy(of_x, sums));
}

/// Batch x channels x all others.
View planes(const View& view, const TakeMemory& take, std::vector<Launch>& launches) {
  return merged_or_copied(view, 2, view.sizes.size(), take, launches);
}

}  // namespace

int64_t pool_positions(int64_t size, const PoolAxis& axis, bool rounds_up) {
  const int64_t room = size + 2 * axis.padding - axis.dilation * (axis.taps - 1) - 1;
  int64_t count = room + (rounds_up ? axis.stride - 1 : 0);
  count = (count < 0 ? -1 : count / axis.stride) + 1;
  if (rounds_up && (count - 1) * axis.stride >= size + axis.padding) --count;
  return count;
}

std::optional<Pool> windowed_pool(std::span<const int64_t> sizes, const PoolWindows& windows,
                                  const RefusePool& refuse) {
  enum : size_t { kTaps, kStrides, kPaddings, kDilations, kImage };
  const size_t dims = sizes.size();
  auto numbers = windows.numbers;
  if (numbers[kStrides].empty()) numbers[kStrides] = numbers[kTaps];
  const auto fit = [&](size_t which, bool fits, const auto&... accepted) {
    if (!fits) refuse(which, concat(accepted...));
    return fits;
  };
  for (const size_t i : {kTaps, kStrides, kPaddings, kDilations}) {
    const int64_t least = i == kPaddings ? 0 : 1;
    if (numbers[i].size() == 1) numbers[i].resize(dims, numbers[i][0]);
    const bool fits = numbers[i].size() == dims &&
                      std::ranges::all_of(numbers[i], [&](int64_t number) { return number >= least; });
    if (!fit(i, fits, dims, " numbers, ", least, " or more, are")) return std::nullopt;
  }
  Pool pool;
  for (size_t d = 0; d < dims; ++d) {
    PoolAxis& axis = pool.axes[3 - dims + d];
    axis = {.taps = numbers[kTaps][d],
            .stride = numbers[kStrides][d],
            .padding = numbers[kPaddings][d],
            .dilation = numbers[kDilations][d]};
    axis.positions = pool_positions(sizes[d], axis, windows.rounds_up);
    if (!fit(kPaddings, axis.padding <= axis.taps / 2, "half of a window's size, ", axis.taps,
             ", or less is") ||
        !fit(kImage, axis.positions >= 1, "an image that is with its padding as large as a window is"))
      return std::nullopt;
  }
  return pool;
}

Pool adaptive_pool(std::span<const int64_t> sizes, std::span<const int64_t> positions) {
  Pool pool;
  for (size_t d = 0; d < sizes.size(); ++d) {
    const int64_t most = (sizes[d] + positions[d] - 1) / positions[d];
    pool.adaptive = pool.adaptive || sizes[d] % positions[d] != 0;
    pool.axes[3 - sizes.size() + d] = {.positions = positions[d], .taps = most, .stride = most};
  }
  return pool;
}

View pool_images(View tensor, size_t dims) {
  const auto insert = [&](size_t at) {
    tensor.sizes.insert(tensor.sizes.begin() + static_cast<ptrdiff_t>(at), 1);
    tensor.strides.insert(tensor.strides.begin() + static_cast<ptrdiff_t>(at), 0);
  };
  if (tensor.sizes.size() == dims + 1) insert(0);
  while (tensor.sizes.size() < 5) insert(2);
  return tensor;
}

std::vector<Launch> prepare_max_pool(const Pool& pool, const View& x, const View& y, const View& indices) {
  const View results[] = {y, indices};
  return {launch_pool(PoolGives::kGreatest, pool, x, results)};
}

std::vector<Launch> prepare_max_pool_backward(const View& grad, const View& indices, const View& of_x,
                                              const TakeMemory& take) {
  std::vector<Launch> launches;
  const View sums = sums_for(of_x, take);
  const View index = planes(indices, take, launches), values = planes(grad, take, launches);
  launches.push_back(prepare(IndexingCall{.op = indexing_op("ScatterAdd"),
                                          .dim = 2,
                                          .indexed = *sums.merged(2, sums.sizes.size()),
                                          .index = index,
                                          .values = values,
                                          .from_zero = true}));
  finish(sums, of_x, launches);
  return launches;
}

std::vector<Launch> prepare_average_pool(const Pool& pool, const View& x, const View& y) {
  return {launch_pool(PoolGives::kMean, pool, x, std::span(&y, 1))};
}

std::vector<Launch> prepare_average_pool_backward(const Pool& pool, const View& grad, const View& of_x,
                                                  const TakeMemory& take) {
  std::vector<Launch> launches;
  const View sums = sums_for(of_x, take);
  const Iteration iteration(std::span(&sums, 1));
  launches.push_back(prepare_copy(iteration.sizes(), iteration.operands()[0], {.dtype = sums.dtype}));
  launches.push_back(launch_pool(PoolGives::kMeanGradient, pool, sums, std::span(&grad, 1)));
  finish(sums, of_x, launches);
  return launches;
}

}  // namespace anynpu::ops
