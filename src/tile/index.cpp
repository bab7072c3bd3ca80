#include "tile/index.h"

#include <algorithm>

namespace anynpu::tile {

using Kind = Index::Kind;

struct Index::Node {
  Kind kind;
  int64_t value = 0;
  Index left = Index(nullptr), right = Index(nullptr);  // of operators
};

int64_t apply(Kind kind, int64_t a, int64_t b) {
  const auto wrapping = [](auto result) { return static_cast<int64_t>(result); };
  const auto ua = static_cast<uint64_t>(a), ub = static_cast<uint64_t>(b);
  const auto floor_div = [&] { return b < 1 ? 0 : a / b - (a % b < 0 ? 1 : 0); };
  switch (kind) {
    case Kind::kAdd:
      return wrapping(ua + ub);
    case Kind::kSub:
      return wrapping(ua - ub);
    case Kind::kMul:
      return wrapping(ua * ub);
    case Kind::kDiv:
      return floor_div();
    case Kind::kMod:
      return wrapping(ua - ub * static_cast<uint64_t>(floor_div()));
    case Kind::kMin:
      return std::min(a, b);
    case Kind::kMax:
      return std::max(a, b);
    default:
      return 0;
  }
}

Index::Index(int64_t constant) : Index(leaf(Kind::kConstant, constant)) {}

Index Index::leaf(Kind kind, int64_t value) {
  return Index(std::make_shared<const Node>(Node{.kind = kind, .value = value}));
}

Index Index::size(int number) { return leaf(Kind::kSize, number); }
Index Index::block() { return leaf(Kind::kBlock, 0); }
Index Index::counter(int number) { return leaf(Kind::kCounter, number); }
Index Index::scalar(int value) { return leaf(Kind::kScalar, value); }

/// An operator's node, or what it is known to equal.
Index Index::make(Kind kind, const Index& a, const Index& b) {
  const auto x = a.constant(), y = b.constant();
  if (x && y) return apply(kind, *x, *y);
  switch (kind) {
    case Kind::kAdd:
      if (a.is(0)) return b;
      if (b.is(0)) return a;
      break;
    case Kind::kSub:
      if (b.is(0)) return a;
      if (a == b) return 0;
      break;
    case Kind::kMul:
      if (a.is(0) || b.is(0)) return 0;
      if (a.is(1)) return b;
      if (b.is(1)) return a;
      break;
    case Kind::kDiv:
      if (b.is(1)) return a;
      break;
    case Kind::kMod:
      if (b.is(1)) return 0;
      break;
    default:  // min, max
      if (a == b) return a;
  }
  return Index(std::make_shared<const Node>(Node{.kind = kind, .left = a, .right = b}));
}

Index operator+(const Index& a, const Index& b) { return Index::make(Kind::kAdd, a, b); }
Index operator-(const Index& a, const Index& b) { return Index::make(Kind::kSub, a, b); }
Index operator*(const Index& a, const Index& b) { return Index::make(Kind::kMul, a, b); }
Index operator/(const Index& a, const Index& b) { return Index::make(Kind::kDiv, a, b); }
Index operator%(const Index& a, const Index& b) { return Index::make(Kind::kMod, a, b); }
Index min(const Index& a, const Index& b) { return Index::make(Kind::kMin, a, b); }
Index max(const Index& a, const Index& b) { return Index::make(Kind::kMax, a, b); }

bool operator==(const Index& a, const Index& b) {
  if (a.node_ == b.node_) return true;
  if (a.kind() != b.kind() || a.value() != b.value()) return false;
  return a.kind() < Kind::kAdd || (a.left() == b.left() && a.right() == b.right());
}

Kind Index::kind() const { return node_->kind; }
int64_t Index::value() const { return node_->value; }
const Index& Index::left() const { return node_->left; }
const Index& Index::right() const { return node_->right; }

std::optional<int64_t> Index::constant() const {
  return kind() == Kind::kConstant ? std::optional(value()) : std::nullopt;
}

std::optional<int64_t> Index::upper_bound() const {
  if (kind() == Kind::kConstant) return value();
  if (kind() < Kind::kAdd) return std::nullopt;
  const auto a = left().upper_bound(), b = right().upper_bound();
  switch (kind()) {
    case Kind::kAdd:
      return a && b ? std::optional(apply(Kind::kAdd, *a, *b)) : std::nullopt;
    case Kind::kMin:
      return a && b ? std::min(*a, *b) : a ? a : b;
    case Kind::kMax:
      return a && b ? std::optional(std::max(*a, *b)) : std::nullopt;
    case Kind::kMod:
      return b ? std::optional(*b - 1) : std::nullopt;
    default:
      return std::nullopt;
  }
}

void Index::for_each_leaf(const std::function<void(const Index&)>& function) const {
  if (kind() < Kind::kAdd) return function(*this);
  left().for_each_leaf(function);
  right().for_each_leaf(function);
}

int64_t Index::evaluate(const std::function<int64_t(const Index&)>& leaf) const {
  if (kind() == Kind::kConstant) return value();
  if (kind() < Kind::kAdd) return leaf(*this);
  return apply(kind(), left().evaluate(leaf), right().evaluate(leaf));
}

}  // namespace anynpu::tile
