#include "ops/cube/gemm.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "base/error.h"
#include "jit/jit.h"
#include "jit/product_block.h"
#include "ops/cube/panels.h"
#include "ops/kernel_table.h"

namespace anynpu::ops {
namespace {

using tile::Builder;
using tile::Expr;
using tile::Index;
using tile::Place;

constexpr int64_t kRows = jit::kProductRows;  ///< of a step: what registers hold sums of
constexpr int64_t kRowsOfBlock = 192;         ///< about: with kDepth columns they fit the second cache
constexpr int64_t kBesideRow = 16;            ///< elements after each of a copy: rows do not meet in a cache
constexpr int64_t kMostNarrow = 1 << 12;      ///< of k: as much of right fits the second cache
constexpr int64_t kShares = 8;                ///< of blocks are as many as each other
constexpr int64_t kLeastPanels = 4;           ///< of a block of several
/// What copying the operands costs beside the products of one column, and of one row.
constexpr double kCostOfLeftCopy = 10, kCostOfRightCopy = 4;
constexpr int64_t kSumBytes = 1 << 19;  ///< of a block's sums beside the result
/// A packed matrix is worth its memory from so many bytes on, and up to so many rows of left: packing costs
/// as much as the products of a few dozen.
constexpr int64_t kLeastPackedBytes = 1 << 16, kMostRowsOfPacked = 1 << 11;

/// What a kernel is made for, beside its types.
struct Form {
  DType sums;
  Layout left, right;
  std::optional<Pairs> left_pairs = {}, right_pairs = {};  ///< which copies and panels hold, along k
  bool small = false;    ///< left has fewer rows than a step, which is read in place
  int64_t rows = kRows;  ///< of a step: kRows, or all that there are, or what divides few rows best
  int64_t columns = 0;   ///< of a step: as many as registers hold sums of, or few, so that a copy fits the
                         ///< first cache
  int64_t panel_columns = 0;  ///< of a panel, where right is in panels: one step's or several
  bool one_block = false;     ///< of kDepth products: all of them
  bool panels = false;        ///< right is in panels, as pack() makes them, of type `panel_type`
  DType panel_type = DType::kF32;
  bool narrow = false;  ///< right is one panel, filled up with zeros, and left is read in place

  /// What copies and panels hold.
  DType factors() const { return has_pairs() ? DType::kI32 : sums; }
  bool has_pairs() const { return left_pairs.has_value(); }
  /// Of a block of products.
  int64_t depth() const { return has_pairs() ? kDepth / 2 : kDepth; }

  /// A block has a copy of what it reads of left, and of each panel of right, as factors. Where it is small,
  /// left is copied at once.
  bool copies_left() const { return has_pairs() || (!small && !narrow); }
  bool copies_right() const {
    if (panels) return panel_type != factors() && !small;
    return has_pairs() || narrow || right != Layout::kByRows || !small;
  }
};

/// Whether a block's sums of several blocks of products are beside the result.
bool has_sums_beside(const GemmCall& call, const Form& form) {
  return form.narrow || call.finish != nullptr || call.out.dtype != form.sums ||
         layout_of(call.out) != Layout::kByRows;
}

/// A block of a kernel has a part of the result: equal shares of its steps down and of its panels across.
class GemmKernel {
 public:
  GemmKernel(const GemmCall& call, const Form& form) : call_(call), form_(form), builder_("Gemm") {
    declare();
  }

  tile::Kernel build() {
    if (form_.small && form_.copies_left()) copy_left(0, k_);
    if (form_.one_block) {
      steps(0, min(form_.depth(), k_));
      return builder_.finish();
    }
    const bool beside = sums_ != out_;
    builder_.store(sums_, beside ? std::vector<Place>{0, 0} : out_at(0, 0),
                   zeros(rows_, form_.narrow ? Index(form_.columns) : cols_));
    if (form_.narrow) {
      builder_.store(panel_, {0, 0}, zeros(k_, form_.columns));
      for_each_depth([&](const Index& first, const Index& depth) {
        builder_.store(panel_, {first, 0}, right_->tile({batch_}, first, col_, depth, cols_, form_.sums));
      });
      for_each_step([&](const Index& row) {
        for_each_depth([&](const Index& first, const Index& depth) {
          step(row, 0, first, depth, builder_.load(panel_, {first, 0}, depth, form_.columns));
        });
      });
    } else if (form_.small)
      for_each_panel([&](const Index& col) {
        for_each_depth([&](const Index& first, const Index& depth) { panel(col, first, depth); });
      });
    else
      for_each_depth([&](const Index& first, const Index& depth) { steps(first, depth); });
    if (beside) give(0, 0, builder_.load(sums_, {0, 0}, rows_, cols_));
    return builder_.finish();
  }

 private:
  void declare() {
    const Index batches = builder_.size("batch"), m = builder_.size("m"), n = builder_.size("n");
    const Index k = builder_.size("k");
    k_ = form_.has_pairs() ? ceil_div(k, 2) : k;
    const Index down = builder_.size("down"), across = builder_.size("across");
    builder_.grid(batches * down * across);
    batch_ = Index::block() / across / down;
    const auto share = [](const Index& number, const Index& count, const Index& size, int64_t step) {
      return min(ceil_div(size, step) * number / count * step, size);
    };
    const Index across_number = Index::block() % across, down_number = Index::block() / across % down;
    col_ = share(across_number, across, n, form_.columns);
    cols_ = share(across_number + 1, across, n, form_.columns) - col_;
    row_ = form_.small ? Index(0) : share(down_number, down, m, form_.rows);
    rows_ = form_.small ? Index(form_.rows) : share(down_number + 1, down, m, form_.rows) - row_;
    const auto most = [](const Index& count, const Index& size, int64_t step) {
      return ceil_div(ceil_div(size, step), count) * step;
    };
    const Index block_rows = form_.small ? Index(form_.rows) : most(down, m, form_.rows),
                block_cols = most(across, n, form_.columns);

    const std::vector<Index> batch = {batches};
    left_.emplace(builder_, "left", call_.left.dtype, form_.left, batch, m, k, form_.left_pairs);
    if (form_.panels)
      panels_ = panel_buffer(builder_, "right", form_.panel_type, batch, k_, n, form_.panel_columns);
    else
      right_.emplace(builder_, "right", call_.right.dtype, form_.right, batch, k, n, form_.right_pairs);
    const auto last = [](const View& view) {
      const int64_t stride = view.strides[2];
      return stride == 0 || stride == 1 ? std::optional(stride) : std::nullopt;
    };
    for (const View& operand : call_.operands)
      operands_.push_back(builder_.buffer(concat("operand", operands_.size()), operand.dtype, {batches, m, n},
                                          {std::nullopt, std::nullopt, last(operand)}));
    out_ =
        builder_.buffer("out", call_.out.dtype, {batches, m, n},
                        {std::nullopt, std::nullopt,
                         layout_of(call_.out) == Layout::kByRows ? std::optional<int64_t>(1) : std::nullopt});
    sums_ = out_;
    if (form_.copies_left())
      left_copy_ = builder_.local("left_copy", form_.factors(),
                                  {block_rows, (form_.small ? k_ : Index(form_.depth())) + kBesideRow});
    if (form_.copies_right())
      panel_ =
          builder_.local("panel", form_.factors(), {form_.narrow ? k_ : Index(form_.depth()), form_.columns});
    if (!form_.one_block && has_sums_beside(call_, form_))
      sums_ =
          builder_.local("sums", form_.sums, {block_rows, form_.narrow ? Index(form_.columns) : block_cols});
    for (size_t i = 0; i < call_.numbers.size(); ++i)
      numbers_.push_back(builder_.scalar(concat("number", i), form_.sums));
  }

  Expr zeros(const Index& rows, const Index& cols) { return filled(builder_, form_.sums, 0, rows, cols); }
  std::vector<Place> out_at(const Index& row, const Index& col) const {
    return {batch_, row_ + row, col_ + col};
  }

  void for_each_depth(const std::function<void(const Index&, const Index&)>& body) {
    builder_.loop(0, k_, form_.depth(), {}, [&](const Index& first, const auto&) -> std::vector<Expr> {
      body(first, min(form_.depth(), k_ - first));
      return {};
    });
  }
  void for_each_panel(const std::function<void(const Index&)>& body) {
    builder_.loop(0, cols_, form_.columns, {}, [&](const Index& col, const auto&) -> std::vector<Expr> {
      body(col);
      return {};
    });
  }

  /// Products [first, first + depth) of all sums.
  void steps(const Index& first, const Index& depth) {
    if (form_.copies_left() && !form_.small) copy_left(first, depth);
    for_each_panel([&](const Index& col) { panel(col, first, depth); });
  }

  void copy_left(const Index& first, const Index& depth) {
    left_->copy({batch_}, row_, first, rows_, depth, form_.factors(), left_copy_);
  }

  /// The same of the sums in a panel's columns.
  void panel(const Index& col, const Index& first, const Index& depth) {
    const Index cols = min(form_.columns, cols_ - col);
    const auto given = [&] {
      if (!form_.panels) return right_->tile({batch_}, first, col_ + col, depth, cols, form_.factors());
      const Index there = col_ + col;
      const std::vector<Place> at = {batch_, there / form_.panel_columns, first, there % form_.panel_columns};
      return converted(builder_.load(panels_, at, depth, cols), form_.factors());
    };
    if (form_.copies_right() && form_.panels)
      builder_.store(panel_, {0, 0}, given());
    else if (form_.copies_right())
      right_->copy({batch_}, first, col_ + col, depth, cols, form_.factors(), panel_);
    const auto right = [&] {
      return form_.copies_right() ? builder_.load(panel_, {0, 0}, depth, cols) : given();
    };
    for_each_step([&](const Index& row) { step(row, col, first, depth, right()); });
  }

  void for_each_step(const std::function<void(const Index&)>& body) {
    if (form_.small) return body(0);
    builder_.loop(0, rows_, form_.rows, {}, [&](const Index& row, const auto&) -> std::vector<Expr> {
      body(row);
      return {};
    });
  }

  /// The same of the sums in some rows and in the columns of a tile of right.
  void step(const Index& row, const Index& col, const Index& first, const Index& depth, const Expr& right) {
    const Index rows = form_.small ? rows_ : min(form_.rows, rows_ - row), cols = right.type().cols;
    const Expr left = form_.copies_left()
                          ? builder_.load(left_copy_, {row, form_.small ? first : Index(0)}, rows, depth)
                          : left_->tile({batch_}, row_ + row, first, rows, depth, form_.sums);
    const auto opcode = form_.has_pairs() ? tile::Opcode::kMatmulPairs : tile::Opcode::kMatmul;
    add(row, col, builder_.op(opcode, {left, right, zeros(rows, cols)}));
  }

  void add(const Index& row, const Index& col, const Expr& products) {
    if (form_.one_block) return give(row, col, products);
    if (sums_ == out_)
      builder_.accumulate(out_, out_at(row, col), products);
    else
      builder_.accumulate(sums_, {row, col}, products);
  }

  /// Sums to the result.
  void give(const Index& row, const Index& col, const Expr& sums) {
    Expr result = sums;
    if (call_.finish != nullptr) {
      const tile::Type type = sums.type();
      std::vector<Expr> arguments = {sums};
      for (const int operand : operands_)
        arguments.push_back(
            converted(builder_.load(operand, out_at(row, col), type.rows, type.cols), form_.sums));
      for (const Expr& number : numbers_)
        arguments.push_back(builder_.broadcast(number, type.rows, type.cols));
      result = call_.finish->emit(arguments)[0];
    }
    builder_.store(out_, out_at(row, col), converted(result, call_.out.dtype));
  }

  const GemmCall& call_;
  const Form form_;
  Builder builder_;
  Index k_ = 0, batch_ = 0, row_ = 0, col_ = 0, rows_ = 0, cols_ = 0;
  std::optional<Matrices> left_, right_;
  int panels_ = -1, out_ = -1, sums_ = -1, left_copy_ = -1, panel_ = -1;
  std::vector<int> operands_;
  std::vector<Expr> numbers_;
};

KernelTable::Key key_of(const GemmCall& call, const Form& form) {
  KernelTable::Key key;
  key.add(call.right.dtype);
  key.add(form.right);
  key.add(call.left.dtype);
  key.add(call.out.dtype);
  key.add(form.left);
  add_to(key, form.left_pairs);
  add_to(key, form.right_pairs);
  key.add(layout_of(call.out));
  key.add(static_cast<uint8_t>(form.small));
  key.add(static_cast<uint8_t>(form.rows));
  key.add(static_cast<uint8_t>(form.one_block));
  key.add(static_cast<uint8_t>(form.panels));
  key.add(form.panel_type);
  key.add(static_cast<uint8_t>(form.narrow));
  key.add(static_cast<uint8_t>(form.columns));
  key.add(static_cast<uint8_t>(form.panel_columns));
  key.add(reinterpret_cast<uintptr_t>(call.finish));
  for (const View& operand : call.operands) {
    key.add(operand.dtype);
    key.add(static_cast<uint8_t>(operand.strides[2] == 0 ? 0 : operand.strides[2] == 1 ? 1 : 2));
  }
  return key;
}

/// How many blocks share the rows and the columns of the result.
struct Blocks {
  int64_t down, across;
};

/// Those that take least: the operands are copied seldom, and threads get equal shares.
Blocks blocks_of(const GemmCall& call, const Form& form) {
  const int64_t batches = call.out.sizes[0], m = call.out.sizes[1], n = call.out.sizes[2],
                steps = form.small ? 1 : ceil_div(m, form.rows), panels = ceil_div(n, form.columns);
  const int64_t least_down = form.small ? 1 : ceil_div(m, kRowsOfBlock),
                most_down = form.small ? 1 : std::min(steps, std::max(2 * m / kRowsOfBlock, least_down)),
                last_down = std::min(most_down, least_down + kShares),
                most_across = std::max<int64_t>(1, panels / kLeastPanels);
  Blocks best = {};
  double least = std::numeric_limits<double>::infinity();
  for (int64_t down = least_down; down <= last_down; ++down) {
    const int64_t rows = ceil_div(steps, down) * form.rows;
    int64_t least_across = 1;
    if (!form.one_block && has_sums_beside(call, form))
      least_across =
          std::min(panels, ceil_div(n * rows * static_cast<int64_t>(size_of(form.sums)), kSumBytes));
    const int64_t last_across = std::clamp(most_across, least_across, least_across + kShares);
    for (int64_t across = least_across; across <= last_across; ++across) {
      const int64_t cols = ceil_div(panels, across) * form.columns;
      // Of a share: its blocks, and what the largest one has more than others.
      const double mean = static_cast<double>(steps * panels) / static_cast<double>(down * across),
                   largest = static_cast<double>(ceil_div(steps, down) * ceil_div(panels, across));
      double cost = static_cast<double>(ceil_div(batches * down * across, kShares)) * mean + (largest - mean);
      if (form.copies_left()) cost *= 1 + kCostOfLeftCopy / static_cast<double>(cols);
      if (form.copies_right()) cost *= 1 + kCostOfRightCopy / static_cast<double>(rows);
      if (cost < least) best = {down, across};
      least = std::min(least, cost);
    }
  }
  return best;
}

/// The same product, of the transposed matrices.
GemmCall transposed(const GemmCall& given) {
  GemmCall call = given;
  call.left = transposed(given.right);
  call.right = transposed(given.left);
  call.out = transposed(given.out);
  call.packed = std::nullopt;
  for (View& operand : call.operands) operand = transposed(operand);
  return call;
}

/// The matrix of few rows or columns is right: its copies are soon made, and the other one needs none.
bool is_narrow(const GemmCall& call, DType sums) {
  return call.right.sizes[2] <= jit::product_columns(sums, kRows) && call.left.sizes[1] >= kRows &&
         layout_of(call.left) == Layout::kByRows && call.left.dtype == sums && call.left.sizes[2] > 0 &&
         call.left.sizes[2] <= kMostNarrow;
}

/// How many rows a step has: of few rows what divides them best. Steps of fewer rows load more for a product,
/// and the last one takes longer where it is not whole.
int64_t rows_of_step(int64_t m) {
  constexpr int64_t kFew = 130;
  if (m < kRows || m >= kFew) return std::min(m, kRows);
  int64_t best = kRows;
  double least = std::numeric_limits<double>::infinity();
  for (int64_t rows = kRows; rows >= 4; --rows) {
    const int64_t computed = round_up(m, rows) + (m % rows == 0 ? 0 : rows / 2);
    const double cost = static_cast<double>(computed) * (1 + 0.03 * static_cast<double>(kRows - rows));
    if (cost < least) best = rows;
    least = std::min(least, cost);
  }
  return best;
}

/// How many columns a step of so many rows has, where panels have `of_panel`: as many as registers hold sums
/// of at most, so that panels are some whole steps.
int64_t columns_of_step(DType sums, int64_t rows, int64_t of_panel) {
  const int64_t least = jit::product_columns(sums, rows, 1), most = jit::product_columns(sums, rows);
  for (int64_t columns = std::min(most, of_panel); columns > least; columns -= least)
    if (of_panel % columns == 0) return columns;
  return least;
}

/// Of a panel of a matrix that is packed for any number of rows: enough that sums of one row need not wait
/// for each other, in an odd number of cache lines where steps read parts of them, which else meet in the
/// cache.
int64_t packed_columns(DType sums) {
  constexpr int64_t kLine = 64, kEnough = 3;
  const int64_t columns = jit::product_columns(sums, kRows);
  return columns * static_cast<int64_t>(size_of(sums)) > kLine ? columns : kEnough * columns;
}

/// The type of packed right matrices.
DType packed_type(DType dtype) { return multiplies_pairs(dtype) ? DType::kI32 : dtype; }

Form form_of(const GemmCall& call) {
  const int64_t m = call.left.sizes[1], k = call.left.sizes[2], n = call.right.sizes[2];
  Form form = {.sums = sum_type(call.left.dtype),
               .left = layout_of(call.left),
               .right = layout_of(call.right),
               .left_pairs = pairs_of(call.left, PairsAlong::kCols),
               .right_pairs = pairs_of(call.right, PairsAlong::kRows),
               .small = m < kRows,
               .rows = rows_of_step(m)};
  form.narrow = !call.packed && is_narrow(call, form.sums);
  form.one_block = 0 < k && k <= kDepth && !form.narrow;
  form.panels = call.packed || (m > kRowsOfBlock && k > 0 && !form.narrow);
  form.panel_type = call.packed ? call.packed->dtype : form.factors();
  if (form.small && form.left == Layout::kByColumns) form.left = Layout::kApart;
  form.columns = form.narrow   ? jit::product_columns(form.sums, kRows, n)
                 : call.packed ? columns_of_step(form.sums, form.rows, call.packed->sizes.back())
                               : jit::product_columns(form.sums, form.copies_right() ? kRows : form.rows);
  if (form.panels) form.panel_columns = call.packed ? call.packed->sizes.back() : form.columns;
  return form;
}

void check(const GemmCall& call) {
  const View &left = call.left, &right = call.right, &out = call.out;
  const bool ranks = left.sizes.size() == 3 && right.sizes.size() == 3 && out.sizes.size() == 3;
  require(
      ranks && left.dtype == right.dtype && left.sizes[0] == out.sizes[0] && right.sizes[0] == out.sizes[0] &&
          left.sizes[1] == out.sizes[1] && left.sizes[2] == right.sizes[1] && right.sizes[2] == out.sizes[2],
      ErrorCode::kInvalidArgument, "a product of matrices: ", left.text(), " times ", right.text(), " to ",
      out.text(), "; batch x m x k times batch x k x n to batch x m x n is accepted, of one type");
  require(!call.packed || call.packed->sizes == packed_right(right, nullptr).sizes,
          ErrorCode::kInvalidArgument, "a product of matrices: the packed right matrix is none of ",
          right.text());
  for (const View& operand : call.operands)
    require(operand.sizes == out.sizes, ErrorCode::kInvalidArgument, "a product of matrices: an operand is ",
            operand.text(), "; the result is ", out.text());
}

}  // namespace

DType sum_type(DType dtype) {
  switch (dtype) {
    case DType::kF16:
    case DType::kBF16:
    case DType::kF32:
      return DType::kF32;
    case DType::kF64:
      return DType::kF64;
    case DType::kI8:
    case DType::kI32:
      return DType::kI32;
    default:
      raise(ErrorCode::kInvalidArgument, "there are no products of matrices of ", tile::name_of(dtype),
            "; accepted are f16, bf16, f32, f64, i8, i32");
  }
}

bool profits_from_packing(DType dtype, int64_t m, int64_t n, int64_t k) {
  return 0 < m && m <= kMostRowsOfPacked &&
         n * k * static_cast<int64_t>(size_of(dtype)) >= kLeastPackedBytes &&
         n >= jit::product_columns(sum_type(dtype), kRows);
}

View packed_right(const View& right, void* memory) {
  return panels_of(right, packed_type(right.dtype), packed_columns(sum_type(right.dtype)), memory);
}

Launch pack_right(const View& right, const View& packed) { return pack(right, packed); }

std::vector<Launch> prepare(const GemmCall& given, const TakeMemory& take) {
  static KernelTable& table = *new KernelTable;  // outlives every thread
  check(given);
  GemmCall call = layout_of(given.out) == Layout::kByColumns ? transposed(given) : given;
  if (call.out.elements() == 0) return {};
  if (!call.packed)
    if (GemmCall turned = transposed(call); is_narrow(turned, sum_type(turned.left.dtype)))
      call = std::move(turned);
  const Form form = form_of(call);
  const int64_t m = call.left.sizes[1], k = call.left.sizes[2];

  std::vector<Launch> launches;
  if (call.packed)
    call.right = *call.packed;
  else if (form.panels)
    call.right = pack_panels(call.right, form.factors(), form.panel_columns, take, launches);
  const Blocks blocks = blocks_of(call, form);
  jit::PackedArguments arguments;
  for (const int64_t size : {call.out.sizes[0], m, call.out.sizes[2], k, blocks.down, blocks.across})
    arguments.size(size);
  const auto add = [&](const View& view) { arguments.buffer(view.data, view.strides); };
  Matrices::add_argument(arguments, call.left, form.left, form.left_pairs);
  if (form.panels)
    add(call.right);
  else
    Matrices::add_argument(arguments, call.right, form.right, form.right_pairs);
  for (const View& operand : call.operands) add(operand);
  add(call.out);
  for (const double number : call.numbers)
    arguments.scalar(form.sums, tile::kBits.contains(form.sums) ? tile::Literal(static_cast<int64_t>(number))
                                                                : tile::Literal(number));
  const double products = static_cast<double>(call.out.elements()) * static_cast<double>(k);
  const auto bytes = [](const View& matrices) {
    return static_cast<double>(matrices.elements()) * static_cast<double>(size_of(matrices.dtype));
  };
  launches.emplace_back(table.find(key_of(call, form), [&] { return GemmKernel(call, form).build(); }),
                        arguments, call.out.sizes[0] * blocks.down * blocks.across,
                        products * kBytesOfProduct + bytes(call.left) + bytes(call.right));
  return launches;
}

}  // namespace anynpu::ops
