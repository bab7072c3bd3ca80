#include "ops/cube/patches.h"

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <utility>

#include "ops/grid.h"
#include "ops/kernel_table.h"

namespace anynpu::ops {
namespace {

using tile::Builder;
using tile::Expr;
using tile::Index;
using tile::Place;

constexpr int64_t kStagedChannels = 64;  ///< that a block copies, at most

/// Elements along a dimension that are under some tap, and any between them and the image's start.
struct Extent {
  int64_t first, count;  ///< `first` is not positive
};
Extent extent_of(std::span<const Windows> windows, size_t dim) {
  int64_t first = 0, last = -1;
  for (const Windows& window : windows) {
    if (window[dim].last() < window[dim].first()) continue;
    const bool none = last < first;
    first = none ? window[dim].first() : std::min(first, window[dim].first());
    last = none ? window[dim].last() : std::max(last, window[dim].last());
  }
  first = std::min<int64_t>(first, 0);
  return {first, last - first + 1};
}

void shift(View& image, size_t dim, int64_t by) {
  image.data =
      static_cast<char*>(image.data) + by * image.strides[dim] * static_cast<int64_t>(size_of(image.dtype));
}

/// Of a window with one tap the positions are all that there is of the image.
void slice(View& image, Windows& windows) {
  for (size_t d = 0; d < 3; ++d) {
    Window& window = windows[d];
    if (window.taps != 1 || window.positions == 0 || window.first() < 0 ||
        window.last() >= image.sizes[3 + d])
      continue;
    shift(image, 3 + d, window.origin);
    image.strides[3 + d] *= window.stride;
    image.sizes[3 + d] = window.positions;
    window = {.positions = window.positions};
  }
}

/// Dimensions of which a window has all elements, and one tap, become one.
void merge(View& image, Windows& windows) {
  const auto is_whole = [&](size_t d) {
    const Window& window = windows[d];
    return window.taps == 1 && window.stride == 1 && window.origin == 0 &&
           window.positions == image.sizes[3 + d];
  };
  for (size_t d = 2; d-- > 0;) {
    if (!is_whole(d) || !is_whole(2)) return;
    if (image.sizes[5] == 1) image.strides[5] = image.strides[3 + d];
    if (image.sizes[3 + d] != 1 && image.strides[3 + d] != image.strides[5] * image.sizes[5]) return;
    image.sizes[5] *= image.sizes[3 + d];
    image.sizes[3 + d] = 1;
    windows[2].positions *= std::exchange(windows[d].positions, 1);
  }
}

/// How an image lies: which neighbours are side by side.
enum class Lines : uint8_t { kAlongWidth, kEverySecond, kAlongChannels, kApart };

Lines lines_of(const View& image, int64_t stride) {
  if (image.strides[5] * stride == 1) return Lines::kAlongWidth;
  if (image.strides[5] * stride == 2) return Lines::kEverySecond;
  return image.strides[2] == 1 ? Lines::kAlongChannels : Lines::kApart;
}

/// A copy of an image with zeros around it, its columns apart by their number modulo `phases`. A block has a
/// row: some of its channels, and all columns.
tile::Kernel stage_kernel(DType from, DType to, Lines lines) {
  Builder builder("Patches");
  const Index groups = builder.size("groups"), batch = builder.size("batch"),
              channels = builder.size("channels");
  const Index sizes[] = {builder.size("depth"), builder.size("height"), builder.size("width")};
  const Index before[] = {builder.size("before_depth"), builder.size("before_height"),
                          builder.size("before_width")};  // zeros
  const Index depth = builder.size("to_depth"), height = builder.size("to_height"),
              phases = builder.size("phases"), width = builder.size("to_width");
  const Index parts = ceil_div(channels, Index(kStagedChannels));
  builder.grid(groups * batch * depth * height * parts);
  const Index channel = Index::block() % parts * kStagedChannels, line = Index::block() / parts,
              h = line % height, d = line / height % depth, n = line / height / depth % batch,
              g = line / height / depth / batch, here = min(kStagedChannels, channels - channel);
  // Columns are places in two dimensions: where they start, and how far from there in steps of `phases`.
  const bool transposed = lines == Lines::kAlongChannels;
  std::vector<Index> dims = {groups, batch, sizes[0], sizes[1], sizes[2], channels, sizes[2]};
  std::vector<std::optional<int64_t>> strides(7);
  if (transposed) std::swap(dims[5], dims[6]);
  if (lines != Lines::kApart) strides[6] = lines == Lines::kEverySecond ? 2 : 1;
  const int image = builder.buffer("image", from, dims, strides),
            staged = builder.buffer("staged", to, {groups, batch, depth, height, phases, channels, width});

  const Index from_d = d - before[0], from_h = h - before[1];
  const auto is_inside = [](const Index& at, const Index& size) {  // 1 or 0
    return max(0, min(1, min(at + 1, size - at)));
  };
  const Index inside = is_inside(from_d, sizes[0]) * is_inside(from_h, sizes[1]);
  builder.loop(0, phases, 1, {}, [&](const Index& phase, const auto&) -> std::vector<Expr> {
    const Index offset = phase - before[2];
    const Index begin = min(width, max(0, ceil_div(before[2] - phase, phases))),
                end = max(begin, min(width, ceil_div(sizes[2] - offset, phases)) * inside);
    const auto at = [&](const Index& column) {
      return std::vector<Place>{g, n, d, h, phase, channel, column};
    };
    const auto clear = [&](const Index& first, const Index& last) {
      builder.store(staged, at(first), builder.broadcast(builder.constant(to, 0.0), here, last - first));
    };
    clear(0, begin);
    clear(end, width);
    const Index count = end - begin;
    const auto elements = [&](const Index& rows, const Index& cols) {
      std::vector<Place> from_there = {g, n, from_d, from_h, offset + begin * phases, channel, 0};
      if (transposed) std::swap(from_there[5], from_there[6]);
      return converted(builder.load(image, std::move(from_there), rows, cols), to);
    };
    builder.store(
        staged, at(begin),
        transposed ? builder.op(tile::Opcode::kTranspose, {elements(count, here)}) : elements(here, count));
    return {};
  });
  return builder.finish();
}

Launch stage(const View& image, const Extent (&extents)[3], const View& staged) {
  static KernelTable& table = *new KernelTable;  // outlives every thread
  const int64_t phases = staged.sizes[4], width = staged.sizes[6];
  const Lines lines = lines_of(image, phases);
  jit::PackedArguments arguments;
  for (size_t d = 0; d < 6; ++d) arguments.size(image.sizes[d]);
  for (const Extent& extent : extents) arguments.size(-extent.first);
  for (const int64_t size : {staged.sizes[2], staged.sizes[3], phases, width}) arguments.size(size);
  const auto& from = image.strides;
  std::vector<int64_t> strides = {from[0], from[1], from[3], from[4], from[5], from[2], from[5] * phases};
  if (lines == Lines::kAlongChannels) std::swap(strides[5], strides[6]);
  arguments.buffer(image.data, strides);
  arguments.buffer(staged.data, staged.strides);
  KernelTable::Key key;
  key.add(image.dtype);
  key.add(staged.dtype);
  key.add(lines);
  return {table.find(key, [&] { return stage_kernel(image.dtype, staged.dtype, lines); }), arguments,
          staged.sizes[0] * staged.sizes[1] * staged.sizes[2] * staged.sizes[3] *
              ((staged.sizes[5] + kStagedChannels - 1) / kStagedChannels),
          static_cast<double>(staged.elements() * 2) * static_cast<double>(size_of(staged.dtype))};
}

/// Whether copies of patches can go along the width of the image itself.
bool is_plain(const View& image, const Extent (&extents)[3], int64_t stride) {
  if (stride != 1 || (image.strides[5] != 1 && image.sizes[5] != 1)) return false;
  for (size_t d = 0; d < 3; ++d)
    if (extents[d].first < 0 || extents[d].first + extents[d].count > image.sizes[3 + d]) return false;
  return true;
}

}  // namespace

int64_t Window::first() const { return origin + std::min<int64_t>(0, (taps - 1) * step); }
int64_t Window::last() const {
  if (positions == 0 || taps == 0) return first() - 1;
  return (positions - 1) * stride + origin + std::max<int64_t>(0, (taps - 1) * step);
}
bool Patches::goes_back() const {
  return std::ranges::any_of(windows, [](const Window& window) { return window.step < 0; });
}

int64_t positions_of(const Windows& windows) {
  return windows[0].positions * windows[1].positions * windows[2].positions;
}
int64_t taps_of(const Windows& windows) { return windows[0].taps * windows[1].taps * windows[2].taps; }

std::vector<Patches> patches_of(const View& given, std::span<const Windows> windows, DType dtype,
                                const TakeMemory& take, std::vector<Launch>& launches) {
  View image = given;
  std::vector<Windows> shifted(windows.begin(), windows.end());
  if (shifted.size() == 1) {
    slice(image, shifted[0]);
    merge(image, shifted[0]);
  }
  Extent extents[3];
  for (size_t d = 0; d < 3; ++d) extents[d] = extent_of(shifted, d);
  const int64_t stride = shifted[0][2].stride;
  View lines = {image.dtype, image.data, {}, {}};
  for (const size_t d : {0, 1, 3, 4, 5, 2, 5}) {
    lines.sizes.push_back(image.sizes[d]);
    lines.strides.push_back(image.strides[d]);
  }
  lines.sizes[4] = lines.strides[4] = 1;
  const bool plain = is_plain(image, extents, stride);
  if (!plain) {
    const int64_t width = (extents[2].count + stride - 1) / stride;
    lines = temporary(take, dtype,
                      {image.sizes[0], image.sizes[1], extents[0].count, extents[1].count, stride,
                       image.sizes[2], round_up(width + kPatchSlack - 1, kPatchSlack)});
    if (lines.elements() != 0) launches.push_back(stage(image, extents, lines));
  }
  std::vector<Patches> all;
  for (Windows& each : shifted) {
    for (size_t d = 0; d < 3 && !plain; ++d) each[d].origin -= extents[d].first;
    all.push_back({lines, each, !plain});
  }
  return all;
}

PatchReader::PatchReader(Builder& builder, const Patches& patches)
    : builder_(builder), has_slack_(patches.has_slack), goes_back_(patches.goes_back()) {
  groups_ = builder.size("groups");
  batch_ = builder.size("batch");
  const Index depth = builder.size("depth"), height = builder.size("height"), phases = builder.size("phases");
  channels_ = builder.size("channels");
  const Index width = builder.size("width");
  constexpr std::string_view kNames[] = {"depth", "height", "width"};
  for (size_t d = 0; d < 3; ++d) {
    const auto size = [&](const char* what) { return builder.size(concat(what, "_", kNames[d])); };
    Axis& axis = axes_[d];
    axis.positions = size("positions");
    axis.taps = size("taps");
    axis.stride = size("stride");
    axis.step = size("step");
    axis.origin = size("origin");
  }
  buffer_ = builder.buffer("image", patches.image.dtype,
                           {groups_, batch_, depth, height, phases, channels_, width});
}

void PatchReader::add_sizes(jit::PackedArguments& arguments, const Patches& patches) {
  for (const int64_t size : patches.image.sizes) arguments.size(size);
  for (const Window& window : patches.windows)
    for (const int64_t size :
         {window.positions, window.taps, window.stride, std::abs(window.step), window.origin})
      arguments.size(size);
}
void PatchReader::add_buffer(jit::PackedArguments& arguments, const Patches& patches) {
  arguments.buffer(patches.image.data, patches.image.strides);
}

void PatchReader::copy(int local, const Index& group, const Index& row, const Index& rows,
                       const Index& column, const Index& columns) const {
  const auto& [z, y, x] = axes_;
  for_each_line(
      builder_, x.positions, column, columns,
      [&](const Index& line, const Index& from, const Index& elements, const Index& to) {
        const Index image = line / y.positions / z.positions,
                    at_z = line / y.positions % z.positions * z.stride, at_y = line % y.positions * y.stride;
        const Index count = has_slack_ ? ceil_div(elements, kPatchSlack) * kPatchSlack : elements;
        for_each_line(
            builder_, channels_, row, rows,
            [&](const Index& tap, const Index& channel, const Index& channels, const Index& before) {
              const auto element = [&](const Axis& axis, const Index& number) {
                const Index distance = number * axis.step;
                return goes_back_ ? axis.origin - distance : axis.origin + distance;
              };
              const Index tap_x = element(x, tap % x.taps), tap_y = element(y, tap / x.taps % y.taps),
                          tap_z = element(z, tap / x.taps / y.taps);
              const Expr patch = builder_.load(buffer_,
                                               {group, image, at_z + tap_z, at_y + tap_y, tap_x % x.stride,
                                                channel, from + tap_x / x.stride},
                                               channels, count);
              builder_.store(local, {before, to}, converted(patch, builder_.kernel().buffer(local).dtype));
            });
      });
}

void for_each_line(Builder& builder, const Index& width, const Index& first, const Index& count,
                   const std::function<void(const Index&, const Index&, const Index&, const Index&)>& body) {
  const Index end = first + count;
  builder.loop(first / width, ceil_div(end, width), 1, {},
               [&](const Index& line, const auto&) -> std::vector<Expr> {
                 const Index from = max(0, first - line * width), to = min(width, end - line * width);
                 body(line, from, to - from, line * width + from - first);
                 return {};
               });
}

}  // namespace anynpu::ops
