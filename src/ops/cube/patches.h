#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "ops/iteration.h"
#include "ops/launch.h"
#include "tile/builder.h"

namespace anynpu::ops {

/// How a window lies along a dimension of an image: at position j its tap t is over the image's element
/// j * stride + t * step + origin. Beyond its ends an image is zero.
struct Window {
  int64_t positions = 1, taps = 1;
  int64_t stride = 1;            ///< positive
  int64_t step = 1, origin = 0;  ///< the steps along all dimensions have one sign

  int64_t first() const;  ///< the least element that is under a tap
  int64_t last() const;   ///< the greatest one; less than first() where there is none
};
using Windows = std::array<Window, 3>;  ///< along depth, height and width
int64_t positions_of(const Windows& windows);
int64_t taps_of(const Windows& windows);

/// The patches of an image under a window, as a matrix for each group: a row is a tap and a channel, in this
/// order; a column is an image of the batch and a position. Dimensions are in the usual order, the last one
/// changes first.
///
/// Copies of its parts go by lines along the image's width: so that each is a plain copy, those elements are
/// side by side, and all are in the image.
struct Patches {
  View image;       ///< groups x batch x depth x height x width modulo stride x channels x width / stride
  Windows windows;  ///< over depth, height and width
  bool has_slack = false;  ///< after the last element of a line some more can be read

  int64_t rows() const { return taps_of(windows) * image.sizes[5]; }
  int64_t columns() const { return image.sizes[1] * positions_of(windows); }
  bool goes_back() const;  ///< taps are over one element after another from the end on
};

/// How many columns more than asked for a copy of patches may write.
inline constexpr int64_t kPatchSlack = 8;

/// The patches of `image`, groups x batch x channels x depth x height x width, under each of `windows`, which
/// have one stride. Where it does not lie as Patches are to, `launches` make a copy that does, in elements of
/// `dtype`.
std::vector<Patches> patches_of(const View& image, std::span<const Windows> windows, tile::DType dtype,
                                const TakeMemory& take, std::vector<Launch>& launches);

/// Patches in a kernel: declares their sizes and their buffer.
class PatchReader {
 public:
  PatchReader(tile::Builder& builder, const Patches& patches);
  static void add_sizes(jit::PackedArguments& arguments, const Patches& patches);
  static void add_buffer(jit::PackedArguments& arguments, const Patches& patches);

  const tile::Index& groups() const { return groups_; }
  const tile::Index& batch() const { return batch_; }
  const tile::Index& channels() const { return channels_; }
  const tile::Index& taps(size_t dim) const { return axes_[dim].taps; }
  tile::Index taps() const { return axes_[0].taps * axes_[1].taps * axes_[2].taps; }
  tile::Index positions() const { return axes_[0].positions * axes_[1].positions * axes_[2].positions; }

  /// Copies a part to the first rows and columns of a local buffer, converted to its type. The buffer has
  /// kPatchSlack columns more.
  void copy(int local, const tile::Index& group, const tile::Index& row, const tile::Index& rows,
            const tile::Index& column, const tile::Index& columns) const;

 private:
  struct Axis {
    tile::Index positions = 1, taps = 1, stride = 1, step = 1, origin = 0;
  };

  tile::Builder& builder_;
  const bool has_slack_, goes_back_;
  tile::Index groups_ = 1, batch_ = 1, channels_ = 1;
  std::array<Axis, 3> axes_;
  int buffer_ = -1;
};

/// Calls `body` for each line of `width` elements that has some of the elements [first, first + count), which
/// are counted through all lines: with the line, its first one of them, how many it has, and how many are
/// before.
void for_each_line(tile::Builder& builder, const tile::Index& width, const tile::Index& first,
                   const tile::Index& count,
                   const std::function<void(const tile::Index& line, const tile::Index& from,
                                            const tile::Index& elements, const tile::Index& before)>& body);

}  // namespace anynpu::ops
