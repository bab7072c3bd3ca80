#include "ops/kernel_table.h"

#include <mutex>

namespace anynpu::ops {

std::shared_ptr<const Code> KernelTable::find(const Key& key, const std::function<tile::Kernel()>& make) {
  {
    std::shared_lock lock(mutex_);
    if (const auto found = kernels_.find(key); found != kernels_.end()) return found->second;
  }
  auto compiled = std::make_shared<const Code>(jit::compiled(make()));
  std::unique_lock lock(mutex_);
  return kernels_.emplace(key, std::move(compiled)).first->second;
}

}  // namespace anynpu::ops
