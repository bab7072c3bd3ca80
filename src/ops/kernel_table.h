#pragma once

#include <array>
#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <shared_mutex>
#include <string_view>
#include <type_traits>
#include <unordered_map>

#include "base/error.h"
#include "ops/code.h"

namespace anynpu::ops {

/// The compiled kernels of an operator family, by what they were made for. Thread-safe.
class KernelTable {
 public:
  /// What a kernel depends on, as bytes.
  class Key {
   public:
    template <class T>
    void add(const T& value) {
      static_assert(std::has_unique_object_representations_v<T> && !std::is_pointer_v<T>);
      require(count_ + sizeof(T) <= bytes_.size(), ErrorCode::kInternal, "a kernel's key is too long");
      std::memcpy(&bytes_[count_], &value, sizeof(T));
      count_ += sizeof(T);
    }
    std::string_view text() const { return {bytes_.data(), count_}; }
    bool operator==(const Key& other) const { return text() == other.text(); }

   private:
    size_t count_ = 0;
    std::array<char, 64> bytes_;
  };

  /// The kernel for `key`; `make` says what to compile where there is none yet.
  std::shared_ptr<const Code> find(const Key& key, const std::function<tile::Kernel()>& make);

 private:
  struct Hash {
    size_t operator()(const Key& key) const { return std::hash<std::string_view>()(key.text()); }
  };
  std::shared_mutex mutex_;
  std::unordered_map<Key, std::shared_ptr<const Code>, Hash> kernels_;
};

}  // namespace anynpu::ops
