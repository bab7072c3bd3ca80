#pragma once

namespace torch_npu {

/// Gives the pools the settings of PYTORCH_NPU_ALLOC_CONF or, where it is unset, of PYTORCH_ALLOC_CONF, and
/// from now on every change of PyTorch's allocator settings. Raises, naming the key, where one is unknown.
void load_allocator_settings();

/// False: memory goes back to the system as soon as nothing uses it. True at the start.
void enable_caching(bool enabled);

}  // namespace torch_npu
