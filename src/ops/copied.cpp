#include "ops/copied.h"

#include <vector>

#include "ops/elementwise.h"

namespace anynpu::ops {

Launch copied(const View& to, const View& from) {
  static const Elementwise& op = *find_elementwise("Copy");
  const std::vector<View> views = {to, from};
  const Iteration iteration(views);
  return prepare(ElementwiseCall{op, 0, from.dtype, iteration.sizes(), iteration.operands(), {}});
}

}  // namespace anynpu::ops
