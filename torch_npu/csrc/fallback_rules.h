#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>

#include "torch_npu/csrc/counters.h"

namespace torch_npu {

/// Which CPU tensors an operator accepts beside npu tensors, as on other accelerators.
enum class CpuArguments : uint8_t {
  kNone,
  kScalars,            ///< 0-dimensional ones, where they are only read
  kScalarsAndIndices,  ///< also the members of its `Tensor?[]` argument
  kScalarsAndNumbers,  ///< also the tensor that is an argument by itself: a number for each member of the
                       ///< lists
  kAll,                ///< all that are only read: they describe a tensor, and stay on the host
};

/// What the fallback needs to know of an operator, found once from its schema and the tables of rules.
struct OpPlan {
  explicit OpPlan(const c10::OperatorHandle& op);

  bool writes(size_t argument) const { return written >> argument & 1; }

  OpCounter& counter;
  size_t arguments, returns;
  uint64_t written = 0;  ///< bit i: argument i is written to
  int generator = -1;    ///< the argument that is a generator, -1: none
  CpuArguments cpu_arguments;
  bool reads_values;  ///< the call itself needs them, so that on a card too the host would wait
  double work;        ///< for a byte of its arguments, in bytes that exp would read or write
  mutable std::atomic<bool> warned = false;
};

/// The plan of `op`; a reference that stays valid while the calling thread makes no other plan.
const OpPlan& plan_of(const c10::OperatorHandle& op);

/// True where `name` (without namespace and overload) is run as a whole on the CPU although PyTorch would
/// compose it of several operators.
bool runs_whole(const std::string& name);

}  // namespace torch_npu
