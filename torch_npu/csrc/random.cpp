#include "ops/random.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <cmath>
#include <optional>
#include <tuple>
#include <utility>

#include "torch_npu/csrc/alias.h"
#include "torch_npu/csrc/dtypes.h"
#include "torch_npu/csrc/errors.h"
#include "torch_npu/csrc/formats.h"
#include "torch_npu/csrc/generator.h"
#include "torch_npu/csrc/native_op.h"

namespace torch_npu {
namespace {

using anynpu::ops::Operand;
using anynpu::ops::RandomOp;
using anynpu::tile::Literal;
using at::Tensor;
using c10::IValue;

/// A generator of npu brings tensors of other devices here too.
bool is_computed(const Tensor& tensor) {
  const auto dtype = dtype_of(tensor.scalar_type());
  return tensor.is_privateuseone() && dtype && anynpu::ops::kAllFloats.contains(*dtype);
}

/// Of tensors that have the same strides, and no gaps: the results, then the operands.
void launch(const RandomOp& op, at::ArrayRef<Tensor> tensors, std::initializer_list<Literal> numbers,
            RandomCall call, OpCounter& counter) {
  c10::SmallVector<Operand, 3> operands;
  for (const Tensor& tensor : tensors) {
    check_memory(tensor);
    operands.push_back({*dtype_of(tensor.scalar_type()), const_cast<void*>(tensor.const_data_ptr())});
  }
  const anynpu::ops::RandomCall made = {op,
                                        anynpu::ops::compute_type(operands[0].dtype),
                                        tensors[0].numel(),
                                        {operands.data(), operands.size()},
                                        {numbers.begin(), numbers.size()},
                                        call.seed,
                                        call.offset};
  enqueue_native(npu_call([&] { return prepare(made); }), tensors[0], counter);
}

/// Fills `self` with numbers of the next call of the generator.
void fill(const Tensor& self, const RandomOp& op, std::initializer_list<Literal> numbers,
          const IValue& generator, OpCounter& counter) {
  const RandomCall call = random_call(generator.toOptional<at::Generator>(), self.device().index());
  const bool dense = self.is_non_overlapping_and_dense();
  const Tensor drawn = dense ? self : at::empty_like(self, at::MemoryFormat::Contiguous);
  launch(op, {drawn}, numbers, call, counter);
  if (!dense) const_cast<Tensor&>(self).copy_(drawn);
}

/// bernoulli_(self, p, generator)
Results bernoulli(Arguments arguments, OpCounter& counter) {
  static const RandomOp& op = anynpu::ops::random_op("Bernoulli");
  const Tensor& self = arguments[0].toTensor();
  const double p = arguments[1].toDouble();
  if (!is_computed(self) || self.numel() == 0 || !(p >= 0 && p <= 1) ||
      at::has_internal_overlap(self) == at::MemOverlap::Yes)
    return std::nullopt;
  fill(self, op, {p}, arguments[2], counter);
  return {{self}};
}

/// uniform_(self, from, to, generator)
Results uniform(Arguments arguments, OpCounter& counter) {
  static const RandomOp& op = anynpu::ops::random_op("Uniform");
  const Tensor& self = arguments[0].toTensor();
  const double from = arguments[1].toDouble(), to = arguments[2].toDouble();
  if (!is_computed(self) || self.numel() == 0) return std::nullopt;
  const double most = anynpu::ops::greatest_of(*dtype_of(self.scalar_type()));
  if (!(from <= to && to - from <= most && std::abs(from) <= most && std::abs(to) <= most))
    return std::nullopt;
  fill(self, op, {from, to}, arguments[3], counter);
  return {{self}};
}

/// One random call, whatever it drops.
std::tuple<Tensor, Tensor> native_dropout(const Tensor& given, double p, std::optional<bool> train) {
  static const RandomOp& op = anynpu::ops::random_op("Dropout");
  static OpCounter& counter = op_counter("aten::native_dropout");
  TORCH_CHECK(p >= 0 && p <= 1, "dropout probability has to be between 0 and 1, but got ", p);
  const auto bools = given.options().dtype(at::kBool);
  const Tensor input = plain_of(given, counter);
  if (input.numel() == 0) return {input.clone(), at::ones_like(input)};  // as PyTorch CPU has it
  if (!train.value_or(true)) return {input.clone(), at::ones_like(input, bools)};
  if (p == 1) return {at::zeros_like(input), at::zeros_like(input, bools)};
  if (!is_computed(input)) {
    Tensor mask = at::empty_like(input, bools).bernoulli_(1 - p);
    Tensor output = input.mul(mask).mul_(1 / (1 - p));
    return {std::move(output), std::move(mask)};
  }
  const Tensor x = input.is_non_overlapping_and_dense() ? input : input.contiguous();
  Tensor output = at::empty_like(x), mask = at::empty_like(x, bools);
  launch(op, {output, mask, x}, {1 - p, 1 / (1 - p)}, random_call(std::nullopt, input.device().index()),
         counter);
  return {std::move(output), std::move(mask)};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  add_whole(m, "native_dropout", {"Dropout"}, native_dropout);
  add_native(m, "uniform_", {"Uniform"}, uniform);
  add_native(m, "bernoulli_.float", {"Bernoulli"}, bernoulli);
}

}  // namespace
}  // namespace torch_npu
