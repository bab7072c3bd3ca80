#pragma once

#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "torch_npu/csrc/counters.h"
#include "torch_npu/csrc/fallback.h"
#include "torch_npu/csrc/formats.h"
#include "torch_npu/csrc/native_op.h"

namespace torch_npu {

/// The type of arguments in schemas that a parameter of a function takes.
template <class Parameter>
struct SchemaType;
template <>
struct SchemaType<const at::Tensor&> {
  static constexpr const char* kName = "Tensor";
};
template <>
struct SchemaType<at::Tensor&> : SchemaType<const at::Tensor&> {};
template <>
struct SchemaType<const c10::Scalar&> {
  static constexpr const char* kName = "Scalar";
};
template <>
struct SchemaType<std::string_view> {
  static constexpr const char* kName = "str";
};
template <>
struct SchemaType<bool> {
  static constexpr const char* kName = "bool";
};
template <>
struct SchemaType<int64_t> {
  static constexpr const char* kName = "int";
};
template <>
struct SchemaType<std::optional<int64_t>> {
  static constexpr const char* kName = "int?";
};
template <>
struct SchemaType<at::IntArrayRef> {
  static constexpr const char* kName = "int[]";
};
template <>
struct SchemaType<at::OptionalIntArrayRef> {
  static constexpr const char* kName = "int[]?";
};
template <>
struct SchemaType<c10::ScalarType> {
  static constexpr const char* kName = "ScalarType";
};
template <>
struct SchemaType<std::optional<c10::ScalarType>> {
  static constexpr const char* kName = "ScalarType?";
};

/// A kernel as a function of an overload's own type: its arguments are not put on a stack, where tensors
/// count references, for which PyTorch takes the GIL.
///
/// A kernel makes plans of calls: `bool plan(Kernel::Plan&, parameters...)` is false where there is none for
/// such arguments. A plan has launch(OpCounter&) and, where results are new, result(i).
template <class Kernel, class Function>
class TypedKernel;
template <class Kernel, class Result, class... Parameters>
class TypedKernel<Kernel, Result(Parameters...)> {
 public:
  /// `boxed` takes the calls with tensors in formats.
  TypedKernel(const Kernel& kernel, const c10::OperatorHandle& op, BoxedKernel boxed)
      : kernel_(kernel),
        op_(op),
        counter_(op_counter(c10::toString(op.operator_name()))),
        boxed_(std::move(boxed)) {}

  /// Whether it is a function of that schema.
  static bool fits(const c10::FunctionSchema& schema) {
    if (schema.arguments().size() != sizeof...(Parameters) || schema.returns().size() != kResults)
      return false;
    auto argument = schema.arguments().begin();
    const auto takes = [&]<class Parameter>(std::type_identity<Parameter>) {
      const bool written = argument->alias_info() != nullptr && argument->alias_info()->isWrite();
      return written == std::is_same_v<Parameter, at::Tensor&> &&
             (argument++)->real_type()->str() == SchemaType<Parameter>::kName;
    };
    return (takes(std::type_identity<Parameters>()) && ...);
  }

  Result operator()(c10::DispatchKeySet keys, Parameters... arguments) const {
    const bool in_formats = (has_format(arguments) || ...);
    typename Kernel::Plan plan;
    if (!in_formats && kernel_.plan(plan, arguments...)) {
      plan.launch(counter_);
      if constexpr (std::is_same_v<Result, at::Tensor>) return plan.result(0);
      if constexpr (kResults > 1) return {plan.result(0), plan.result(1)};
    } else {
      torch::jit::Stack stack;
      torch::jit::push(stack, arguments...);
      in_formats ? boxed_(op_, keys, &stack) : fallback_of_call(op_, keys, &stack);
      if constexpr (std::is_same_v<Result, at::Tensor>) return std::move(stack[0]).toTensor();
      if constexpr (kResults > 1) return {std::move(stack[0]).toTensor(), std::move(stack[1]).toTensor()};
    }
    if constexpr (std::is_same_v<Result, at::Tensor&>) return written(arguments...);
  }

 private:
  static constexpr size_t kResults = std::is_same_v<Result, std::tuple<at::Tensor, at::Tensor>> ? 2 : 1;

  static bool has_format(const at::Tensor& tensor) { return is_formatted(tensor); }
  template <class Other>
  static bool has_format(const Other&) {
    return false;
  }
  template <class First, class... Others>
  static at::Tensor& written(First&& first, Others&&... others) {
    if constexpr (std::is_same_v<First, at::Tensor&>)
      return first;
    else
      return written(std::forward<Others>(others)...);
  }

  const Kernel kernel_;
  const c10::OperatorHandle op_;
  OpCounter& counter_;
  const BoxedKernel boxed_;
};

/// Makes `kernel` that of an operator, as a function of the first type that fits, or else boxed. `in_formats`
/// as add_native() has it.
template <class... Functions, class Kernel>
void add_typed(torch::Library& aten, const c10::OperatorHandle& op, Rows rows, const Kernel& kernel,
               const NativeKernel& in_formats = nullptr) {
  const std::string name = c10::toString(op.operator_name());
  const auto add = [&]<class Function>(std::type_identity<Function>) {
    using Typed = TypedKernel<Kernel, Function>;
    if (!Typed::fits(op.schema())) return false;
    add_native(aten, name, rows, torch::CppFunction(Typed(kernel, op, boxed(name, kernel, in_formats))));
    return true;
  };
  if (!(add(std::type_identity<Functions>()) || ...)) add_native(aten, name, rows, kernel, in_formats);
}

}  // namespace torch_npu
