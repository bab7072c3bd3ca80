#include "ops/iteration.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "base/error.h"

namespace anynpu::ops {
namespace {

constexpr size_t kMostDims = 64;  // of two elements or more: no tensor has more

}  // namespace

int64_t View::elements() const {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

std::string View::text() const {
  std::string text(tile::name_of(dtype));
  for (size_t d = 0; d < sizes.size(); ++d) text += concat(d == 0 ? "[" : ", ", sizes[d]);
  return text + "]";
}

int64_t View::span() const {
  if (elements() == 0) return 0;
  int64_t last = 0;
  for (size_t d = 0; d < sizes.size(); ++d) last += (sizes[d] - 1) * strides[d];
  return (last + 1) * static_cast<int64_t>(tile::size_of(dtype));
}

bool View::overlaps_itself() const {
  for (size_t d = 0; d < sizes.size(); ++d)
    if (sizes[d] > 1 && strides[d] == 0) return true;
  return elements() * static_cast<int64_t>(tile::size_of(dtype)) > span();
}

bool View::overlaps(const View& other) const {
  const auto dense = [](const View& view) {  // and has elements
    return view.data != nullptr && view.span() != 0 &&
           view.span() == view.elements() * static_cast<int64_t>(tile::size_of(view.dtype));
  };
  const auto start = [](const View& view) { return reinterpret_cast<uintptr_t>(view.data); };
  const auto end = [&](const View& view) { return start(view) + static_cast<uintptr_t>(view.span()); };
  return dense(*this) && dense(other) && start(*this) < end(other) && start(other) < end(*this);
}

bool View::same_as(const View& other) const {
  return dtype == other.dtype && data == other.data && sizes == other.sizes && strides == other.strides;
}

View View::expanded(std::span<const int64_t> to) const {
  View made = {dtype, data, {to.begin(), to.end()}, std::vector<int64_t>(to.size(), 0)};
  const size_t missing = to.size() - sizes.size();
  for (size_t d = 0; d < sizes.size(); ++d)
    if (sizes[d] == to[missing + d]) made.strides[missing + d] = strides[d];
  return made;
}

std::optional<View> View::merged(size_t first, size_t last) const {
  View made = {dtype, data, {sizes.begin(), sizes.begin() + static_cast<ptrdiff_t>(first)}, {}};
  made.strides.assign(strides.begin(), strides.begin() + static_cast<ptrdiff_t>(first));
  int64_t size = 1, stride = 1;
  for (size_t d = last; d-- > first;) {
    if (sizes[d] == 1) continue;
    if (size != 1 && size != 0 && sizes[d] != 0 && strides[d] != size * stride) return std::nullopt;
    if (size == 1) stride = strides[d];
    size *= sizes[d];
  }
  made.sizes.push_back(size);
  made.strides.push_back(stride);
  made.sizes.insert(made.sizes.end(), sizes.begin() + static_cast<ptrdiff_t>(last), sizes.end());
  made.strides.insert(made.strides.end(), strides.begin() + static_cast<ptrdiff_t>(last), strides.end());
  return made;
}

View contiguous(DType dtype, void* data, std::vector<int64_t> sizes) {
  View made = {dtype, data, std::move(sizes), {}};
  made.strides.resize(made.sizes.size());
  int64_t stride = 1;
  for (size_t d = made.sizes.size(); d-- > 0; stride *= std::max<int64_t>(made.sizes[d], 1))
    made.strides[d] = stride;
  return made;
}

View temporary(const TakeMemory& take, DType dtype, std::vector<int64_t> sizes) {
  View made = contiguous(dtype, nullptr, std::move(sizes));
  made.data = take(made.elements() * static_cast<int64_t>(tile::size_of(dtype)));
  return made;
}

std::optional<std::vector<int64_t>> broadcast(std::span<const int64_t> a, std::span<const int64_t> b) {
  if (a.size() < b.size()) std::swap(a, b);
  std::vector<int64_t> sizes(a.begin(), a.end());
  const size_t missing = a.size() - b.size();
  for (size_t d = 0; d < b.size(); ++d) {
    int64_t& size = sizes[missing + d];
    if (size == 1) size = b[d];
    if (b[d] != size && b[d] != 1) return std::nullopt;
  }
  return sizes;
}

Iteration::Iteration(std::span<const View> views, std::optional<size_t> along) {
  const View& first = views.front();
  const size_t most = first.sizes.size() + 2;  // dimensions, one of them at least, and the line
  numbers_.resize(most * (views.size() + 1));
  std::array<size_t, kMostDims> order;
  size_t count = 0;
  for (size_t d = first.sizes.size(); d-- > 0;) {
    if (first.sizes[d] == 1 || d == along) continue;
    require(count < order.size(), ErrorCode::kInternal, "more elements than 64 bits count");
    order[count++] = d;
  }
  const auto inner = [&](size_t a, size_t b) {
    for (const View& view : views)
      if (view.strides[a] != view.strides[b]) return view.strides[a] < view.strides[b];
    return a > b;  // as they are in contiguous memory
  };
  std::sort(order.begin(), order.begin() + static_cast<ptrdiff_t>(count), inner);
  int64_t* const sizes = numbers_.data();
  const auto strides = [&](size_t i) { return sizes + most * (i + 1); };
  const auto bytes = [&](size_t i, size_t d) {
    return views[i].strides[d] * static_cast<int64_t>(tile::size_of(views[i].dtype));
  };
  for (const size_t d : std::span(order).first(count)) {
    bool merges = dims_ != 0;
    for (size_t i = 0; merges && i < views.size(); ++i)
      merges = bytes(i, d) == strides(i)[dims_ - 1] * sizes[dims_ - 1];
    if (merges) {
      sizes[dims_ - 1] *= first.sizes[d];
      continue;
    }
    for (size_t i = 0; i < views.size(); ++i) strides(i)[dims_] = bytes(i, d);
    sizes[dims_++] = first.sizes[d];
  }
  if (dims_ == 0) sizes[dims_++] = 1;  // the strides are 0
  operands_.reserve(views.size());
  for (size_t i = 0; i < views.size(); ++i) {
    if (along) strides(i)[dims_] = bytes(i, *along);
    operands_.push_back({.dtype = views[i].dtype,
                         .data = views[i].data,
                         .strides = std::span(strides(i), dims_ + (along ? 1 : 0))});
  }
}

}  // namespace anynpu::ops
