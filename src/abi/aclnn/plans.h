#pragma once

#include "abi/aclnn/executor.h"

namespace anynpu::aclnn {

/// Of a row of ops::elementwise_ops(). The first tensors and scalars are
/// its operands, further scalars and numbers what the row says; a tensor that is written is the result.
Launches plan_elementwise(const Call& call, Workspace& workspace);
/// (selfRef), (selfRef) and (selfRef, value): one number in all elements.
Launches plan_zero(const Call& call, Workspace& workspace);
Launches plan_one(const Call& call, Workspace& workspace);
Launches plan_fill(const Call& call, Workspace& workspace);
/// (selfRef, src): the same elements in another type.
Launches plan_copy(const Call& call, Workspace& workspace);
/// Of a row of ops::line_ops(): (operands..., dim, the type to compute with, result), tensors of one shape.
/// Some have no such type.
Launches plan_along(const Call& call, Workspace& workspace);
/// Of a row of ops::line_ops() that reduces: (operand, dimensions or one, whether they stay with size 1, the
/// type to compute with, results). Some have no dimensions, and reduce all, or no such type.
Launches plan_reduce(const Call& call, Workspace& workspace);
/// (input, normalizedShape, weight, bias, eps, out, mean, rstd)
Launches plan_layer_norm(const Call& call, Workspace& workspace);
/// (gradOut, input, normalizedShape, mean, rstd, weight, bias, outputMask, gradients of input, weight, bias)
Launches plan_layer_norm_backward(const Call& call, Workspace& workspace);

/// (input, weight, bias, stride, padding, dilation, transposed, outputPadding, groups, output, cubeMathType):
/// types say what is computed with, whatever the last one allows.
Launches plan_convolution(const Call& call, Workspace& workspace);
/// (gradOutput, input, weight, biasSizes, stride, padding, dilation, transposed, outputPadding, groups,
/// outputMask, cubeMathType, gradients of input, weight, bias)
Launches plan_convolution_backward(const Call& call, Workspace& workspace);
/// (input, weight, bias, runningMean, runningVar, training, momentum, eps, output, saveMean, saveInvstd)
Launches plan_batch_norm(const Call& call, Workspace& workspace);
/// (gradOut, input, weight, runningMean, runningVar, saveMean, saveInvstd, training, eps, outputMask,
/// gradients of input, weight, bias)
Launches plan_batch_norm_backward(const Call& call, Workspace& workspace);
/// (self, kernelSize, stride, padding, dilation, ceilMode, out, indices), and of gradients (gradOutput, self,
/// indices, kernelSize, ..., ceilMode, gradInput). Names of functions say along how many dimensions.
Launches plan_max_pool(const Call& call, Workspace& workspace);
Launches plan_max_pool_backward(const Call& call, Workspace& workspace);
/// (self, kernelSize, stride, padding, ceilMode, countIncludePad, divisorOverride[, cubeMathType], out), and
/// of gradients (gradOutput, self, kernelSize, ..., gradInput). A divisor of 0 is none.
Launches plan_average_pool(const Call& call, Workspace& workspace);
Launches plan_average_pool_backward(const Call& call, Workspace& workspace);
/// (self, outputSize, out, indices) and (gradOutput, self, indices, gradInput), without indices of means
Launches plan_adaptive_max_pool(const Call& call, Workspace& workspace);
Launches plan_adaptive_max_pool_backward(const Call& call, Workspace& workspace);
Launches plan_adaptive_average_pool(const Call& call, Workspace& workspace);
Launches plan_adaptive_average_pool_backward(const Call& call, Workspace& workspace);
/// ([self that is added,] two operands[, beta and alpha], result[, cubeMathType]) of a product of matrices.
Launches plan_product(const Call& call, Workspace& workspace);
/// (query, key, value, realShift, dropMask, paddingMask, attenMask, prefix, scaleValue, keepProb, preTokens,
/// nextTokens, headNum, inputLayout, innerPrecise, sparseMode, softmaxMax, softmaxSum, softmax, attention)
Launches plan_attention(const Call& call, Workspace& workspace);
/// (query, key, value, dy, realShift, dropMask, paddingMask, attenMask, softmaxMax, softmaxSum, softmaxIn,
/// attentionIn, prefix, ..., sparseMode, dq, dk, dv, dpse)
Launches plan_attention_backward(const Call& call, Workspace& workspace);

/// (self, mask, out) and (self, out): what is chosen, in order, or its indices
Launches plan_masked_select(const Call& call, Workspace& workspace);
Launches plan_nonzero(const Call& call, Workspace& workspace);
/// (tensors..., dim, out), along a new dimension, or one that they have
Launches plan_stack(const Call& call, Workspace& workspace);
Launches plan_cat(const Call& call, Workspace& workspace);
/// (self, dim, index, out)
Launches plan_index_select(const Call& call, Workspace& workspace);
/// (self, dim, index, out)
Launches plan_gather(const Call& call, Workspace& workspace);
/// (self, dim, index, src, out)
Launches plan_scatter_add(const Call& call, Workspace& workspace);
/// (weight, indices, out)
Launches plan_embedding(const Call& call, Workspace& workspace);
/// (gradOutput, indices, numWeights, paddingIdx, scaleGradByFreq, out)
Launches plan_embedding_backward(const Call& call, Workspace& workspace);
/// (shape, prob, seed, offset[, probDataType], out): a bit for each element
Launches plan_dropout_mask(const Call& call, Workspace& workspace);
/// (self, mask, prob, out)
Launches plan_masked_dropout(const Call& call, Workspace& workspace);
/// (selfRef, from, to, seed, offset)
Launches plan_uniform(const Call& call, Workspace& workspace);

}  // namespace anynpu::aclnn
