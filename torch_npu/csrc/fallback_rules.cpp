#include "torch_npu/csrc/fallback_rules.h"

#include <ATen/core/enum_tag.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <string_view>
#include <unordered_map>

namespace torch_npu {
namespace {

/// Operators that accept CPU scalars without being pointwise, or CPU indices. A name that ends in * stands
/// for all that begin so.
constexpr struct {
  std::string_view op;
  CpuArguments accepted;
} kCpuArguments[] = {
    {"_empty_per_channel_affine_quantized", CpuArguments::kAll},
    {"_foreach_*", CpuArguments::kScalars},
    {"_foreach_addc*", CpuArguments::kScalarsAndNumbers},
    {"_fused_*", CpuArguments::kScalars},
    {"_index_put_impl_", CpuArguments::kScalarsAndIndices},
    {"_unsafe_index", CpuArguments::kScalarsAndIndices},
    {"_unsafe_index_put", CpuArguments::kScalarsAndIndices},
    {"fill_", CpuArguments::kScalars},
    {"floor_divide*", CpuArguments::kScalars},
    {"index", CpuArguments::kScalarsAndIndices},
    {"index_fill*", CpuArguments::kScalars},
    {"index_put*", CpuArguments::kScalarsAndIndices},
    {"masked_fill*", CpuArguments::kScalars},
    {"where", CpuArguments::kScalars},
};

/// How much work an operator does for a byte of its arguments, where that differs from exp's.
constexpr struct {
  std::string_view op;
  double work;
} kWork[] = {
    {"_convolution", 4},  {"_scaled_dot_product*", 4},
    {"_slow_conv*", 4},   {"_to_copy", 0.125},
    {"add*", 0.125},      {"addbmm*", 2},
    {"addcdiv*", 0.125},  {"addcmul*", 0.125},
    {"addmm*", 2},        {"baddbmm*", 2},
    {"bitwise_*", 0.125}, {"bmm*", 2},
    {"cat*", 0.125},      {"clamp*", 0.125},
    {"convolution*", 4},  {"div*", 0.125},
    {"eq*", 0.125},       {"ge*", 0.125},
    {"gt*", 0.125},       {"le*", 0.125},
    {"linalg_*", 4},      {"logical_*", 0.125},
    {"lt*", 0.125},       {"masked_fill*", 0.125},
    {"mkldnn_*", 4},      {"mm*", 2},
    {"mul*", 0.125},      {"ne*", 0.125},
    {"neg*", 0.125},      {"relu*", 0.125},
    {"rsub*", 0.125},     {"slow_conv*", 4},
    {"sub*", 0.125},      {"threshold*", 0.125},
    {"where*", 0.125},
};

/// Composites that would be several fallbacks, or several kernels of ours, and are one; and those that look
/// for a kernel of the tensor's device without the dispatcher.
constexpr std::string_view kWhole[] = {
    "_convolution", "_foreach_*", "addr_", "conj_physical_", "convolution", "convolution_backward", "mode",
};

/// Operators whose results on the host, or whose sizes of results, depend on values in device memory.
constexpr std::string_view kReadsValues[] = {
    "_unique", "_unique2",          "bincount",           "equal",      "masked_select",
    "nonzero", "repeat_interleave", "unique_consecutive", "unique_dim", "unique_dim_consecutive"};

bool matches(std::string_view pattern, std::string_view name) {
  if (!pattern.ends_with('*')) return pattern == name;
  return name.starts_with(pattern.substr(0, pattern.size() - 1));
}

/// The longest pattern that matches, or null.
template <class Row, size_t kSize>
const Row* find_row(const Row (&table)[kSize], std::string_view name) {
  const Row* found = nullptr;
  for (const Row& row : table)
    if (matches(row.op, name) && (found == nullptr || row.op.size() > found->op.size())) found = &row;
  return found;
}

std::string_view base_name(const c10::OperatorName& name) {
  const std::string_view full = name.name;
  return full.substr(full.find("::") + 2);
}

/// PyTorch tags some overloads of an operator only: lt.Tensor, not lt_.Tensor; rsub.Scalar, not rsub.Tensor.
bool is_pointwise(const c10::OperatorHandle& op) {
  std::string name = op.operator_name().name;
  if (name.ends_with('_')) name.pop_back();
  for (const char* overload : {"", "Tensor", "Scalar"}) {
    const auto sibling = c10::Dispatcher::singleton().findSchema({name, overload});
    if (sibling && sibling->hasTag(at::Tag::pointwise)) return true;
  }
  return op.hasTag(at::Tag::pointwise);
}

CpuArguments accepted_cpu_arguments(const c10::OperatorHandle& op) {
  if (const auto* row = find_row(kCpuArguments, base_name(op.operator_name()))) return row->accepted;
  return is_pointwise(op) ? CpuArguments::kScalars : CpuArguments::kNone;
}

double work_per_byte(const c10::OperatorHandle& op) {
  const auto* row = find_row(kWork, base_name(op.operator_name()));
  return row != nullptr ? row->work : 1;
}

struct PlanCache {
  std::mutex mutex;
  std::unordered_map<c10::OperatorHandle, std::unique_ptr<OpPlan>> plans;
};

/// Of PyTorch's own operators, which are never taken back; a handle of another library's may come to mean
/// another operator.
const OpPlan& cached_plan(const c10::OperatorHandle& op) {
  thread_local std::unordered_map<c10::OperatorHandle, const OpPlan*> mine;
  const OpPlan*& plan = mine[op];
  if (plan == nullptr) {
    static auto* all = new PlanCache;
    std::lock_guard lock(all->mutex);
    std::unique_ptr<OpPlan>& shared = all->plans[op];
    if (shared == nullptr) shared = std::make_unique<OpPlan>(op);
    plan = shared.get();
  }
  return *plan;
}

}  // namespace

OpPlan::OpPlan(const c10::OperatorHandle& op)
    : counter(op_counter(c10::toString(op.operator_name()))),
      arguments(op.schema().arguments().size()),
      returns(op.schema().returns().size()),
      cpu_arguments(accepted_cpu_arguments(op)),
      reads_values(std::ranges::count(kReadsValues, base_name(op.operator_name())) != 0),
      work(work_per_byte(op)) {
  TORCH_INTERNAL_ASSERT(arguments <= 64, op.operator_name(), " has ", arguments, " arguments");
  for (size_t i = 0; i < arguments; ++i) {
    const c10::Argument& argument = op.schema().arguments()[i];
    // Some operators of batch normalization write running statistics and do not say so.
    const bool writes = (argument.alias_info() != nullptr && argument.alias_info()->isWrite()) ||
                        argument.name().starts_with("running_");
    if (writes) written |= uint64_t{1} << i;
    if (argument.type()->str() == "Generator?" || argument.type()->str() == "Generator")
      generator = static_cast<int>(i);
  }
}

const OpPlan& plan_of(const c10::OperatorHandle& op) {
  if (op.operator_name().name.starts_with("aten::")) return cached_plan(op);
  thread_local std::unique_ptr<OpPlan> plan;
  plan = std::make_unique<OpPlan>(op);
  return *plan;
}

bool runs_whole(const std::string& name) {
  for (const std::string_view pattern : kWhole)
    if (matches(pattern, name)) return true;
  return false;
}

}  // namespace torch_npu
