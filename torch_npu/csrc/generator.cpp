#include "torch_npu/csrc/generator.h"

#include <ATen/CPUGeneratorImpl.h>

#include <mutex>
#include <vector>

#include "torch_npu/csrc/guard.h"

namespace torch_npu {
namespace {

using c10::DeviceIndex;

/// A CPU generator under the device npu:i. The engine's own mutex guards its state: the kernels that draw
/// from it know of no other.
struct NpuGenerator final : c10::GeneratorImpl {
  NpuGenerator(DeviceIndex device, at::Generator engine_)
      : GeneratorImpl({c10::DeviceType::PrivateUse1, device},
                      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        engine(std::move(engine_)) {}

  void set_current_seed(uint64_t seed) override {
    std::lock_guard lock(engine.mutex());
    engine.set_current_seed(seed);
  }
  uint64_t current_seed() const override {
    std::lock_guard lock(engine.mutex());
    return engine.current_seed();
  }
  uint64_t seed() override {
    std::lock_guard lock(engine.mutex());
    return engine.seed();
  }
  void set_offset(uint64_t offset) override { engine.set_offset(offset); }
  uint64_t get_offset() const override { return engine.get_offset(); }
  void set_state(const c10::TensorImpl& state) override {
    std::lock_guard lock(engine.mutex());
    engine.unsafeGetGeneratorImpl()->set_state(state);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    std::lock_guard lock(engine.mutex());
    return engine.unsafeGetGeneratorImpl()->get_state();
  }

  mutable at::Generator engine;

 private:
  NpuGenerator* clone_impl() const override {
    std::lock_guard lock(engine.mutex());
    return new NpuGenerator(device_.index(), engine.clone());
  }
};

at::Generator make_generator(DeviceIndex device, uint64_t seed) {
  return at::make_generator<NpuGenerator>(device, at::detail::createCPUGenerator(seed));
}

DeviceIndex checked(DeviceIndex device) {
  if (device == -1) return current_device();
  check_device(device);
  return device;
}

}  // namespace

const at::Generator& default_npu_generator(DeviceIndex device) {
  static const auto* generators = [] {  // leaked: Python objects refer to them until the very end
    auto* all = new std::vector<at::Generator>;
    for (DeviceIndex index = 0; index < device_count(); ++index)
      all->push_back(make_generator(index, c10::detail::getNonDeterministicRandom()));
    return all;
  }();
  return (*generators)[checked(device)];
}

at::Generator new_npu_generator(DeviceIndex device) {
  return make_generator(checked(device), c10::default_rng_seed_val);
}

at::Generator cpu_engine(const at::Generator& npu) {
  TORCH_CHECK(npu.defined() && npu.device().type() == c10::DeviceType::PrivateUse1,
              "Expected a 'npu' device type for generator but found '",
              npu.defined() ? c10::DeviceTypeName(npu.device().type(), true) : "none", "'");
  return static_cast<const NpuGenerator*>(npu.unsafeGetGeneratorImpl())->engine;
}

}  // namespace torch_npu
