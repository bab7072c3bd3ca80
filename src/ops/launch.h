#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "jit/jit.h"
#include "runtime/stream.h"

namespace anynpu::ops {

/// A kernel with its arguments.
class Launch {
 public:
  /// `arguments` are complete but for scratch memory; `blocks` are the kernel's grid for them. `bytes` are
  /// what it reads and writes, or as much as its work is worth.
  Launch(std::shared_ptr<const jit::Compiled> code, jit::PackedArguments arguments, int64_t blocks,
         double bytes)
      : code_(std::move(code)),
        arguments_(std::move(arguments)),
        blocks_(blocks),
        bytes_(bytes),
        scratch_(code_->add_scratch(arguments_)) {}

  const jit::Compiled& code() const { return *code_; }
  const jit::PackedArguments& arguments() const { return arguments_; }
  int64_t blocks() const { return blocks_; }
  double bytes() const { return bytes_; }

  /// Runs all blocks; with `threads` other than 1 in parallel, in as many threads at most, 0: no limit.
  /// Raises kInvalidArgument, when the others are done, where a position that data gave is none of its
  /// tensor's.
  void run(int threads) const;
  void run(int64_t first, int64_t last) const;  ///< those blocks, in the calling thread

 private:
  [[noreturn]] void raise_fault(const tile::Fault& fault) const;

  std::shared_ptr<const jit::Compiled> code_;
  jit::PackedArguments arguments_;
  int64_t blocks_;
  double bytes_;
  size_t scratch_;  ///< bytes, for each thread
};

/// Enqueues it as a task in the lane of its work; in parallel it has so many threads at most, 0: no limit.
void enqueue(Stream& stream, Launch launch, int threads);

}  // namespace anynpu::ops
