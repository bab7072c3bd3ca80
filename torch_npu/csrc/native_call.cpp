#include "torch_npu/csrc/native_call.h"

#include <ATen/ops/empty.h>

#include <utility>

#include "torch_npu/csrc/dtypes.h"
#include "torch_npu/csrc/kernel_call.h"

namespace torch_npu {

anynpu::ops::View view_of(const at::Tensor& tensor) {
  return {*dtype_of(tensor.scalar_type()),
          const_cast<void*>(tensor.const_data_ptr()),
          {tensor.sizes().begin(), tensor.sizes().end()},
          {tensor.strides().begin(), tensor.strides().end()}};
}

anynpu::ops::TakeMemory Temporaries::take() {
  return [this](int64_t bytes) { return tensors_.emplace_back(at::empty({bytes}, options_)).data_ptr(); };
}

void enqueue_native(std::vector<anynpu::ops::Launch> launches, const at::Tensor& on, OpCounter& counter) {
  anynpu::Stream& stream = current_runtime_stream(on.device());
  const anynpu::TaskLabel label(counter.name.c_str());
  const int threads = threads_for(anynpu::Lane::kParallel, stream.device());
  for (anynpu::ops::Launch& launch : launches) {
    counter.count_native();
    npu_call([&] { anynpu::ops::enqueue(stream, std::move(launch), threads); });
  }
}

}  // namespace torch_npu
