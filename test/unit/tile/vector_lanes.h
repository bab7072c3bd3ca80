#pragma once

#include "tile/math_lane.h"

namespace anynpu::tile::math {

/// Four lanes in the compiler's vector types: the contract of tile/math_lane.h as a code generator meets it.
inline constexpr int kLanes = 4;

template <class T>
struct Vector {
  using Registers [[gnu::vector_size(kLanes * sizeof(T))]] = T;
  Registers r;
};

struct VectorMask {
  Vector<int32_t>::Registers r;
  friend VectorMask operator&&(VectorMask a, VectorMask b) { return {a.r & b.r}; }
  friend VectorMask operator||(VectorMask a, VectorMask b) { return {a.r | b.r}; }
  VectorMask operator!() const { return {~r}; }
};

template <class T>
VectorMask mask_of(T comparison) {
  return {__builtin_convertvector(comparison, Vector<int32_t>::Registers)};
}

template <class T>
struct VectorInt : Vector<T> {
  using typename Vector<T>::Registers;
  explicit VectorInt(uint64_t value) : Vector<T>{Registers{} + static_cast<T>(value)} {}
  explicit VectorInt(Registers r) : Vector<T>{r} {}
  friend VectorInt operator+(VectorInt a, VectorInt b) { return VectorInt(a.r + b.r); }
  friend VectorInt operator-(VectorInt a, VectorInt b) { return VectorInt(a.r - b.r); }
  friend VectorInt operator&(VectorInt a, VectorInt b) { return VectorInt(a.r & b.r); }
  friend VectorInt operator|(VectorInt a, VectorInt b) { return VectorInt(a.r | b.r); }
  friend VectorInt operator^(VectorInt a, VectorInt b) { return VectorInt(a.r ^ b.r); }
  friend VectorInt operator<<(VectorInt a, int n) { return VectorInt(a.r << n); }
  friend VectorInt operator>>(VectorInt a, int n) { return VectorInt(a.r >> n); }
  friend VectorMask operator==(VectorInt a, VectorInt b) { return mask_of(a.r == b.r); }
};

template <class T>
struct VectorFloat : Vector<T> {
  using typename Vector<T>::Registers;
  explicit VectorFloat(double value) : Vector<T>{Registers{} + static_cast<T>(value)} {}
  explicit VectorFloat(Registers r) : Vector<T>{r} {}
  VectorFloat operator-() const { return VectorFloat(-this->r); }
  friend VectorFloat operator+(VectorFloat a, VectorFloat b) { return VectorFloat(a.r + b.r); }
  friend VectorFloat operator-(VectorFloat a, VectorFloat b) { return VectorFloat(a.r - b.r); }
  friend VectorFloat operator*(VectorFloat a, VectorFloat b) { return VectorFloat(a.r * b.r); }
  friend VectorFloat operator/(VectorFloat a, VectorFloat b) { return VectorFloat(a.r / b.r); }
  friend VectorMask operator<(VectorFloat a, VectorFloat b) { return mask_of(a.r < b.r); }
  friend VectorMask operator==(VectorFloat a, VectorFloat b) { return mask_of(a.r == b.r); }
};

using Floats = VectorFloat<float>;
using Doubles = VectorFloat<double>;

template <>
struct LaneTypes<Floats> {
  using Mask = VectorMask;
  using Int = VectorInt<uint32_t>;
  using Wide = Doubles;
  static constexpr int kFraction = 23;
};

template <>
struct LaneTypes<Doubles> {
  using Mask = VectorMask;
  using Int = VectorInt<uint64_t>;
  static constexpr int kFraction = 52;
};

template <class T>
VectorFloat<T> fma(VectorFloat<T> a, VectorFloat<T> b, VectorFloat<T> c) {
  for (int lane = 0; lane < kLanes; ++lane) c.r[lane] = std::fma(a.r[lane], b.r[lane], c.r[lane]);
  return c;
}
template <class T>
VectorFloat<T> sqrt(VectorFloat<T> x) {
  for (int lane = 0; lane < kLanes; ++lane) x.r[lane] = std::sqrt(x.r[lane]);
  return x;
}
inline Doubles round_even(Doubles x) {
  for (int lane = 0; lane < kLanes; ++lane) x.r[lane] = std::nearbyint(x.r[lane]);
  return x;
}
inline Floats select(VectorMask mask, Floats yes, Floats no) { return Floats(mask.r ? yes.r : no.r); }
inline Doubles select(VectorMask mask, Doubles yes, Doubles no) {
  return Doubles(__builtin_convertvector(mask.r, Vector<int64_t>::Registers) ? yes.r : no.r);
}
inline VectorInt<uint32_t> as_int(Floats x) {
  return VectorInt<uint32_t>(std::bit_cast<VectorInt<uint32_t>::Registers>(x.r));
}
inline VectorInt<uint64_t> as_int(Doubles x) {
  return VectorInt<uint64_t>(std::bit_cast<VectorInt<uint64_t>::Registers>(x.r));
}
inline Floats as_float(VectorInt<uint32_t> bits) { return Floats(std::bit_cast<Floats::Registers>(bits.r)); }
inline Doubles as_float(VectorInt<uint64_t> bits) {
  return Doubles(std::bit_cast<Doubles::Registers>(bits.r));
}
inline Doubles widen(Floats x) { return Doubles(__builtin_convertvector(x.r, Doubles::Registers)); }
inline Floats narrow(Doubles x) { return Floats(__builtin_convertvector(x.r, Floats::Registers)); }

template <class Function>
Floats if_any(VectorMask mask, const Function& function, Floats otherwise) {
  bool any = false;
  for (int lane = 0; lane < kLanes; ++lane) any |= mask.r[lane] != 0;
  return any ? select(mask, function(), otherwise) : otherwise;
}

static_assert(LaneValue<Floats>);

}  // namespace anynpu::tile::math
