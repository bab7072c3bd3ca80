#include "abi/aclnn/plans.h"
#include "abi/aclnn/shapes.h"
#include "abi/aclnn/status.h"
#include "ops/copy.h"
#include "ops/nn/dropout_mask.h"

namespace anynpu::aclnn {
namespace {

using ops::View;
using tile::DType;

bool is_adjacent(const View& view) {
  return view.same_as(ops::contiguous(view.dtype, view.data, view.sizes));
}

/// Of a bit for each of so many elements.
void check_mask(const Bound& mask, int64_t elements) {
  check_type(mask, tile::DTypes(DType::kU8));
  check(is_adjacent(mask.view()), mask.name, " has strides ", Listed{mask.view().strides},
        "; adjacent elements are accepted");
  check(mask.view().elements() >= (elements + 7) / 8, mask.name, " has ", mask.view().elements(),
        " bytes; a bit for each of ", elements, " elements, and so ", (elements + 7) / 8,
        " or more, are accepted");
}

double probability(const Bound& argument) {
  const double p = std::get<double>(argument.value);
  check(p >= 0 && p <= 1, argument.name, " is ", p, "; 0 to 1 is accepted");
  return p;
}

}  // namespace

Launches plan_dropout_mask(const Call& call, Workspace&) {
  const Bound& mask = call.arguments.back();
  int64_t elements = 1;
  for (const int64_t size : std::get<std::vector<int64_t>>(call[0].value)) {
    check(size >= 0, call[0].name, " has the size ", size, "; 0 or more is accepted");
    elements *= size;
  }
  const double p = probability(call[1]);
  check_mask(mask, elements);
  if (mask.view().elements() == 0) return {};
  return {ops::prepare_dropout_mask(mask.view(), p, static_cast<uint64_t>(std::get<int64_t>(call[2].value)),
                                    static_cast<uint64_t>(std::get<int64_t>(call[3].value)))};
}

Launches plan_masked_dropout(const Call& call, Workspace& workspace) {
  const View &self = call[0].view(), &out = call[3].view();
  check_type(call[0], ops::kAllFloats);
  check_type(call[3], tile::DTypes(self.dtype));
  check_shape(call[3], self.sizes);
  check_mask(call[1], self.elements());
  const double p = probability(call[2]);
  if (out.elements() == 0) return {};
  const auto adjacent = [&](const View& view) {
    return is_adjacent(view) ? view : ops::temporary(workspace.taker(), view.dtype, view.sizes);
  };
  const View x = adjacent(self), result = adjacent(out);
  Launches launches;
  if (x.data != self.data) launches.push_back(ops::prepare_copy(x, self));
  launches.push_back(ops::prepare_masked_dropout(result, x, call[1].view(), p));
  if (result.data != out.data) launches.push_back(ops::prepare_copy(out, result));
  return launches;
}

}  // namespace anynpu::aclnn
