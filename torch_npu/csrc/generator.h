#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

namespace torch_npu {

/// The generator that random ops on `device` (-1: the current one) use when none is given. Making it starts
/// no device, so seeds count from the first call on, also in a process that will fork.
const at::Generator& default_npu_generator(c10::DeviceIndex device = -1);

at::Generator new_npu_generator(c10::DeviceIndex device = -1);

/// The CPU generator from which PyTorch's CPU kernel draws in one call of a random operator. It follows from
/// the npu generator's seed and offset alone, and the offset moves on by 4. Raises for a generator of another
/// device.
at::Generator engine_of_call(const at::Generator& npu);

/// What a call of a random operator with a kernel of our own draws with: the key of Philox, and the offset of
/// its counters. It follows from the npu generator, given or the device's, in the same way.
struct RandomCall {
  uint64_t seed, offset;
};
RandomCall random_call(const std::optional<at::Generator>& npu, c10::DeviceIndex device);

}  // namespace torch_npu
