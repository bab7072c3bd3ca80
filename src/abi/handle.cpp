#include "abi/handle.h"

namespace anynpu::abi {

std::shared_ptr<Stream> stream_or_default(aclrtStream handle) {
  const auto context = Context::current();
  if (handle == nullptr) return context->default_stream();
  const auto found = abi::handle<StreamInContext>(handle, "stream");
  check(found->context == context, ACL_ERROR_RT_STREAM_CONTEXT, "stream (", handle, ") belongs to ",
        found->context->device() == context->device() ? "another context of device " : "device ",
        found->context->device(), ", but the current context of the thread is of device ", context->device());
  return found->stream;
}

}  // namespace anynpu::abi
