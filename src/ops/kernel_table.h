#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <shared_mutex>
#include <string>
#include <unordered_map>

#include "jit/jit.h"

namespace anynpu::ops {

/// The compiled kernels of an operator family, by what they were made for. Thread-safe.
class KernelTable {
 public:
  /// What a kernel depends on, as bytes.
  class Key {
   public:
    template <class T>
    void add(const T& value) {
      static_assert(std::is_trivially_copyable_v<T>);
      bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
    }
    bool operator==(const Key&) const = default;

   private:
    friend class KernelTable;
    std::string bytes_;
  };

  /// The kernel for `key`; `make` says what to compile where there is none yet.
  std::shared_ptr<const jit::Compiled> find(const Key& key, const std::function<tile::Kernel()>& make);

 private:
  std::shared_mutex mutex_;
  std::unordered_map<std::string, std::shared_ptr<const jit::Compiled>> kernels_;
};

}  // namespace anynpu::ops
