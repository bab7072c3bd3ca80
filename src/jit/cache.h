#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "base/disk_cache.h"
#include "jit/code.h"

namespace anynpu::jit {

/// Compiled kernels, by their text and instruction set. What was compiled once stays: there are as many as
/// there are different programs, whatever the sizes they run on. Thread-safe; lives for ever.
class KernelCache {
 public:
  using Compile = std::function<Code(const tile::Kernel&, Isa)>;

  /// Without `disk`, which must outlive it, in memory alone.
  KernelCache(DiskCache* disk, Compile compile);
  KernelCache(const KernelCache&) = delete;

  /// The same object for equal kernels. Where several threads want one that is not there, one of them
  /// compiles it; if that fails, the next one tries.
  std::shared_ptr<const Compiled> get(const tile::Kernel& kernel, Isa isa);

 private:
  struct Entry {
    std::shared_ptr<const Compiled> compiled;
    int compiling = 0;  ///< the process in which a thread does; a fork of it has no such thread
    std::shared_ptr<std::condition_variable> done = {};  ///< that it does no longer
  };

  std::shared_ptr<const Compiled> make(const tile::Kernel& kernel, Isa isa, const std::string& key);
  /// Null where there is none, or what is there is no code of the kernel.
  std::shared_ptr<const Compiled> find_on_disk(const tile::Kernel& kernel, const std::string& key) const;

  DiskCache* const disk_;
  const Compile compile_;
  std::mutex mutex_;
  std::unordered_map<std::string, Entry> entries_;
};

}  // namespace anynpu::jit
