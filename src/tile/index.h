#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace anynpu::tile {

/// An integer that a kernel knows without looking at tensors: positions and extents. An expression over
/// constants, sizes of buffers, the block's number, counters of loops and scalars that were read from memory.
/// Immutable; equal expressions compare equal, after the simplifications that the operators make.
class Index {
 public:
  enum class Kind : uint8_t {
    kConstant,
    kSize,
    kBlock,
    kCounter,
    kScalar,
    kAdd,
    kSub,
    kMul,
    kDiv,
    kMod,
    kMin,
    kMax
  };

  Index(int64_t constant);           // NOLINT(google-explicit-constructor): constants are written as such
  static Index size(int number);     ///< of the kernel's sizes
  static Index block();              ///< the number of the block, from 0
  static Index counter(int number);  ///< of the loop with that number
  static Index scalar(int value);    ///< the value with that number: a 1 x 1 tile of i32 or i64

  friend Index operator+(const Index& a, const Index& b);
  friend Index operator-(const Index& a, const Index& b);
  friend Index operator*(const Index& a, const Index& b);
  friend Index operator/(const Index& a, const Index& b);  ///< rounds down; b is positive
  friend Index operator%(const Index& a, const Index& b);  ///< a - b * (a / b)
  friend Index min(const Index& a, const Index& b);
  friend Index max(const Index& a, const Index& b);
  friend Index ceil_div(const Index& a, const Index& b) { return (a + (b - 1)) / b; }
  friend bool operator==(const Index& a, const Index& b);

  Kind kind() const;
  int64_t value() const;  ///< of a constant; else the number of the size, counter or scalar
  const Index& left() const;
  const Index& right() const;
  std::optional<int64_t> constant() const;
  bool is(int64_t constant) const { return this->constant() == constant; }

  /// A constant that the value never passes, where one is known; sizes and counters have none.
  std::optional<int64_t> upper_bound() const;
  /// Calls `function` with every leaf, constants included.
  void for_each_leaf(const std::function<void(const Index&)>& function) const;
  /// The value, where `leaf` gives those of leaves that are no constants. Wraps around.
  int64_t evaluate(const std::function<int64_t(const Index&)>& leaf) const;

 private:
  struct Node;
  explicit Index(std::shared_ptr<const Node> node) : node_(std::move(node)) {}
  static Index leaf(Kind kind, int64_t value);
  static Index make(Kind kind, const Index& a, const Index& b);

  std::shared_ptr<const Node> node_;
};

/// What the operators compute of constants. A division by less than 1 gives 0.
int64_t apply(Index::Kind kind, int64_t a, int64_t b);

}  // namespace anynpu::tile
