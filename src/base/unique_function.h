#pragma once

#include <cstddef>
#include <cstring>
#include <new>
#include <type_traits>
#include <utility>

namespace anynpu {

/// A move-only `void()` callable. Callables of up to 96 bytes that move without throwing are kept inside, so
/// that enqueueing a kernel launch with its arguments allocates nothing.
class UniqueFunction {
  static constexpr size_t kInline = 96;

 public:
  UniqueFunction() = default;

  template <class F>
    requires(!std::is_same_v<std::decay_t<F>, UniqueFunction> && std::is_invocable_v<std::decay_t<F>&>)
  UniqueFunction(F&& f) {  // NOLINT(google-explicit-constructor): a lambda is a task
    using T = std::decay_t<F>;
    if constexpr (sizeof(T) <= kInline && alignof(T) <= alignof(std::max_align_t) &&
                  std::is_nothrow_move_constructible_v<T>) {
      new (storage_) T(std::forward<F>(f));
      ops_ = &kInlineOps<T>;
    } else {
      *reinterpret_cast<T**>(storage_) = new T(std::forward<F>(f));
      ops_ = &kHeapOps<T>;
    }
  }

  UniqueFunction(UniqueFunction&& other) noexcept { take(other); }
  UniqueFunction& operator=(UniqueFunction&& other) noexcept {
    if (this != &other) {
      reset();
      take(other);
    }
    return *this;
  }
  ~UniqueFunction() { reset(); }

  explicit operator bool() const { return ops_ != nullptr; }
  void operator()() { ops_->invoke(storage_); }

  void reset() {
    if (ops_ != nullptr) std::exchange(ops_, nullptr)->destroy(storage_);
  }

 private:
  struct Ops {
    void (*invoke)(void*);
    void (*move)(void* to, void* from) noexcept;
    void (*destroy)(void*) noexcept;
  };

  template <class T>
  static constexpr Ops kInlineOps = {
      [](void* p) { (*static_cast<T*>(p))(); },
      [](void* to, void* from) noexcept {
        new (to) T(std::move(*static_cast<T*>(from)));
        static_cast<T*>(from)->~T();
      },
      [](void* p) noexcept { static_cast<T*>(p)->~T(); },
  };
  template <class T>
  static constexpr Ops kHeapOps = {
      [](void* p) { (**static_cast<T**>(p))(); },
      [](void* to, void* from) noexcept { std::memcpy(to, from, sizeof(T*)); },
      [](void* p) noexcept { delete *static_cast<T**>(p); },
  };

  void take(UniqueFunction& other) noexcept {
    ops_ = std::exchange(other.ops_, nullptr);
    if (ops_ != nullptr) ops_->move(storage_, other.storage_);
  }

  alignas(std::max_align_t) std::byte storage_[kInline];
  const Ops* ops_ = nullptr;
};

}  // namespace anynpu
