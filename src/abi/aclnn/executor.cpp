#include "abi/aclnn/executor.h"

#include <algorithm>
#include <string>
#include <utility>

#include "abi/aclnn/shapes.h"
#include "abi/aclnn/status.h"
#include "abi/operand_memory.h"
#include "prof/trace.h"
#include "runtime/limits.h"
#include "runtime/memory.h"

using namespace anynpu;
using anynpu::aclnn::Bound;
using anynpu::aclnn::BoundTensor;

namespace anynpu::aclnn {
namespace {

/// Formats whose elements lie as strides say. The others lie in blocks of their own.
bool is_strided(aclFormat format) {
  switch (format) {
    case ACL_FORMAT_UNDEFINED:
    case ACL_FORMAT_ND:
    case ACL_FORMAT_NCHW:
    case ACL_FORMAT_NHWC:
    case ACL_FORMAT_HWCN:
    case ACL_FORMAT_NDHWC:
    case ACL_FORMAT_NCDHW:
    case ACL_FORMAT_NC:
    case ACL_FORMAT_NCL:
      return true;
    default:
      return false;
  }
}

void* moved(void* address, int64_t bytes) {
  return address == nullptr ? nullptr : static_cast<std::byte*>(address) + bytes;
}

BoundTensor bound_tensor(std::shared_ptr<const aclTensor> tensor, const char* name) {
  const tile::DType dtype = abi::dtype_of(tensor->type, name);
  require(is_strided(tensor->format), ErrorCode::kUnsupported, "not supported: ", name, " has format ",
          tensor->format, "; formats whose elements lie as strides say are accepted, as ACL_FORMAT_ND");
  const int64_t offset = tensor->offset * static_cast<int64_t>(tile::size_of(dtype));
  ops::View view = {dtype, moved(tensor->storage, offset), tensor->sizes, tensor->strides};
  return {std::move(tensor), std::move(view), offset};
}

Bound bound(const Argument& argument) {
  const char* const name = argument.name();
  Bound made = {name, std::holds_alternative<const aclTensor*>(argument.value()), argument.written(), {}};
  std::visit(
      [&]<class T>(const T& value) {
        if constexpr (std::is_pointer_v<T>)
          if (value == nullptr && std::string_view(name).ends_with("Optional")) return;
        if constexpr (std::is_same_v<T, const aclTensorList*>) {
          // its members are arguments
        } else if constexpr (std::is_same_v<T, const aclTensor*>) {
          made.value = bound_tensor(object(value, name), name);
        } else if constexpr (std::is_same_v<T, const aclScalar*>) {
          made.value = number_of(*object(value, name), name);
        } else if constexpr (std::is_same_v<T, const char*>) {
          abi::check(value != nullptr, ACLNN_ERR_PARAM_NULLPTR, name, " is null; it must be a string");
          made.value = std::string(value);
        } else if constexpr (std::is_same_v<T, aclDataType>) {
          made.value = abi::dtype_of(value, name);
        } else if constexpr (std::is_pointer_v<T>) {
          made.value = object(value, name)->values;
        } else {
          made.value = value;
        }
      },
      argument.value());
  return made;
}

Call bound(const Operator& op, std::initializer_list<Argument> arguments) {
  Call call = {op, {}};
  for (const Argument& argument : arguments) {
    const char* const name = argument.name();
    if (const auto* const list = std::get_if<const aclTensorList*>(&argument.value())) {
      for (const aclTensor* member : object(*list, name)->values)
        call.arguments.push_back({name, true, argument.written(), bound_tensor(object(member, name), name)});
    } else {
      call.arguments.push_back(bound(argument));
    }
  }
  return call;
}

/// For addresses that are not known while a call is planned: its launches are made again before it runs.
void* const kSomeAddress = reinterpret_cast<void*>(uintptr_t{4096});

Launches planned(const Call& call, Workspace& workspace) {
  if (call.addresses_known()) return call.op.plan(call, workspace);
  Call with_addresses = call;
  for (Bound& argument : with_addresses.arguments)
    if (auto* tensor = std::get_if<BoundTensor>(&argument.value))
      if (tensor->view.data == nullptr) tensor->view.data = kSomeAddress;
  return call.op.plan(with_addresses, workspace);
}

/// Each element that `result` has is written once, and read at no other index.
void check_result(const Call& call, const Bound& result) {
  const ops::View& view = result.view();
  check(!view.overlaps_itself(), result.name, " is written, but indices share elements: shape ",
        Listed{view.sizes}, ", strides ", Listed{view.strides});
  for (const Bound& other : call.arguments) {
    if (&other == &result || !other.is_tensor || !other.given()) continue;
    check(!view.overlaps(other.view()) || (!other.written && view.same_as(other.view())), result.name,
          " is written, and shares memory with ", other.name,
          other.written ? ", which is written too" : ", but not index by index");
  }
}

}  // namespace

void* Workspace::take(int64_t bytes) {
  void* const taken = base_ + size_;
  size_ += (static_cast<uint64_t>(bytes) + kAlignment - 1) / kAlignment * kAlignment;
  return taken;
}

bool Call::addresses_known() const {
  return std::none_of(arguments.begin(), arguments.end(), [](const Bound& argument) {
    return argument.is_tensor && argument.given() && argument.view().data == nullptr;
  });
}

aclnnStatus prepare(const char* function, const Operator& op, std::initializer_list<Argument> arguments,
                    uint64_t* workspace_size, aclOpExecutor** executor) {
  return call(function, [&] {
    uint64_t& size = out(workspace_size, "workspaceSize");
    aclOpExecutor*& place = out(executor, "executor");
    auto made = std::make_shared<aclOpExecutor>(bound(op, arguments));
    size = made->workspace_size;
    place = static_cast<aclOpExecutor*>(new_handle(std::move(made)));
  });
}

aclnnStatus run(const char* function, void* workspace, uint64_t workspace_size, aclOpExecutor* executor,
                aclrtStream stream) {
  return call(function, [&] {
    const auto found = object(executor, "executor");
    check(std::string_view(found->function()) == function, "executor is of ", found->function(), ", not of ",
          function);
    if (found->run(workspace, workspace_size, stream)) drop_handle(executor);
  });
}

}  // namespace anynpu::aclnn

aclOpExecutor::aclOpExecutor(aclnn::Call call) : call_(std::move(call)) {
  check_addresses(std::nullopt);
  aclnn::Workspace workspace(aclnn::kSomeAddress);
  launches_ = aclnn::planned(call_, workspace);
  workspace_size = workspace.size();
  after_ = workspace.after();
  planned_ = workspace_size == 0 && call_.addresses_known();
}

void aclOpExecutor::check_addresses(std::optional<int> device) const {
  constexpr abi::MemoryCodes kCodes = {ACLNN_ERR_PARAM_NULLPTR, ACLNN_ERR_PARAM_INVALID};
  for (const Bound& argument : call_.arguments)
    if (const auto* tensor = std::get_if<BoundTensor>(&argument.value)) {
      abi::check_memory(argument.name, tensor->view, device, kCodes);
      if (argument.written) aclnn::check_result(call_, argument);
    }
}

void aclOpExecutor::check_usable() const {
  aclnn::check(!used_,
               "executor ran already; one that aclSetAclOpExecutorRepeatable was called for runs again");
}

void aclOpExecutor::set_repeatable() {
  const std::scoped_lock lock(mutex_);
  check_usable();
  repeatable_ = true;
}

void aclOpExecutor::set_address(Side side, size_t index, const aclTensor* tensor, void* storage) {
  const auto wanted = aclnn::object(tensor, "tensor");
  abi::check(storage != nullptr, ACLNN_ERR_PARAM_NULLPTR, "addr is null; device memory is accepted");
  const std::scoped_lock lock(mutex_);
  check_usable();
  size_t count = 0;
  for (Bound& argument : call_.arguments) {
    if (!argument.is_tensor || (side != Side::kAll && argument.written != (side == Side::kWritten))) continue;
    if (count++ != index) continue;
    auto* const found = std::get_if<BoundTensor>(&argument.value);
    aclnn::check(found != nullptr && found->handed == wanted, "tensor (", tensor, ") is not what ",
                 function(), " got as ", argument.name, ", which index ", index, " is");
    found->view.data = aclnn::moved(storage, found->offset);
    planned_ = false;
    return;
  }
  aclnn::check(false, "index is ", index, ", but ", function(), " has ", count, " such tensors");
}

bool aclOpExecutor::run(void* workspace, uint64_t size, aclrtStream stream_handle) {
  aclnn::check(size >= workspace_size, "workspaceSize is ", size, ", but ", function(),
               "GetWorkspaceSize asked for ", workspace_size);
  abi::check(workspace != nullptr || workspace_size == 0, ACLNN_ERR_PARAM_NULLPTR, "workspace is null; ",
             workspace_size, " bytes of device memory are accepted");
  const auto stream = abi::stream_or_default(stream_handle);
  const std::scoped_lock lock(mutex_);
  check_usable();
  const auto held = hold_memory();
  check_addresses(stream->device());
  if (workspace_size != 0) check_range("workspace", workspace, workspace_size);
  if (!planned_) {
    aclnn::Workspace memory(workspace);
    launches_ = aclnn::planned(call_, memory);
    after_ = memory.after();
    planned_ = workspace_size == 0;
  }
  const TaskLabel label(function());
  const auto threads = static_cast<int>(thread_limit(stream->device()));
  for (const ops::Launch& launch : launches_) ops::enqueue(*stream, launch, threads);
  if (after_) stream->launch(Lane::kShort, after_, Writes::nothing());
  used_ = !repeatable_;
  return used_;
}

namespace {

aclnnStatus set_address(const char* function, aclOpExecutor* executor, aclOpExecutor::Side side, size_t index,
                        const aclTensor* tensor, void* address) {
  return aclnn::call(function,
                     [&] { aclnn::object(executor, "executor")->set_address(side, index, tensor, address); });
}

}  // namespace

extern "C" {

aclnnStatus aclSetAclOpExecutorRepeatable(aclOpExecutor* executor) {
  return aclnn::call("aclSetAclOpExecutorRepeatable",
                     [&] { aclnn::object(executor, "executor")->set_repeatable(); });
}

aclnnStatus aclDestroyAclOpExecutor(aclOpExecutor* executor) {
  return aclnn::call("aclDestroyAclOpExecutor", [&] {
    (void)aclnn::object(executor, "executor");
    (void)take_handle(HandleKind::kExecutor, executor, "executor");
  });
}

aclnnStatus aclSetInputTensorAddr(aclOpExecutor* executor, size_t index, aclTensor* tensor, void* addr) {
  return set_address("aclSetInputTensorAddr", executor, aclOpExecutor::Side::kRead, index, tensor, addr);
}

aclnnStatus aclSetOutputTensorAddr(aclOpExecutor* executor, size_t index, aclTensor* tensor, void* addr) {
  return set_address("aclSetOutputTensorAddr", executor, aclOpExecutor::Side::kWritten, index, tensor, addr);
}

aclnnStatus aclSetTensorAddr(aclOpExecutor* executor, size_t index, aclTensor* tensor, void* addr) {
  return set_address("aclSetTensorAddr", executor, aclOpExecutor::Side::kAll, index, tensor, addr);
}

}  // extern "C"
