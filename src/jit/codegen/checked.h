#pragma once

#include <llvm/Support/Error.h>

#include <string_view>
#include <utility>

#include "base/error.h"

namespace anynpu::jit {

/// The value of a result of LLVM; raises kInternal where it is an error.
template <class T>
T checked(llvm::Expected<T> result, std::string_view what) {
  if (!result) raise(ErrorCode::kInternal, "jit: ", what, ": ", llvm::toString(result.takeError()));
  return std::move(*result);
}

}  // namespace anynpu::jit
