#pragma once

#include <optional>
#include <vector>

#include "ops/iteration.h"
#include "ops/launch.h"

namespace anynpu::ops {

/// The elements of `values` where `chosen` is not 0 (NaN is not), in order; without `values` the indices of
/// those of `chosen`, one for each dimension, side by side.
struct Selection {
  View chosen;                 ///< elements, one at least
  std::optional<View> values;  ///< of the sizes of `chosen`
  View out;                    ///< adjacent, of the type of `values` or i64; as long as it has room for
  View count;                  ///< one i64: gets how many were chosen
};

/// The launches, in order; `take` gives memory for what they pass on. Where `out` is too short, running them
/// raises kInvalidArgument.
std::vector<Launch> prepare(const Selection& call, const TakeMemory& take);

}  // namespace anynpu::ops
