#include "ops/lines.h"

#include <ATen/TensorIterator.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <torch/library.h>

#include <array>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "torch_npu/csrc/counters.h"
#include "torch_npu/csrc/dtypes.h"
#include "torch_npu/csrc/fallback.h"
#include "torch_npu/csrc/kernel_call.h"

namespace torch_npu {
namespace {

using anynpu::ops::LineCall;
using anynpu::ops::LineOp;
using anynpu::ops::Operand;
using anynpu::tile::DType;
using anynpu::tile::Literal;
using at::Tensor;

constexpr anynpu::tile::DTypes kTypes = anynpu::ops::kAllFloats;

bool computed(const Tensor& tensor) {
  const auto dtype = dtype_of(tensor.scalar_type());
  return dtype && kTypes.contains(*dtype);
}

DType compute_type_of(const Tensor& tensor) {
  return anynpu::ops::compute_type(*dtype_of(tensor.scalar_type()));
}

void enqueue(const LineCall& call, const Tensor& on, OpCounter& counter) {
  anynpu::Stream& stream = current_runtime_stream(on.device());
  const anynpu::TaskLabel label(counter.name.c_str());
  counter.count_native();
  npu_call([&] {
    anynpu::ops::enqueue(stream, prepare(call), threads_for(anynpu::Lane::kParallel, stream.device()));
  });
}

/// Runs `op` on the lines along dimension `dim` of tensors of one shape: the results, then the operands. One
/// without dimensions is a line of one element.
void run_along(const LineOp& op, int64_t dim, at::ArrayRef<Tensor> tensors, OpCounter& counter) {
  const Tensor& shape = tensors.front();
  if (shape.numel() == 0) return;
  if (shape.dim() == 0) {
    c10::SmallVector<Tensor, 3> lines;
    for (const Tensor& tensor : tensors) lines.push_back(tensor.view({1}));
    return run_along(op, 0, lines, counter);
  }
  at::TensorIteratorConfig config;
  config.check_all_same_dtype(false).resize_outputs(false);
  config.declare_static_shape(shape.sizes(), /*squash_dims=*/dim);
  for (size_t i = 0; i < tensors.size(); ++i)
    i < op.formula.results ? config.add_output(tensors[i]) : config.add_const_input(tensors[i]);
  at::TensorIterator across = config.build();
  c10::SmallVector<int64_t, 4> sizes(across.shape().begin(), across.shape().end());
  if (sizes.empty()) sizes.push_back(1);
  c10::SmallVector<c10::SmallVector<int64_t, 5>, 4> strides;
  c10::SmallVector<Operand, 4> operands;
  for (int i = 0; i < across.ntensors(); ++i) {
    const Tensor& tensor = tensors[static_cast<size_t>(i)];
    auto& of_tensor = strides.emplace_back(across.strides(i).begin(), across.strides(i).end());
    of_tensor.resize(sizes.size(), 0);
    of_tensor.push_back(tensor.stride(dim) * tensor.element_size());
  }
  for (int i = 0; i < across.ntensors(); ++i)
    operands.push_back({*dtype_of(tensors[static_cast<size_t>(i)].scalar_type()),
                        across.data_ptr(i),
                        {strides[static_cast<size_t>(i)].data(), strides[static_cast<size_t>(i)].size()}});
  enqueue({op, compute_type_of(tensors.back()), {sizes.data(), sizes.size()}, shape.size(dim), operands, {}},
          shape, counter);
}

using Arguments = at::ArrayRef<c10::IValue>;
/// Results of a call; nothing where there is no kernel for such arguments.
using Results = std::optional<c10::SmallVector<Tensor, 3>>;

/// Of one operand and its dimension: _softmax(self, dim, half_to_float) and the like.
Results forward_along(const LineOp& op, Arguments arguments, OpCounter& counter) {
  const Tensor& x = arguments[0].toTensor();
  if (!computed(x) || arguments[2].toBool()) return std::nullopt;
  const int64_t dim = at::maybe_wrap_dim(arguments[1].toInt(), x.dim());
  const Tensor y = at::empty_like(x, at::MemoryFormat::Contiguous);
  run_along(op, dim, {y, x}, counter);
  return {{y}};
}

/// _softmax_backward_data(grad_output, output, dim, input_dtype) and the like.
Results backward_along(const LineOp& op, Arguments arguments, OpCounter& counter) {
  const Tensor &grad = arguments[0].toTensor(), &y = arguments[1].toTensor();
  const bool same = grad.scalar_type() == y.scalar_type() && grad.sizes() == y.sizes() &&
                    grad.device() == y.device() && arguments[3].toScalarType() == y.scalar_type();
  if (!computed(grad) || !same) return std::nullopt;
  const int64_t dim = at::maybe_wrap_dim(arguments[2].toInt(), y.dim());
  const Tensor result = at::empty_like(y, at::MemoryFormat::Contiguous);
  run_along(op, dim, {result, grad, y}, counter);
  return {{result}};
}

/// The rows and columns of layer normalization: what is normalized is a row.
struct Rows {
  int64_t rows = 1, cols = 1;
  c10::SmallVector<int64_t, 5> statistics;  ///< sizes of mean and factor

  static std::optional<Rows> of(const Tensor& x, at::IntArrayRef normalized) {
    const auto first = x.dim() - static_cast<int64_t>(normalized.size());
    if (normalized.empty() || first < 0 || x.sizes().slice(static_cast<size_t>(first)) != normalized)
      return std::nullopt;
    Rows rows;
    for (int64_t d = 0; d < x.dim(); ++d) {
      (d < first ? rows.rows : rows.cols) *= x.size(d);
      rows.statistics.push_back(d < first ? x.size(d) : 1);
    }
    return rows;
  }
};

/// Where the elements of a matrix lie: all, one for each row or column, or the same everywhere.
struct Matrix {
  Tensor tensor;
  int64_t row_stride, col_stride;  ///< in elements
};

/// Runs `op` on the rows, or on the columns, of matrices.
void run_matrices(const LineOp& op, const Rows& rows, bool along_rows, DType compute,
                  std::initializer_list<Matrix> matrices, at::ArrayRef<Literal> numbers, OpCounter& counter) {
  c10::SmallVector<std::array<int64_t, 2>, 8> strides;
  c10::SmallVector<Operand, 8> operands;
  strides.reserve(matrices.size());
  for (const auto& [tensor, row_stride, col_stride] : matrices) {
    const auto bytes = static_cast<int64_t>(tensor.element_size());
    const int64_t across = along_rows ? row_stride : col_stride, along = along_rows ? col_stride : row_stride;
    strides.push_back({across * bytes, along * bytes});
    operands.push_back(
        {*dtype_of(tensor.scalar_type()), const_cast<void*>(tensor.const_data_ptr()), strides.back()});
  }
  const int64_t across = along_rows ? rows.rows : rows.cols, along = along_rows ? rows.cols : rows.rows;
  enqueue({op, compute, {&across, 1}, along, operands, {numbers.data(), numbers.size()}},
          matrices.begin()->tensor, counter);
}

/// A weight or bias of the normalized shape, in contiguous memory; `otherwise` for every column where it is
/// not given. Nothing where it is none that PyTorch takes.
std::optional<Matrix> affine(const c10::IValue& given, const Tensor& x, const Rows& rows, double otherwise) {
  if (given.isNone() || !given.toTensor().defined())
    return Matrix{at::full({}, otherwise, x.options()), 0, 0};
  const Tensor& tensor = given.toTensor();
  if (!computed(tensor) || tensor.numel() != rows.cols || tensor.device() != x.device()) return std::nullopt;
  return Matrix{tensor.contiguous(), 0, 1};
}

/// The type of the statistics, as on the CPU: the tensors', or f32 where halves have parameters of f32.
std::optional<c10::ScalarType> statistics_type(const Tensor& x, std::initializer_list<Tensor> parameters) {
  c10::ScalarType type = x.scalar_type();
  for (const Tensor& parameter : parameters) {
    if (parameter.scalar_type() == x.scalar_type()) continue;
    if (!at::isReducedFloatingType(x.scalar_type()) || parameter.scalar_type() != at::kFloat)
      return std::nullopt;
    type = at::kFloat;
  }
  return type;
}

/// native_layer_norm(input, normalized_shape, weight, bias, eps)
Results layer_norm(Arguments arguments, OpCounter& counter) {
  static const LineOp& op = anynpu::ops::line_op("LayerNorm");
  const Tensor& input = arguments[0].toTensor();
  const auto rows = Rows::of(input, arguments[1].toIntVector());
  if (!computed(input) || !rows || rows->rows * rows->cols == 0) return std::nullopt;
  const auto weight = affine(arguments[2], input, *rows, 1), bias = affine(arguments[3], input, *rows, 0);
  if (!weight || !bias) return std::nullopt;
  const auto type = statistics_type(input, {weight->tensor, bias->tensor});
  if (!type) return std::nullopt;
  const Tensor x = input.contiguous(), y = at::empty_like(x, at::MemoryFormat::Contiguous);
  const Tensor mean = at::empty(rows->statistics, x.options().dtype(*type)), factor = at::empty_like(mean);
  run_matrices(op, *rows, true, compute_type_of(x),
               {{y, rows->cols, 1}, {mean, 1, 0}, {factor, 1, 0}, {x, rows->cols, 1}, *weight, *bias},
               Literal(arguments[4].toDouble()), counter);
  return {{y, mean, factor}};
}

/// native_layer_norm_backward(grad_out, input, normalized_shape, mean, rstd, weight, bias, output_mask)
Results layer_norm_backward(Arguments arguments, OpCounter& counter) {
  static const LineOp& op = anynpu::ops::line_op("LayerNormBackward");
  static const LineOp& affine_op = anynpu::ops::line_op("LayerNormBackwardAffine");
  const Tensor &given = arguments[0].toTensor(), &input = arguments[1].toTensor();
  const auto rows = Rows::of(input, arguments[2].toIntVector());
  if (!computed(input) || !rows || rows->rows * rows->cols == 0 || given.sizes() != input.sizes() ||
      given.scalar_type() != input.scalar_type())
    return std::nullopt;
  const auto weight = affine(arguments[5], input, *rows, 1);
  if (!weight) return std::nullopt;
  const Tensor x = input.contiguous(), grad = given.contiguous();
  const Tensor mean = arguments[3].toTensor().contiguous(), factor = arguments[4].toTensor().contiguous();
  if (!computed(mean) || !computed(factor)) return std::nullopt;
  const auto mask = arguments[7].toBoolList();
  Tensor of_x, of_weight, of_bias;
  const DType compute = compute_type_of(x);
  const int64_t cols = rows->cols;
  if (mask[0]) {
    of_x = at::empty_like(x);
    run_matrices(op, *rows, true, compute,
                 {{of_x, cols, 1}, {grad, cols, 1}, {x, cols, 1}, *weight, {mean, 1, 0}, {factor, 1, 0}}, {},
                 counter);
  }
  if (mask[1] || mask[2]) {
    const Tensor made_weight = at::empty(arguments[2].toIntVector(), weight->tensor.options());
    const Tensor made_bias = at::empty_like(made_weight);
    run_matrices(
        affine_op, *rows, false, compute,
        {{made_weight, 0, 1}, {made_bias, 0, 1}, {grad, cols, 1}, {x, cols, 1}, {mean, 1, 0}, {factor, 1, 0}},
        {}, counter);
    if (mask[1]) of_weight = made_weight;
    if (mask[2]) of_bias = made_bias;
  }
  return {{of_x, of_weight, of_bias}};
}

Results softmax(Arguments arguments, OpCounter& counter) {
  return forward_along(anynpu::ops::line_op("Softmax"), arguments, counter);
}
Results log_softmax(Arguments arguments, OpCounter& counter) {
  return forward_along(anynpu::ops::line_op("LogSoftmax"), arguments, counter);
}
Results softmax_backward(Arguments arguments, OpCounter& counter) {
  return backward_along(anynpu::ops::line_op("SoftmaxBackward"), arguments, counter);
}
Results log_softmax_backward(Arguments arguments, OpCounter& counter) {
  return backward_along(anynpu::ops::line_op("LogSoftmaxBackward"), arguments, counter);
}

/// An operator with a kernel of our own; calls that this has no types for go to the fallback.
class LineKernel : public c10::OperatorKernel {
 public:
  using Function = Results (*)(Arguments, OpCounter&);
  LineKernel(Function function, const std::string& name) : function_(function), counter_(op_counter(name)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    const size_t count = op.schema().arguments().size();
    auto results = function_(torch::jit::last(*stack, count), counter_);
    if (!results) return fallback(op, keys, stack);
    torch::jit::drop(*stack, count);
    for (Tensor& result : *results) torch::jit::push(*stack, std::move(result));
  }

 private:
  const Function function_;
  OpCounter& counter_;
};

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  const auto add = [&](const char* name, LineKernel::Function function) {
    auto kernel = std::make_unique<LineKernel>(function, std::string("aten::") + name);
    m.impl(name, torch::CppFunction::makeFromBoxedFunctor(std::move(kernel)));
  };
  add("_softmax", softmax);
  add("_softmax_backward_data", softmax_backward);
  add("_log_softmax", log_softmax);
  add("_log_softmax_backward_data", log_softmax_backward);
  add("native_layer_norm", layer_norm);
  add("native_layer_norm_backward", layer_norm_backward);
}

}  // namespace
}  // namespace torch_npu
