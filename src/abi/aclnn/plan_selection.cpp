// Operators whose results are as long as their operands' values say: the result that callers bring is as long
// as it may become, and its description gets the sizes that it has when it was computed.

#include <algorithm>
#include <cstring>

#include "abi/aclnn/plans.h"
#include "abi/aclnn/shapes.h"
#include "abi/aclnn/status.h"
#include "ops/selection.h"

namespace anynpu::aclnn {
namespace {

using ops::View;
using tile::DType;

/// Of `out`, once how many were chosen is known: that many, and `rest`.
void set_shape_after(const Bound& out, const View* count, std::vector<int64_t> rest, Workspace& workspace) {
  const auto tensor = std::const_pointer_cast<aclTensor>(std::get<BoundTensor>(out.value).handed);
  const void* const place = count != nullptr ? count->data : nullptr;
  workspace.after([tensor, place, rest = std::move(rest)] {
    int64_t chosen = 0;
    if (place != nullptr) std::memcpy(&chosen, place, sizeof(chosen));
    std::vector<int64_t> sizes = {chosen};
    sizes.insert(sizes.end(), rest.begin(), rest.end());
    tensor->sizes = sizes;
    tensor->strides = ops::contiguous(DType::kI64, nullptr, std::move(sizes)).strides;
  });
}

void check_adjacent(const Bound& out) {
  const View& view = out.view();
  check(view.same_as(ops::contiguous(view.dtype, view.data, view.sizes)), out.name, " has strides ",
        Listed{view.strides}, "; adjacent elements are accepted");
}

Launches select(const ops::Selection& selection, const Bound& out, std::vector<int64_t> rest,
                Workspace& workspace) {
  ops::Selection call = selection;
  if (call.chosen.elements() == 0) {
    set_shape_after(out, nullptr, std::move(rest), workspace);
    return {};
  }
  call.count = ops::temporary(workspace.taker(), DType::kI64, {1});
  set_shape_after(out, &call.count, std::move(rest), workspace);
  return prepare(call, workspace.taker());
}

}  // namespace

Launches plan_masked_select(const Call& call, Workspace& workspace) {
  const Bound &self = call[0], &mask = call[1], &out = call[2];
  check_type(mask, tile::DTypes(DType::kBool, DType::kU8));
  check_type(out, tile::DTypes(self.view().dtype));
  const Bound* const operands[] = {&self, &mask};
  const auto sizes = broadcast_of(operands);
  check(out.view().sizes.size() == 1, out.name, " has shape ", Listed{out.view().sizes},
        "; one dimension is accepted");
  check_adjacent(out);
  return select({mask.view().expanded(sizes), self.view().expanded(sizes), out.view(), {}}, out, {},
                workspace);
}

Launches plan_nonzero(const Call& call, Workspace& workspace) {
  const Bound &self = call[0], &out = call[1];
  const auto dims = static_cast<int64_t>(self.view().sizes.size());
  check_type(out, tile::DTypes(DType::kI64));
  check(out.view().sizes.size() == 2 && out.view().sizes[1] == dims, out.name, " has shape ",
        Listed{out.view().sizes}, "; two dimensions, the last one of ", dims, ", are accepted");
  check_adjacent(out);
  return select({self.view(), std::nullopt, out.view(), {}}, out, {dims}, workspace);
}

}  // namespace anynpu::aclnn
