#include <ATen/ATen.h>
#include <torch/library.h>

#include <tuple>

namespace torch_npu {
namespace {

using at::Tensor;
using std::optional;

// PyTorch's recurrent layers call these operators on devices other than the CPU, and have kernels of them for
// GPUs only. These are CPU kernels, which the fallback runs as it runs any other. What a workspace holds is
// agreed between a forward and its backward.

Tensor plus_bias(const Tensor& gates, const optional<Tensor>& bias) {
  return bias.has_value() && bias->defined() ? gates + *bias : gates;
}

Tensor sum_if(bool wanted, const Tensor& gates) { return wanted ? gates.sum(0) : Tensor(); }

/// The derivatives of sigmoid and tanh, from their values.
Tensor sigmoid_slope(const Tensor& value) { return value * (1 - value); }
Tensor tanh_slope(const Tensor& value) { return 1 - value * value; }

/// Gates: input, forget, cell, output. Workspace: the four after their activations.
std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates,
                                             const Tensor& cx, const optional<Tensor>& input_bias,
                                             const optional<Tensor>& hidden_bias) {
  const auto gates = (plus_bias(input_gates, input_bias) + plus_bias(hidden_gates, hidden_bias)).chunk(4, 1);
  const Tensor input = gates[0].sigmoid(), forget = gates[1].sigmoid(), cell = gates[2].tanh(),
               output = gates[3].sigmoid();
  Tensor cy = forget * cx + input * cell;
  return {output * cy.tanh(), cy, at::cat({input, forget, cell, output}, 1)};
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const optional<Tensor>& grad_hy,
                                                      const optional<Tensor>& grad_cy, const Tensor& cx,
                                                      const Tensor& cy, const Tensor& workspace,
                                                      bool has_bias) {
  const bool has_hy = grad_hy.has_value() && grad_hy->defined(),
             has_cy = grad_cy.has_value() && grad_cy->defined();
  if (!has_hy && !has_cy) return {};
  const auto gates = workspace.chunk(4, 1);
  const Tensor &input = gates[0], &forget = gates[1], &cell = gates[2], &output = gates[3];
  const Tensor tanh_cy = cy.tanh();
  const Tensor d_hy = has_hy ? *grad_hy : at::zeros_like(cy);
  Tensor d_cy = d_hy * output * tanh_slope(tanh_cy);
  if (has_cy) d_cy = d_cy + *grad_cy;
  Tensor d_gates = at::cat({d_cy * cell * sigmoid_slope(input), d_cy * cx * sigmoid_slope(forget),
                            d_cy * input * tanh_slope(cell), d_hy * tanh_cy * sigmoid_slope(output)},
                           1);
  return {d_gates, d_cy * forget, sum_if(has_bias, d_gates)};
}

/// Gates: reset, update, new. Workspace: the three after their activations, hx, and the hidden part of new.
std::tuple<Tensor, Tensor> gru_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& hx,
                                    const optional<Tensor>& input_bias, const optional<Tensor>& hidden_bias) {
  const auto input = plus_bias(input_gates, input_bias).chunk(3, 1);
  const auto hidden = plus_bias(hidden_gates, hidden_bias).chunk(3, 1);
  const Tensor reset = (input[0] + hidden[0]).sigmoid(), update = (input[1] + hidden[1]).sigmoid();
  const Tensor fresh = (input[2] + reset * hidden[2]).tanh();
  return {fresh + update * (hx - fresh), at::cat({reset, update, fresh, hx, hidden[2]}, 1)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& grad_hy,
                                                                     const Tensor& workspace, bool has_bias) {
  const auto saved = workspace.chunk(5, 1);
  const Tensor &reset = saved[0], &update = saved[1], &fresh = saved[2], &hx = saved[3], &hidden = saved[4];
  const Tensor d_update = grad_hy * (hx - fresh) * sigmoid_slope(update);
  const Tensor d_fresh = grad_hy * (1 - update) * tanh_slope(fresh);
  const Tensor d_reset = d_fresh * hidden * sigmoid_slope(reset);
  Tensor d_input = at::cat({d_reset, d_update, d_fresh}, 1);
  Tensor d_hidden = at::cat({d_reset, d_update, d_fresh * reset}, 1);
  return {d_input, d_hidden, grad_hy * update, sum_if(has_bias, d_input), sum_if(has_bias, d_hidden)};
}

TORCH_LIBRARY_IMPL(aten, CPU, m) {
  m.impl("_thnn_fused_gru_cell", gru_cell);
  m.impl("_thnn_fused_gru_cell_backward", gru_cell_backward);
  m.impl("_thnn_fused_lstm_cell", lstm_cell);
  m.impl("_thnn_fused_lstm_cell_backward_impl", lstm_cell_backward);
}

}  // namespace
}  // namespace torch_npu
