// torch_npu's operators of formats.

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <string>

#include "torch_npu/csrc/formats.h"

namespace torch_npu {
namespace {

using at::Tensor;
using std::optional;

/// What plain memory is called.
enum Plain : int64_t { kNCHW = 0, kND = 2, kNCDHW = 30 };

int64_t plain_format(int64_t dims) { return dims == 4 ? kNCHW : dims == 5 ? kNCDHW : kND; }

/// The format of that number for tensors of so many dimensions; null: plain.
const Format* format_by_number(const char* function, int64_t number, int64_t dims) {
  if (number == kND || number == plain_format(dims)) return nullptr;
  for (const Format& format : formats())
    if (format.number == number && format.takes(dims)) return &format;
  std::string accepted = "2 (ND)";
  if (dims == 4) accepted += ", 0 (NCHW)";
  if (dims == 5) accepted += ", 30 (NCDHW)";
  for (const Format& format : formats())
    if (format.takes(dims))
      accepted += ", " + std::to_string(format.number) + " (" + std::string(format.name) + ")";
  TORCH_CHECK(false, function, ": acl_format is ", number, "; of a tensor of ", dims, " dimensions ",
              accepted, " are accepted");
}

void check_kind(const char* function, const Tensor& tensor) {
  TORCH_CHECK(tensor.is_privateuseone() && tensor.layout() == c10::kStrided && !tensor.is_quantized() &&
                  !tensor.is_nested() && !tensor._is_zerotensor(),
              function, ": self is ", tensor.toString(), "; a dense tensor of npu is accepted");
}

/// A new tensor, whatever format `self` has.
Tensor npu_format_cast(const Tensor& self, int64_t number) {
  static OpCounter& counter = op_counter("npu::npu_format_cast");
  check_kind("npu_format_cast", self);
  const Format* format = format_by_number("npu_format_cast", number, self.dim());
  const c10::DeviceGuard guard(self.device());
  if (format == nullptr) return plain_of(self, counter).clone(at::MemoryFormat::Contiguous);
  if (is_whole(self) && format_of(self) == format) return self.clone();
  return cast_to(*format, self, counter);
}

Tensor& npu_format_cast_(Tensor& self, int64_t number) {
  static OpCounter& counter = op_counter("npu::npu_format_cast_");
  check_kind("npu_format_cast_", self);
  const Format* format = format_by_number("npu_format_cast_", number, self.dim());
  const c10::DeviceGuard guard(self.device());
  if (format == nullptr) {
    make_plain(self, counter);
  } else if (!is_whole(self) || format_of(self) != format) {
    cast_storage_to(*format, self, counter);
  }
  return self;
}

/// The operator by its name, so that what stands before kernels (modes, fake tensors, tracers) sees it.
Tensor call_npu_format_cast(const Tensor& self, int64_t number) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("npu::npu_format_cast", "")
                             .typed<Tensor(const Tensor&, int64_t)>();
  return op.call(self, number);
}

/// As the gradient comes: what computes it decides on its format.
struct FormatCast : torch::autograd::Function<FormatCast> {
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& self, int64_t number) {
    const at::AutoDispatchBelowADInplaceOrView below;
    return call_npu_format_cast(self, number);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list& gradients) {
    return {gradients[0], Tensor()};
  }
};

Tensor npu_format_cast_with_gradient(const Tensor& self, int64_t number) {
  return FormatCast::apply(self, number);
}

int64_t get_npu_format(const Tensor& self) {
  check_kind("get_npu_format", self);
  const Format* format = is_formatted(self) ? format_of(self) : nullptr;
  return format != nullptr ? format->number : plain_format(self.dim());
}

/// In elements.
int64_t get_storage_size(const Tensor& self) {
  check_kind("get_storage_size", self);
  if (is_whole(self)) return blocks_of(self).numel();
  return static_cast<int64_t>(self.storage().nbytes() / self.itemsize());
}

Tensor empty_with_format(at::IntArrayRef size, optional<c10::ScalarType> dtype, optional<c10::Layout> layout,
                         optional<c10::Device> device, optional<bool> pin_memory, int64_t number) {
  const auto dims = static_cast<int64_t>(size.size());
  const Format* format = format_by_number("empty_with_format", number, dims);
  const c10::Device on = device.value_or(c10::Device(c10::DeviceType::PrivateUse1));
  Tensor made = at::empty(size, at::TensorOptions(on).dtype(dtype).layout(layout).pinned_memory(pin_memory));
  check_kind("empty_with_format", made);
  if (format == nullptr) return made;
  const c10::DeviceGuard guard(made.device());
  return empty_in_format(*format, size, made.options());
}

TORCH_LIBRARY_FRAGMENT(npu, m) {
  m.def("npu_format_cast(Tensor self, int acl_format) -> Tensor");
  m.def("npu_format_cast_(Tensor(a!) self, int acl_format) -> Tensor(a!)");
  m.def("get_npu_format(Tensor self) -> int", get_npu_format);
  m.def("get_storage_size(Tensor self) -> int", get_storage_size);
  m.def(
      "empty_with_format(int[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, "
      "bool? pin_memory=None, int acl_format=2) -> Tensor",
      empty_with_format);
}

TORCH_LIBRARY_IMPL(npu, PrivateUse1, m) {
  m.impl("npu_format_cast", npu_format_cast);
  m.impl("npu_format_cast_", npu_format_cast_);
}

TORCH_LIBRARY_IMPL(npu, AutogradPrivateUse1, m) {
  m.impl("npu_format_cast", npu_format_cast_with_gradient);
  m.impl("npu_format_cast_", torch::CppFunction::makeFallthrough());
}

}  // namespace
}  // namespace torch_npu
