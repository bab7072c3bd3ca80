#include <ATen/detail/PrivateUse1HooksInterface.h>

#include "runtime/device.h"
#include "torch_npu/csrc/allocator.h"
#include "torch_npu/csrc/errors.h"
#include "torch_npu/csrc/generator.h"
#include "torch_npu/csrc/guard.h"
#include "torch_npu/csrc/pinned.h"

namespace torch_npu {
namespace {

using c10::DeviceIndex;

/// What PyTorch's generic code asks of device npu.
struct NpuHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return device_count() > 0; }
  /// False in a fork of a process that had started the device: there the autograd engine must leave it alone.
  bool hasPrimaryContext(DeviceIndex device) const override { return is_started(device); }

  /// PyTorch asks for this also where no device is used (to pin memory); the first use starts one.
  void init() const override {}

  DeviceIndex deviceCount() const override { return device_count(); }
  DeviceIndex getCurrentDevice() const override { return current_device(); }
  /// A negative index changes nothing, as for every accelerator.
  void setCurrentDevice(DeviceIndex device) const override {
    if (device >= 0) npu_call([&] { anynpu::set_thread_device(device); });
  }
  DeviceIndex exchangeDevice(DeviceIndex device) const override {
    const DeviceIndex previous = current_device();
    setCurrentDevice(device);
    return previous;
  }
  /// Choosing a device starts none, so there is nothing that the cautious form leaves out.
  DeviceIndex maybeExchangeDevice(DeviceIndex device) const override { return exchangeDevice(device); }

  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }

  c10::Device getDeviceFromPtr(void* data) const override {
    const anynpu::Device* device = anynpu::Device::of(data);
    TORCH_CHECK(device != nullptr, "The pointer ", data, " does not lie in the memory of an npu device");
    return {c10::DeviceType::PrivateUse1, static_cast<DeviceIndex>(device->index())};
  }

  const at::Generator& getDefaultGenerator(DeviceIndex device) const override {
    return default_npu_generator(device);
  }
  at::Generator getNewGenerator(DeviceIndex device) const override { return new_npu_generator(device); }

  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    resize_storage(*storage.unsafeGetStorageImpl(), bytes);
  }
};

[[maybe_unused]] const bool registered = [] {
  at::RegisterPrivateUse1HooksInterface(new NpuHooks);  // PyTorch keeps it for the life of the process
  return true;
}();

}  // namespace
}  // namespace torch_npu
