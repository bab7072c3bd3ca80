#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include "torch_npu/csrc/cpu_allocator.h"
#include "torch_npu/csrc/elementwise.h"
#include "torch_npu/csrc/fallback.h"
#include "torch_npu/csrc/fallback_rules.h"
#include "torch_npu/csrc/lines.h"

namespace torch_npu {
namespace {

using c10::DispatchKey;
using torch::CppFunction;

/// The backends of device npu, and the CPU backends whose kernels serve them.
constexpr struct {
  DispatchKey npu, cpu;
} kBackends[] = {
    {DispatchKey::PrivateUse1, DispatchKey::CPU},
    {DispatchKey::SparsePrivateUse1, DispatchKey::SparseCPU},
    {DispatchKey::SparseCsrPrivateUse1, DispatchKey::SparseCsrCPU},
    {DispatchKey::QuantizedPrivateUse1, DispatchKey::QuantizedCPU},
    {DispatchKey::NestedTensorPrivateUse1, DispatchKey::NestedTensorCPU},
};

constexpr DispatchKey kComposites[] = {
    DispatchKey::CompositeExplicitAutogradNonFunctional,
    DispatchKey::CompositeExplicitAutograd,
    DispatchKey::CompositeImplicitAutograd,
};

bool has_composite(const c10::OperatorHandle& op) {
  for (const DispatchKey key : kComposites)
    if (op.hasKernelForDispatchKey(key)) return true;
  return false;
}

/// Operators of our own come first. Where another one has a kernel of its own for the CPU, that kernel runs
/// for npu too, and once: the composite that PyTorch would prefer to a backend's fallback computes shapes
/// first, then calls further operators.
void register_operators(torch::Library& library, DispatchKey npu, DispatchKey cpu) {
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (!name.name.starts_with("aten::")) continue;
    const auto op = c10::Dispatcher::singleton().findOp(name);
    if (!op.has_value() || !op->hasSchema() || op->hasKernelForDispatchKey(npu)) continue;
    if (npu == DispatchKey::PrivateUse1 &&
        (register_elementwise(library, *op) || register_lines(library, *op)))
      continue;
    if (!has_composite(*op)) continue;
    const bool whole = cpu == DispatchKey::CPU && runs_whole(name.name.substr(sizeof("aten::") - 1));
    if (!whole && !op->hasKernelForDispatchKey(cpu)) continue;
    library.impl(c10::toString(name).c_str(), CppFunction::makeFromBoxedFunction<&fallback>());
  }
}

}  // namespace

void register_fallbacks() {
  install_cpu_allocator();
  static auto* libraries = new std::vector<torch::Library>;
  for (const auto& [npu, cpu] : kBackends) {
    libraries->emplace_back(torch::Library::IMPL, "_", npu, __FILE__, __LINE__);
    libraries->back().fallback(CppFunction::makeFromBoxedFunction<&fallback>());
    libraries->emplace_back(torch::Library::IMPL, "aten", npu, __FILE__, __LINE__);
    register_operators(libraries->back(), npu, cpu);
  }
}

}  // namespace torch_npu
