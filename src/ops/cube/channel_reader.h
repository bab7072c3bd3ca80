#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "ops/cube/window_axis.h"
#include "ops/launch.h"
#include "tile/builder.h"

namespace anynpu::ops {

/// Windows as a kernel is made for them, along depth, height and width.
struct WindowAxes {
  WindowAxis z, y, x;

  explicit WindowAxes(const Windows& windows) : z(windows[0]), y(windows[1]), x(windows[2]) {}
  int64_t taps() const { return int64_t{z.taps} * y.taps * x.taps; }
  void add_to(KernelTable::Key& key) const;
};

/// Calls `body` with a counter from `first` below `last`.
void for_each(tile::Builder& builder, const tile::Index& first, const tile::Index& last, int64_t step,
              const std::function<void(const tile::Index&)>& body);
/// Calls `body` with counters that have these values: long expressions are written and computed once.
void named(tile::Builder& builder, const std::vector<tile::Index>& values,
           const std::function<void(const std::vector<tile::Index>&)>& body);

/// Some channels of an image in a kernel whose columns are channels. What is under a window is read in place
/// where all of it is in the image and has the type of sums. Elsewhere it is copied, with zeros around the
/// image, to memory of a block's own, where columns are apart modulo the stride, and rows take the places of
/// those that are no longer under the window.
class ChannelReader {
 public:
  /// Of an image of groups x batch x 1 x depth x height x width. Rows of positions are taken `at_once`, or
  /// one by one where fewer are left; a block has `channels` at most.
  ChannelReader(tile::Builder& builder, const View& image, const WindowAxes& axes, int64_t at_once,
                const tile::Index& groups, const tile::Index& batch, const tile::Index& channels);
  void declare();  ///< after the kernel's buffers

  /// `before`: how many zeros are before the image along each dimension. A block has `block_cols` columns of
  /// positions at most.
  static void add_sizes(jit::PackedArguments& arguments, const View& image, const WindowAxes& axes,
                        const std::array<int64_t, 3>& before, const std::array<int64_t, 3>& positions,
                        int64_t block_cols);
  static void add_buffer(jit::PackedArguments& arguments, const View& image, const WindowAxes& axes);

  /// Some channels of an image, and some rows and columns of positions of a depth.
  struct Block {
    tile::Index n, channel, channels, z, y, rows, x, cols;
  };
  /// Some columns of positions of one row or of `at_once`, and what is under a tap at one of these rows: a
  /// tile of columns x channels.
  struct Part {
    tile::Index y;
    int64_t rows;
    tile::Index x, cols;
    std::function<tile::Expr(int64_t tap, int64_t row)> under;
  };
  using Body = std::function<void(const Part&)>;
  /// Calls `body` with parts that make up a block. The rows of a column of positions come in their order.
  void for_each_part(const Block& block, const Body& body) const;

 private:
  /// Positions whose taps are all in the image are from `inner` on, below `outer`.
  struct Dim {
    tile::Index size = 0, before = 0, inner = 0, outer = 0;
  };
  struct Distances {
    int64_t z, y, x;
  };
  Distances distances(int64_t tap) const;
  void for_each_row(const tile::Index& first, const tile::Index& last,
                    const std::function<void(const tile::Index&, int64_t)>& body) const;
  void take_band(const Block& block, const tile::Index& band, const std::vector<tile::Index>& inner,
                 const Body& body) const;
  void take_in_place(const Block& block, const tile::Index& top, const tile::Index& bottom,
                     const tile::Index& col, const tile::Index& cols, const Body& body) const;
  void take_copied(const Block& block, const tile::Index& top, const tile::Index& bottom,
                   const tile::Index& col, const tile::Index& cols, const Body& body) const;
  bool is_used(int64_t u) const;
  void copy(const Block& block, const tile::Index& top, const tile::Index& row, int64_t k, int64_t u,
            const tile::Index& col, const tile::Index& cols) const;

  tile::Builder& builder_;
  const WindowAxes axes_;
  const tile::DType dtype_;  ///< of sums
  const bool in_place_;      ///< some are read there
  const int64_t at_once_, places_;
  const tile::Index channels_;
  Dim z_, y_, x_;
  tile::Index most_cols_ = 0;
  int image_ = -1, copy_ = -1;
};

}  // namespace anynpu::ops
