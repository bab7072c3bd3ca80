#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "jit/jit.h"

namespace anynpu::ops {

/// A compiled kernel, and which of its arguments are the addresses of buffers that it writes: those that its
/// program stores or accumulates to.
class Code {
 public:
  explicit Code(std::shared_ptr<const jit::Compiled> compiled);

  const jit::Compiled& compiled() const { return *compiled_; }
  const std::vector<size_t>& written() const { return written_; }  ///< words of jit::PackedArguments

 private:
  std::shared_ptr<const jit::Compiled> compiled_;
  std::vector<size_t> written_;
};

}  // namespace anynpu::ops
