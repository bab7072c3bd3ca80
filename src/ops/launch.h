#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "ops/code.h"
#include "runtime/stream.h"

namespace anynpu::ops {

/// A kernel with its arguments, or with several ones, one after another.
class Launch {
 public:
  /// `arguments` are complete but for scratch memory; `blocks` are the kernel's grid for them. `bytes` are
  /// what it reads and writes, or as much as its work is worth.
  Launch(std::shared_ptr<const Code> code, jit::PackedArguments arguments, int64_t blocks, double bytes)
      : code_(std::move(code)),
        arguments_(std::move(arguments)),
        own_blocks_(blocks),
        blocks_(blocks),
        bytes_(bytes),
        scratch_(code_->compiled().add_scratch(arguments_)) {}

  const jit::Compiled& code() const { return code_->compiled(); }
  /// Where the kernel's words have the addresses of the buffers that it writes.
  const std::vector<size_t>& written() const { return code_->written(); }
  const jit::PackedArguments& arguments() const { return arguments_; }  ///< without those joined
  int64_t blocks() const { return blocks_; }
  double bytes() const { return bytes_; }

  /// Adds the blocks of a launch of the same kernel after its own: neither needs what the other computes.
  void join(Launch other);
  const std::vector<Launch>& joined() const { return joined_; }
  /// Says that blocks differ in their work: threads take them one by one, not as equal shares.
  void take_turns() { takes_turns_ = true; }

  /// Runs all blocks; with `threads` other than 1 in parallel, in as many threads at most, 0: no limit.
  /// Raises kInvalidArgument, when the others are done, where a position that data gave is none of its
  /// tensor's.
  void run(int threads) const;
  void run(int64_t first, int64_t last) const;  ///< those blocks, in the calling thread

 private:
  void run_own(int64_t first, int64_t last) const;
  [[noreturn]] void raise_fault(const tile::Fault& fault) const;

  std::shared_ptr<const Code> code_;
  jit::PackedArguments arguments_;
  int64_t own_blocks_, blocks_;  ///< without those joined, and with them
  double bytes_;
  size_t scratch_;  ///< bytes, for each thread, of its own blocks
  bool takes_turns_ = false;
  int64_t before_ = 0;          ///< of one that was joined: the blocks before its own
  std::vector<Launch> joined_;  ///< by `before_`; none of them has any
};

/// The launches of calls of which none needs another's results, each in order: launches of one kernel that
/// stand at the same place become one, whose blocks the threads share.
std::vector<Launch> joined(std::vector<std::vector<Launch>> calls);

/// Enqueues it as a task in the lane of its work, which writes what the kernel does; in parallel it has so
/// many threads at most, 0: no limit. `done`, unless it is null, becomes true when the kernel has run, not
/// when the task failed or was dropped.
void enqueue(Stream& stream, Launch launch, int threads, std::shared_ptr<std::atomic<bool>> done = nullptr);

}  // namespace anynpu::ops
