#include "ops/reduce/reduction.h"

#include "ops/copy.h"
#include "tile/reduce.h"

namespace anynpu::ops {
namespace {

/// A line is reduced in parts where there are fewer lines than this, and at least so many elements.
constexpr int64_t kManyLines = 256, kManyElements = 1 << 16;

int64_t bytes_of(DType dtype) { return static_cast<int64_t>(tile::size_of(dtype)); }

/// The dimensions that stay, then the others.
View turned(const View& view, Dims over) {
  View made = {view.dtype, view.data, {}, {}};
  for (const bool reduced : {false, true})
    for (size_t d = 0; d < view.sizes.size(); ++d) {
      if (over[d] != reduced) continue;
      made.sizes.push_back(view.sizes[d]);
      made.strides.push_back(view.strides[d]);
    }
  return made;
}

/// A result with one more dimension, which it stays in.
View with_line(const View& result, Dims over, size_t dims, int64_t length) {
  View made = {result.dtype, result.data, {}, {}};
  const bool kept = result.sizes.size() == dims;
  for (size_t d = 0; d < result.sizes.size(); ++d) {
    if (kept && over[d]) continue;
    made.sizes.push_back(result.sizes[d]);
    made.strides.push_back(result.strides[d]);
  }
  made.sizes.push_back(length);
  made.strides.push_back(0);
  return made;
}

DType type_of_result(const LineOp& op, size_t result, DType common) {
  switch (op.gives(result)) {
    case Holds::kPosition:
      return DType::kI64;
    case Holds::kTruth:
      return DType::kBool;
    default:
      return compute_type(op, common);
  }
}

/// Results of parts: those of one part after each other, as lines are counted; then those of the next.
class PartialResults {
 public:
  PartialResults(const LineOp& op, DType common, std::span<const int64_t> sizes, int64_t parts,
                 const TakeMemory& take) {
    for (size_t i = 0; i < op.formula.results; ++i) {
      const DType dtype = type_of_result(op, i, common);
      std::vector<int64_t> strides;
      int64_t stride = bytes_of(dtype);
      for (const int64_t size : sizes) {
        strides.push_back(size == 1 ? 0 : stride);  // as in results, which stay in such a dimension
        stride *= size;
      }
      strides.push_back(stride);  // from one part to the next
      data_.push_back(take(stride * parts));
      dtypes_.push_back(dtype);
      of_lines_.push_back(strides);
      strides.push_back(0);
      of_parts_.push_back(std::move(strides));
    }
  }

  /// With the dimension of the parts last among those across a line, or as the line.
  void add_to(std::vector<Operand>& operands, bool as_lines) const {
    for (size_t i = 0; i < data_.size(); ++i)
      operands.push_back({dtypes_[i], data_[i], as_lines ? of_lines_[i] : of_parts_[i]});
  }
  DType common() const { return dtypes_[0]; }

 private:
  std::vector<void*> data_;
  std::vector<DType> dtypes_;
  std::vector<std::vector<int64_t>> of_parts_, of_lines_;  // strides, in bytes
};

std::vector<Launch> in_parts(const LineOp& op, DType common, std::span<const View> views,
                             const TakeMemory& take) {
  const LineOp &first = line_op(op.of_parts), &second = line_op(op.of_results);
  const size_t dim = views.front().sizes.size() - 1;
  const int64_t length = views.front().sizes[dim];
  const int64_t parts = (length + tile::kReduceBlock - 1) / tile::kReduceBlock;
  const Iteration across(views, dim);
  const Operand& x = across.operands().back();
  const PartialResults partial(first, common, across.sizes(), parts, take);

  std::vector<int64_t> sizes(across.sizes().begin(), across.sizes().end());
  sizes.push_back(parts);
  std::vector<int64_t> strides(x.strides.begin(), x.strides.end());
  strides.insert(strides.end() - 1, strides.back() * tile::kReduceBlock);
  std::vector<Operand> operands;
  partial.add_to(operands, false);
  operands.push_back({x.dtype, x.data, strides});
  std::vector<Launch> launches;
  launches.push_back(prepare(LineCall{.op = first,
                                      .common = common,
                                      .sizes = sizes,
                                      .length = tile::kReduceBlock,
                                      .operands = operands,
                                      .stands_for = length,
                                      .parts = true}));

  operands.assign(across.operands().begin(), across.operands().end() - 1);
  partial.add_to(operands, true);
  launches.push_back(prepare(LineCall{.op = second,
                                      .common = partial.common(),
                                      .sizes = across.sizes(),
                                      .length = parts,
                                      .operands = operands,
                                      .stands_for = length}));
  return launches;
}

}  // namespace

std::vector<int64_t> reduced_sizes(std::span<const int64_t> sizes, Dims over, bool keep) {
  std::vector<int64_t> made;
  for (size_t d = 0; d < sizes.size(); ++d)
    if (!over[d] || keep) made.push_back(over[d] ? 1 : sizes[d]);
  return made;
}

std::vector<Launch> prepare(const Reduction& reduction, const TakeMemory& take) {
  const auto& [op, given, results, operand, over] = reduction;
  const DType common = op.rounds_operands ? given : compute_type(op, given);
  std::vector<Launch> launches;
  View x = turned(operand, over);
  const size_t dims = x.sizes.size(), kept = dims - over.count();
  auto lines = x.merged(kept, dims);
  if (!lines) {
    const View copy = temporary(take, x.dtype, x.sizes);
    if (x.elements() != 0) launches.push_back(prepare_copy(copy, x));
    lines = copy.merged(kept, dims);
  }
  const int64_t length = lines->sizes.back(), elements = lines->elements();
  std::vector<View> views;
  for (const View& result : results) views.push_back(with_line(result, over, dims, length));
  views.push_back(*lines);
  const bool long_lines = length > tile::kReduceBlock && elements / length < kManyLines;
  if (!long_lines || elements < kManyElements) {
    launches.push_back(prepare(op, common, std::move(views), kept));
  } else {
    for (Launch& launch : in_parts(op, common, views, take)) launches.push_back(std::move(launch));
  }
  return launches;
}

}  // namespace anynpu::ops
