// Operators that move data by indices, and random ones.

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "abi/aclnn/plans.h"
#include "abi/aclnn/shapes.h"
#include "abi/aclnn/status.h"
#include "ops/copy.h"
#include "ops/indexing.h"
#include "ops/promotion.h"
#include "ops/random.h"

namespace anynpu::aclnn {
namespace {

using ops::View;
using tile::DType;

size_t dim_of(const Bound& argument, size_t dims) {
  return wrapped_dim(argument.name, std::get<int64_t>(argument.value), dims);
}

const View& indices(const Bound& argument) {
  check_type(argument, tile::DTypes(DType::kI32, DType::kI64));
  return argument.view();
}

/// With one dimension at least.
View lifted(const View& view) { return view.sizes.empty() ? View{view.dtype, view.data, {1}, {1}} : view; }

/// One index for all elements of a slice of `dim`, as an index of those sizes.
View spread(const View& index, size_t dim, const std::vector<int64_t>& sizes) {
  View made = {index.dtype, index.data, sizes, std::vector<int64_t>(sizes.size(), 0)};
  made.strides[dim] = index.strides.empty() ? 1 : index.strides[0];
  return made;
}

/// Whether each size of `index` but that of `dim` is at most the tensor's.
void check_fits(const Bound& index, const Bound& tensor, size_t dim) {
  const View of_index = lifted(index.view()), of_tensor = lifted(tensor.view());
  bool fits = of_index.sizes.size() == of_tensor.sizes.size();
  for (size_t d = 0; fits && d < of_index.sizes.size(); ++d)
    fits = d == dim || of_index.sizes[d] <= of_tensor.sizes[d];
  check(fits, index.name, " has shape ", Listed{index.view().sizes}, "; at most ",
        Listed{tensor.view().sizes}, ", the shape of ", tensor.name, ", is accepted beside dimension ", dim);
}

/// The first `dims` dimensions of `view` as one: of a copy, where they have no one stride.
View flattened(const View& view, size_t dims, Workspace& workspace, Launches& copies) {
  if (const auto made = view.merged(0, dims)) return *made;
  const View copy = ops::temporary(workspace.taker(), view.dtype, view.sizes);
  copies.push_back(ops::prepare_copy(copy, view));
  return *copy.merged(0, dims);
}

ops::Launch zeros(const View& view) {
  const ops::Iteration iteration({&view, 1});
  return ops::prepare_copy(iteration.sizes(), iteration.operands()[0], {.dtype = view.dtype, .number = 0.0});
}

/// An empty vector goes with tensors of any shape.
bool is_skipped(const View& view) { return view.sizes.size() == 1 && view.sizes[0] == 0; }

}  // namespace

Launches plan_cat(const Call& call, Workspace&) {
  const size_t count = call.arguments.size() - 2;
  const Bound &dimension = call[count], &out = call[count + 1];
  check(count != 0, "tensors has no members; 1 and more are accepted");
  std::vector<View> views;
  views.reserve(count);
  for (size_t i = 0; i < count; ++i) views.push_back(call[i].view());
  const DType common = ops::promoted(views);
  check(ops::can_cast(common, out.view().dtype), "the result has type ", name_of(common), ", which ",
        out.name, " of type ", name_of(out.view().dtype), " cannot take");
  std::erase_if(views, is_skipped);
  if (views.empty()) {
    check_shape(out, std::array<int64_t, 1>{0});
    return {};
  }
  const size_t dim = dim_of(dimension, views[0].sizes.size());
  auto sizes = views[0].sizes;
  check(!sizes.empty(), call[0].name, " has a member without dimensions; 1 and more are accepted");
  int64_t joined = 0;
  for (const View& view : views) {
    auto expected = view.sizes;
    if (expected.size() == sizes.size()) expected[dim] = sizes[dim];
    check(expected == sizes, call[0].name, " has members of shapes ", Listed{sizes}, " and ",
          Listed{view.sizes}, "; the same but for dimension ", dim, " are accepted");
    joined += view.sizes[dim];
  }
  sizes[dim] = joined;
  check_shape(out, sizes);
  Launches launches;
  View part = out.view();
  for (const View& view : views) {
    part.sizes = view.sizes;
    if (view.elements() != 0) launches.push_back(ops::prepare_copy(part, view));
    part.data = static_cast<std::byte*>(part.data) +
                view.sizes[dim] * part.strides[dim] * static_cast<int64_t>(tile::size_of(part.dtype));
  }
  return launches;
}

Launches plan_stack(const Call& call, Workspace&) {
  const size_t count = call.arguments.size() - 2;
  const Bound &dimension = call[count], &out = call[count + 1];
  check(count != 0, "tensors has no members; 1 and more are accepted");
  auto sizes = call[0].view().sizes;
  const auto dim = static_cast<ptrdiff_t>(dim_of(dimension, sizes.size() + 1));
  for (size_t i = 0; i < count; ++i) {
    const View& view = call[i].view();
    check(view.sizes == sizes, call[i].name, " has members of shapes ", Listed{sizes}, " and ",
          Listed{view.sizes}, "; the same are accepted");
    check(ops::can_cast(view.dtype, out.view().dtype), call[i].name, " has a member of type ",
          name_of(view.dtype), ", which ", out.name, " of type ", name_of(out.view().dtype), " cannot take");
  }
  sizes.insert(sizes.begin() + dim, static_cast<int64_t>(count));
  check_shape(out, sizes);
  View part = out.view();
  const int64_t step =
      part.strides[static_cast<size_t>(dim)] * static_cast<int64_t>(tile::size_of(part.dtype));
  part.sizes.erase(part.sizes.begin() + dim);
  part.strides.erase(part.strides.begin() + dim);
  Launches launches;
  for (size_t i = 0; i < count && part.elements() != 0; ++i) {
    launches.push_back(ops::prepare_copy(part, call[i].view()));
    part.data = static_cast<std::byte*>(part.data) + step;
  }
  return launches;
}

Launches plan_index_select(const Call& call, Workspace&) {
  static const ops::IndexingOp& op = ops::indexing_op("IndexSelect");
  const View &self = call[0].view(), &index = indices(call[2]), &out = call[3].view();
  check(!self.sizes.empty() && index.sizes.size() <= 1, call[2].name, " has ", index.sizes.size(),
        " dimensions and ", call[0].name, " ", self.sizes.size(),
        "; at most 1, and at least 1, are accepted");
  const size_t dim = dim_of(call[1], self.sizes.size());
  auto sizes = self.sizes;
  sizes[dim] = index.elements();
  check_shape(call[3], sizes);
  check_type(call[3], tile::DTypes(self.dtype));
  if (out.elements() == 0) return {};
  return {prepare(ops::IndexingCall{op, dim, self, spread(index, dim, sizes), out})};
}

Launches plan_gather(const Call& call, Workspace&) {
  static const ops::IndexingOp& op = ops::indexing_op("Gather");
  const View self = lifted(call[0].view()), index = lifted(indices(call[2]));
  const size_t dim = dim_of(call[1], self.sizes.size());
  check_shape(call[3], call[2].view().sizes);
  check_type(call[3], tile::DTypes(self.dtype));
  if (index.elements() == 0) return {};
  check_fits(call[2], call[0], dim);
  return {prepare(ops::IndexingCall{op, dim, self, index, lifted(call[3].view())})};
}

Launches plan_scatter_add(const Call& call, Workspace& workspace) {
  static const ops::IndexingOp& op = ops::indexing_op("ScatterAdd");
  const View &self = call[0].view(), &out = call[4].view(), index = lifted(indices(call[2]));
  const size_t dim = dim_of(call[1], self.sizes.size());
  check_type(call[0], ops::kAllNumbers);
  check_type(call[3], tile::DTypes(self.dtype));
  check_type(call[4], tile::DTypes(self.dtype));
  check_shape(call[4], self.sizes);
  if (self.elements() == 0) return {};
  Launches launches;
  const DType sum = ops::compute_type(self.dtype);
  View sums = out;
  if (sum != self.dtype) sums = ops::temporary(workspace.taker(), sum, self.sizes);
  if (!sums.same_as(self)) launches.push_back(ops::prepare_copy(sums, self));
  if (index.elements() != 0) {
    check_fits(call[2], call[0], dim);
    check_fits(call[2], call[3], lifted(self).sizes.size());
    View source = lifted(call[3].view());
    source.sizes = index.sizes;
    launches.push_back(prepare(ops::IndexingCall{op, dim, lifted(sums), index, source}));
  }
  if (sum != self.dtype) launches.push_back(ops::prepare_copy(out, sums));
  return launches;
}

Launches plan_embedding(const Call& call, Workspace& workspace) {
  static const ops::IndexingOp& op = ops::indexing_op("Embedding");
  const View &weight = call[0].view(), &index = indices(call[1]), &out = call[2].view();
  check(weight.sizes.size() == 2, call[0].name, " has ", weight.sizes.size(), " dimensions; 2 are accepted");
  auto sizes = index.sizes;
  sizes.push_back(weight.sizes[1]);
  check_shape(call[2], sizes);
  check_type(call[2], tile::DTypes(weight.dtype));
  if (out.elements() == 0) return {};
  Launches launches;
  const View at = flattened(index, index.sizes.size(), workspace, launches);
  const auto merged = out.merged(0, index.sizes.size());
  const View whole = merged ? out : ops::temporary(workspace.taker(), out.dtype, out.sizes);
  const View rows = *whole.merged(0, index.sizes.size());
  launches.push_back(prepare(ops::IndexingCall{op, 0, weight, spread(at, 0, rows.sizes), rows}));
  if (!merged) launches.push_back(ops::prepare_copy(out, whole));
  return launches;
}

Launches plan_embedding_backward(const Call& call, Workspace& workspace) {
  static const ops::IndexingOp& op = ops::indexing_op("EmbeddingDenseBackward");
  const View &grad = call[0].view(), &index = indices(call[1]), &out = call[5].view();
  check_type(call[0], ops::kAllFloats);
  check_type(call[5], tile::DTypes(grad.dtype));
  require(!std::get<bool>(call[4].value), ErrorCode::kUnsupported, "not supported: ", call[4].name,
          " is true; false is accepted");
  const int64_t rows = std::get<int64_t>(call[2].value);
  check(rows >= 0, call[2].name, " is ", rows, "; 0 and more are accepted");
  auto sizes = index.sizes;
  const int64_t length = grad.sizes.empty() ? 0 : grad.sizes.back();
  sizes.push_back(length);
  check_shape(call[0], sizes);
  check_shape(call[5], std::array{rows, length});
  if (out.elements() == 0) return {};
  const DType sum = ops::compute_type(out.dtype);
  const View sums = sum == out.dtype ? out : ops::temporary(workspace.taker(), sum, out.sizes);
  Launches launches;
  launches.push_back(zeros(sums));
  if (index.elements() != 0) {
    const View values = flattened(grad, index.sizes.size(), workspace, launches),
               at = flattened(index, index.sizes.size(), workspace, launches);
    launches.push_back(prepare(ops::IndexingCall{op, 0, sums, spread(at, 0, values.sizes), values,
                                                 std::get<int64_t>(call[3].value)}));
  }
  if (sum != out.dtype) launches.push_back(ops::prepare_copy(out, sums));
  return launches;
}

Launches plan_uniform(const Call& call, Workspace& workspace) {
  static const ops::RandomOp& op = ops::random_op("Uniform");
  const View& self = call[0].view();
  const double from = std::get<double>(call[1].value), to = std::get<double>(call[2].value);
  check_type(call[0], ops::kAllFloats);
  const double most = ops::greatest_of(self.dtype);
  check(from <= to && std::abs(from) <= most && std::abs(to) <= most && to - from <= most, call[1].name,
        " is ", from, " and ", call[2].name, " ", to,
        "; numbers in order are accepted that are no further from 0 and from each other than ", most,
        ", the greatest of ", name_of(self.dtype));
  if (self.elements() == 0) return {};
  const bool dense = self.same_as(ops::contiguous(self.dtype, self.data, self.sizes));
  const View drawn = dense ? self : ops::temporary(workspace.taker(), self.dtype, self.sizes);
  const ops::Operand tensor = {.dtype = self.dtype, .data = drawn.data};
  const tile::Literal numbers[] = {from, to};
  Launches launches;
  launches.push_back(prepare(ops::RandomCall{op,
                                             ops::compute_type(self.dtype),
                                             self.elements(),
                                             {&tensor, 1},
                                             numbers,
                                             static_cast<uint64_t>(std::get<int64_t>(call[3].value)),
                                             static_cast<uint64_t>(std::get<int64_t>(call[4].value)) / 4}));
  if (!dense) launches.push_back(ops::prepare_copy(self, drawn));
  return launches;
}

}  // namespace anynpu::aclnn
