#include <ATen/Functions.h>
#include <torch/library.h>

#include <array>
#include <tuple>

namespace torch_npu {
namespace {

using at::Tensor;
using c10::SymIntArrayRef;
using std::optional;

// PyTorch's convolutions reach another device under these two names. Those with the ordinary names are in
// convolution.cpp, or run as a whole on the CPU (see fallback_rules.cpp), which picks the algorithm.
Tensor convolution_overrideable(const Tensor& input, const Tensor& weight, const optional<Tensor>& bias,
                                SymIntArrayRef stride, SymIntArrayRef padding, SymIntArrayRef dilation,
                                bool transposed, SymIntArrayRef output_padding, c10::SymInt groups) {
  return at::convolution_symint(input, weight, bias, stride, padding, dilation, transposed, output_padding,
                                std::move(groups));
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward_overrideable(
    const Tensor& grad_output, const Tensor& input, const Tensor& weight, SymIntArrayRef stride,
    SymIntArrayRef padding, SymIntArrayRef dilation, bool transposed, SymIntArrayRef output_padding,
    c10::SymInt groups, std::array<bool, 3> output_mask) {
  const std::vector<int64_t> bias_sizes = {grad_output.size(1)};
  const auto bias = c10::fromIntArrayRefSlow(bias_sizes);
  return at::convolution_backward_symint(grad_output, input, weight, bias, stride, padding, dilation,
                                         transposed, output_padding, std::move(groups), output_mask);
}

/// Programs count integers (a layer's experts) so on accelerators, and convert them first on the CPU, whose
/// kernel has floating types only.
Tensor histc(const Tensor& self, int64_t bins, const c10::Scalar& min, const c10::Scalar& max) {
  if (!c10::isIntegralType(self.scalar_type(), /*includeBool=*/false)) {
    Tensor result = at::empty({0}, self.options());
    return at::histc_out(result, self, bins, min, max);
  }
  return at::histc(self.to(at::kDouble), bins, min, max).to(self.scalar_type());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("convolution_backward_overrideable", convolution_backward_overrideable);
  m.impl("convolution_overrideable", convolution_overrideable);
  m.impl("histc", histc);
}

}  // namespace
}  // namespace torch_npu
