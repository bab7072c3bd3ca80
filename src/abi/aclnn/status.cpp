#include "abi/aclnn/status.h"

#include <exception>

namespace anynpu::aclnn {
namespace {

aclnnStatus status_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kInvalidHandle:
      return ACLNN_ERR_PARAM_INVALID;
    case ErrorCode::kUnsupported:
      return ACL_ERROR_FEATURE_UNSUPPORTED;
    case ErrorCode::kInternal:
      return ACLNN_ERR_INNER;
    default:
      return ACLNN_ERR_RUNTIME_ERROR;
  }
}

/// Of a code that a function on streams or memory has for it, or that is an aclnn code already.
aclnnStatus status_of(aclError published) {
  switch (published) {
    case ACLNN_ERR_PARAM_NULLPTR:
    case ACLNN_ERR_PARAM_INVALID:
    case ACL_ERROR_FEATURE_UNSUPPORTED:
      return published;
    default:
      return ACLNN_ERR_RUNTIME_ERROR;
  }
}

}  // namespace

void rethrow_with_status() {
  try {
    throw;
  } catch (const abi::Failure& failure) {
    throw abi::Failure(status_of(failure.published()), failure.what());
  } catch (const Error& error) {
    throw abi::Failure(status_of(error.code()), error.what());
  } catch (const std::exception& exception) {
    throw abi::Failure(ACLNN_ERR_INNER, exception.what());
  }
}

}  // namespace anynpu::aclnn
