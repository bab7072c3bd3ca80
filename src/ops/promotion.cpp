#include "ops/promotion.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace anynpu::ops {
namespace {

enum class Kind : uint8_t { kBool, kInteger, kFloat };

Kind kind_of(DType dtype) {
  if (dtype == DType::kBool) return Kind::kBool;
  return tile::kIntegers.contains(dtype) ? Kind::kInteger : Kind::kFloat;
}

/// Of a heavier and a lighter operand.
DType combined(DType heavier, DType lighter) {
  return kind_of(heavier) < kind_of(lighter) ? promoted(heavier, lighter) : heavier;
}

}  // namespace

DType promoted(DType a, DType b) {
  if (a == b) return a;
  if (kind_of(a) != kind_of(b)) return kind_of(a) < kind_of(b) ? b : a;
  if (tile::size_of(a) != tile::size_of(b)) return tile::size_of(a) < tile::size_of(b) ? b : a;
  return kind_of(a) == Kind::kFloat ? DType::kF32 : DType::kI16;  // of f16 and bf16, of u8 and i8
}

DType promoted(std::span<const Promotable> operands) {
  std::optional<DType> result;
  using Weight = Promotable::Weight;
  for (const Weight weight : {Weight::kNumber, Weight::kZeroDimensional, Weight::kTensor}) {
    std::optional<DType> same;  // of the operands of this weight
    for (const Promotable& operand : operands) {
      if (operand.weight != weight) continue;
      const bool number = weight == Weight::kNumber && kind_of(operand.dtype) == Kind::kFloat;
      const DType dtype = number ? DType::kF32 : operand.dtype;
      same = same ? promoted(*same, dtype) : dtype;
    }
    if (same) result = result ? combined(*same, *result) : *same;
  }
  return result.value();
}

DType promoted(std::span<const View> operands) {
  DType common = operands.front().dtype;
  for (const View& operand : operands) common = promoted(common, operand.dtype);
  return common;
}

bool holds(DType dtype, int64_t integer) {
  return tile::visit(dtype, [&]<class T>(std::type_identity<T>) {
    if constexpr (!std::is_integral_v<T>)
      return false;
    else
      return static_cast<int64_t>(static_cast<T>(integer)) == integer;
  });
}

bool can_cast(DType from, DType to) { return kind_of(from) <= kind_of(to); }

}  // namespace anynpu::ops
