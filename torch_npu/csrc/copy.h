#pragma once

#include <ATen/core/Tensor.h>

#include "runtime/stream.h"

namespace torch_npu {

/// Enqueues the copy of `source`'s elements to `target`, which has its shape, on `stream`. What lies on the
/// host is kept until it is done.
void enqueue_copy(const at::Tensor& source, const at::Tensor& target, anynpu::Stream& stream);

}  // namespace torch_npu
