#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include "ops/iteration.h"
#include "runtime/stream.h"

namespace torch_npu {

/// A right matrix of products, packed (ops/cube/gemm.h), for tasks enqueued while somebody holds this.
struct PackedWeight {
  anynpu::ops::View view;
  c10::DataPtr memory;
  uint64_t stream;  ///< that packs it
  std::shared_ptr<std::atomic<bool>> is_made = std::make_shared<std::atomic<bool>>(false);
};

/// The packed form of `right`, a matrix that some left matrix of so many rows is multiplied by on `stream`;
/// null where there is none. A weight gets one when it is seen again, unwritten as far as ContentWatch says,
/// where products profit and the option ANYNPU_PACKED_WEIGHTS allows it. It goes with the next write to the
/// weight's memory, with that memory, when memory runs out, and by drop_packed_weights().
std::shared_ptr<const PackedWeight> packed_weight(const at::Tensor& right, int64_t rows,
                                                  anynpu::Stream& stream);
/// False where there are none.
bool drop_packed_weights();

struct PackedWeightStats {
  uint64_t made, uses;  ///< since the process began or they were reset
  int64_t bytes;        ///< now
};
PackedWeightStats packed_weight_stats();
void reset_packed_weight_stats();

}  // namespace torch_npu
