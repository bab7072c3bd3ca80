#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ops/formula.h"
#include "ops/iteration.h"
#include "ops/launch.h"

namespace anynpu::ops {

/// Products of matrices: out[b, i, j] = finish(sum over k of left[b, i, k] * right[b, k, j]).
///
/// Sums are of f32 for f16, bf16 and f32, of f64, and of i32 for i8 and i32 (integers wrap). Each is over
/// blocks of kDepth products: in a block fma by fma in the order of k, starting at 0; then block by block. So
/// a sum depends on its row and its column alone, whatever is computed beside it, in however many threads.
/// Where the processor has dot products of bf16, they compute those of bf16: they give the same bits, but
/// take subnormal numbers, sums in a block too, for zeros.
struct GemmCall {
  View left, right, out;  ///< batch x m x k, batch x k x n, batch x m x n; of a type
  /// What a sum becomes, in its type, before it is rounded to the result's: a function of the sum, of the
  /// operands, and of the numbers. It outlives the process's kernels. Null: the sum.
  const Formula* finish = nullptr;
  std::vector<View> operands = {};  ///< of the sizes of `out`
  std::vector<double> numbers = {};
  /// Right as pack_right() made it, which is read in its place where that is faster. No bits depend on it.
  std::optional<View> packed = {};
};

/// How many products a block of a sum has.
inline constexpr int64_t kDepth = 256;

/// Types of matrices that there are products of, of their own type.
inline constexpr DTypes kProductTypes(DType::kF16, DType::kBF16, DType::kF32, DType::kF64, DType::kI32);

/// The type of the sums of products of elements of that type. Raises kInvalidArgument where there are no
/// products of it.
DType sum_type(DType dtype);

/// Whether products of m x k and k x n elements are notably faster with a packed right matrix.
bool profits_from_packing(DType dtype, int64_t m, int64_t n, int64_t k);
/// A right matrix, batch x k x n, packed for products with any left one, in contiguous memory; and the launch
/// that packs it.
View packed_right(const View& right, void* memory);
Launch pack_right(const View& right, const View& packed);

/// The launches of a call, in order; `take` gives memory for what they pass on. Raises kInvalidArgument where
/// sizes or types do not fit.
std::vector<Launch> prepare(const GemmCall& call, const TakeMemory& take);

}  // namespace anynpu::ops
