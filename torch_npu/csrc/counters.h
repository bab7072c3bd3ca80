#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

namespace torch_npu {

/// How often one operator ran, and in which way. Lives as long as the process; counts from any thread.
struct OpCounter {
  explicit OpCounter(std::string name_) : name(std::move(name_)) {}

  void count_fallback() { fallbacks.fetch_add(1, std::memory_order_relaxed); }
  void count_native() { native_launches.fetch_add(1, std::memory_order_relaxed); }
  void count_conversion() { format_conversions.fetch_add(1, std::memory_order_relaxed); }

  const std::string name;                        ///< "aten::add.Tensor"
  std::atomic<uint64_t> fallbacks = 0;           ///< calls that PyTorch's CPU kernel served
  std::atomic<uint64_t> native_launches = 0;     ///< tasks of our own that were launched on a stream
  std::atomic<uint64_t> format_conversions = 0;  ///< of memory between blocks and plain memory; see formats.h
};

OpCounter& op_counter(const std::string& name);

/// Copies of tensor data that a fallback had to make because a kernel's output lay outside device memory.
void count_fallback_copy(size_t bytes);

struct OpCount {
  std::string name;
  uint64_t fallbacks, native_launches, format_conversions;
};

/// The counts since the process began or reset_counters() was called.
struct Counters {
  std::vector<OpCount> ops;  ///< the operators that ran, by name
  uint64_t fallbacks = 0, native_launches = 0, format_conversions = 0;
  uint64_t fallback_copies = 0, fallback_copied_bytes = 0;
};
Counters read_counters();
void reset_counters();

}  // namespace torch_npu
