#pragma once

#include <llvm/IR/IRBuilder.h>

#include <type_traits>
#include <utility>

#include "jit/codegen/elements.h"
#include "tile/math.h"

namespace anynpu::jit {

/// Where the lanes below are emitted, while an object of this lives: they are plain values for tile/math.h,
/// which knows no builder.
class EmittingLanes {
 public:
  EmittingLanes(llvm::IRBuilder<>& builder, int count)
      : builder(builder), count(count), outer_(std::exchange(current_, this)) {}
  ~EmittingLanes() { current_ = outer_; }
  EmittingLanes(const EmittingLanes&) = delete;

  static EmittingLanes& current() { return *current_; }
  llvm::Type* vector(llvm::Type* element) const {
    return count == 1 ? element : llvm::FixedVectorType::get(element, static_cast<unsigned>(count));
  }

  llvm::IRBuilder<>& builder;
  const int count;

 private:
  inline static thread_local EmittingLanes* current_ = nullptr;
  EmittingLanes* outer_;
};

inline llvm::IRBuilder<>& builder_of_lanes() { return EmittingLanes::current().builder; }

/// What comparing gives: i1 in each lane.
struct MaskLanes {
  llvm::Value* value;

  friend MaskLanes operator&&(MaskLanes a, MaskLanes b) {
    return {builder_of_lanes().CreateAnd(a.value, b.value)};
  }
  friend MaskLanes operator||(MaskLanes a, MaskLanes b) {
    return {builder_of_lanes().CreateOr(a.value, b.value)};
  }
  friend MaskLanes operator!(MaskLanes a) { return {builder_of_lanes().CreateNot(a.value)}; }
};

/// Unsigned integers as wide as F, which wrap.
template <class F>
struct IntLanes {
  template <class P>
    requires std::is_pointer_v<P>  // and not the constant 0
  explicit IntLanes(P lanes) : value(lanes) {}
  explicit IntLanes(uint64_t constant) : value(llvm::ConstantInt::get(type(), constant)) {}
  static llvm::Type* type() {
    return EmittingLanes::current().vector(builder_of_lanes().getIntNTy(sizeof(F) * 8));
  }

  llvm::Value* value;

  friend IntLanes operator+(IntLanes a, IntLanes b) {
    return IntLanes(builder_of_lanes().CreateAdd(a.value, b.value));
  }
  friend IntLanes operator-(IntLanes a, IntLanes b) {
    return IntLanes(builder_of_lanes().CreateSub(a.value, b.value));
  }
  friend IntLanes operator&(IntLanes a, IntLanes b) {
    return IntLanes(builder_of_lanes().CreateAnd(a.value, b.value));
  }
  friend IntLanes operator|(IntLanes a, IntLanes b) {
    return IntLanes(builder_of_lanes().CreateOr(a.value, b.value));
  }
  friend IntLanes operator^(IntLanes a, IntLanes b) {
    return IntLanes(builder_of_lanes().CreateXor(a.value, b.value));
  }
  friend IntLanes operator<<(IntLanes a, int by) {
    return IntLanes(builder_of_lanes().CreateShl(a.value, static_cast<uint64_t>(by)));
  }
  friend IntLanes operator>>(IntLanes a, int by) {
    return IntLanes(builder_of_lanes().CreateLShr(a.value, static_cast<uint64_t>(by)));
  }
  friend MaskLanes operator==(IntLanes a, IntLanes b) {
    return {builder_of_lanes().CreateICmpEQ(a.value, b.value)};
  }
};

/// Numbers of type F: float or double.
template <class F>
struct FloatLanes {
  template <class P>
    requires std::is_pointer_v<P>
  explicit FloatLanes(P lanes) : value(lanes) {}
  explicit FloatLanes(double constant) : value(llvm::ConstantFP::get(type(), static_cast<F>(constant))) {}
  static llvm::Type* type() {
    auto& builder = builder_of_lanes();
    return EmittingLanes::current().vector(std::is_same_v<F, float> ? builder.getFloatTy()
                                                                    : builder.getDoubleTy());
  }

  llvm::Value* value;

  friend FloatLanes operator-(FloatLanes a) { return FloatLanes(builder_of_lanes().CreateFNeg(a.value)); }
  friend FloatLanes operator+(FloatLanes a, FloatLanes b) {
    return FloatLanes(builder_of_lanes().CreateFAdd(a.value, b.value));
  }
  friend FloatLanes operator-(FloatLanes a, FloatLanes b) {
    return FloatLanes(builder_of_lanes().CreateFSub(a.value, b.value));
  }
  friend FloatLanes operator*(FloatLanes a, FloatLanes b) {
    return FloatLanes(builder_of_lanes().CreateFMul(a.value, b.value));
  }
  friend FloatLanes operator/(FloatLanes a, FloatLanes b) {
    return FloatLanes(builder_of_lanes().CreateFDiv(a.value, b.value));
  }
  friend MaskLanes operator<(FloatLanes a, FloatLanes b) {
    return {builder_of_lanes().CreateFCmpOLT(a.value, b.value)};
  }
  friend MaskLanes operator==(FloatLanes a, FloatLanes b) {
    return {builder_of_lanes().CreateFCmpOEQ(a.value, b.value)};
  }

  friend FloatLanes fma(FloatLanes a, FloatLanes b, FloatLanes c) {
    return FloatLanes(
        builder_of_lanes().CreateIntrinsic(llvm::Intrinsic::fma, {type()}, {a.value, b.value, c.value}));
  }
  friend FloatLanes sqrt(FloatLanes x) {
    return FloatLanes(builder_of_lanes().CreateUnaryIntrinsic(llvm::Intrinsic::sqrt, x.value));
  }
  friend FloatLanes round_even(FloatLanes x) {
    return FloatLanes(builder_of_lanes().CreateUnaryIntrinsic(llvm::Intrinsic::roundeven, x.value));
  }
  friend FloatLanes select(MaskLanes mask, FloatLanes yes, FloatLanes no) {
    return FloatLanes(builder_of_lanes().CreateSelect(mask.value, yes.value, no.value));
  }
  friend IntLanes<F> as_int(FloatLanes x) {
    return IntLanes<F>(builder_of_lanes().CreateBitCast(x.value, IntLanes<F>::type()));
  }
};

template <class F>
FloatLanes<F> as_float(IntLanes<F> bits) {
  return FloatLanes<F>(builder_of_lanes().CreateBitCast(bits.value, FloatLanes<F>::type()));
}
inline FloatLanes<double> widen(FloatLanes<float> x) {
  return FloatLanes<double>(builder_of_lanes().CreateFPExt(x.value, FloatLanes<double>::type()));
}
inline FloatLanes<float> narrow(FloatLanes<double> x) {
  return FloatLanes<float>(builder_of_lanes().CreateFPTrunc(x.value, FloatLanes<float>::type()));
}

/// Branches around the function where no lane of the mask is set.
template <class Function>
FloatLanes<float> if_any(MaskLanes mask, const Function& function, FloatLanes<float> otherwise) {
  auto& b = builder_of_lanes();
  llvm::Value* any = EmittingLanes::current().count == 1 ? mask.value : b.CreateOrReduce(mask.value);
  llvm::Function* in = b.GetInsertBlock()->getParent();
  llvm::BasicBlock* const before = b.GetInsertBlock();
  auto* some = llvm::BasicBlock::Create(b.getContext(), "some", in);
  auto* after = llvm::BasicBlock::Create(b.getContext(), "none", in);
  b.CreateCondBr(any, some, after);
  b.SetInsertPoint(some);
  llvm::Value* given = select(mask, function(), otherwise).value;
  llvm::BasicBlock* const end = b.GetInsertBlock();
  b.CreateBr(after);
  b.SetInsertPoint(after);
  llvm::PHINode* result = b.CreatePHI(given->getType(), 2);
  result->addIncoming(otherwise.value, before);
  result->addIncoming(given, end);
  return FloatLanes<float>(result);
}

}  // namespace anynpu::jit

template <>
struct anynpu::tile::math::LaneTypes<anynpu::jit::FloatLanes<float>> {
  using Mask = anynpu::jit::MaskLanes;
  using Int = anynpu::jit::IntLanes<float>;
  using Wide = anynpu::jit::FloatLanes<double>;
  static constexpr int kFraction = 23;
};

template <>
struct anynpu::tile::math::LaneTypes<anynpu::jit::FloatLanes<double>> {
  using Mask = anynpu::jit::MaskLanes;
  using Int = anynpu::jit::IntLanes<double>;
  static constexpr int kFraction = 52;
};
