#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ops/cube/attention.h"
#include "ops/cube/panels.h"
#include "ops/kernel_table.h"

namespace anynpu::ops {

/// The stride along the columns, where kernels are made for it.
std::optional<int64_t> last_stride(const View& view);

/// What kernels of attention have in common: their sizes, and what becomes of products of queries and keys.
class AttentionKernel {
 public:
  /// What such a kernel depends on, and its first arguments: of sizes, of buffers, of scalars. They come in
  /// this order, each before those of the kernel's own.
  static void add_key(KernelTable::Key& key, const Attention& of);
  static void add_key(KernelTable::Key& key, const std::optional<View>& view);
  static void add_sizes(jit::PackedArguments& arguments, const Attention& of, int64_t rows);
  static void add_buffers(jit::PackedArguments& arguments, const Attention& of);
  static void add_scalars(jit::PackedArguments& arguments, const Attention& of, DType sums);
  /// Of a tensor with a row for each query, or transposed, as given products take them.
  static void add_rows(jit::PackedArguments& arguments, const View& rows);
  static void add_turned(jit::PackedArguments& arguments, const View& rows);

 protected:
  using Index = tile::Index;
  using Expr = tile::Expr;

  AttentionKernel(std::string name, const Attention& of, DType sums);

  /// Products at those rows and columns of a head's, as scores; within the band where that is in question.
  Expr scores(const Expr& products, const Index& query, const Index& key, bool in_band);

  const Expr& scale() const { return *scale_; }

  /// The end of the keys that a query sees at most, by the band; and 0 where the prefix has that key, else 1.
  Index end_of_keys(const Index& query) const;
  Index is_past_prefix(const Index& key) const;

  /// The factors of dropout of those weights.
  Expr drop_factors(const Index& query, const Index& key, const Index& rows, const Index& cols);

  // Given products: of what the call gives, queries and keys for instance. They may be of pairs.
  bool of_pairs() const { return multiplies_pairs(of_.query.dtype); }
  DType factors() const { return of_pairs() ? DType::kI32 : sums_type_; }
  /// Of a product over so many numbers.
  Index depth(const Index& width) const { return of_pairs() ? ceil_div(width, 2) : width; }
  Matrices rows_of(const std::string& name, const View& view, const Index& heads, const Index& tokens,
                   const Index& width);
  Matrices turned_of(const std::string& name, const View& view, const Index& heads, const Index& tokens,
                     const Index& width);
  Expr given_product(const Expr& left, const Expr& right);
  /// Of factors that the kernel computed.
  Expr product(const Expr& left, const Expr& right);

  Expr filled(double value, const Index& rows, const Index& cols);
  void loop(const Index& first, const Index& last, int64_t step,
            const std::function<void(const Index&)>& body);
  /// Of queries, keys, values and results: batch x heads x tokens x width, or a column where `width` is 1.
  int tensor(const std::string& name, const View& view, const Index& heads, const Index& tokens,
             const Index& width);

  const Attention& of_;
  const DType sums_type_;
  tile::Builder builder_;
  Index batches_ = 0, heads_ = 0, key_heads_ = 0, shared_by_ = 0, queries_ = 0, keys_ = 0, width_ = 0,
        value_width_ = 0, block_rows_ = 0, least_ = 0, most_ = 0, prefix_ = 0;
  Index batch_ = 0, head_ = 0;  ///< of the queries; to be set

 private:
  int bias_ = -1, mask_ = -1, bits_ = -1;
  Index first_weight_ = 0, weights_ = 0;
  std::optional<Expr> scale_, keep_, factor_, seed_, offset_;
};

/// Raises kInvalidArgument where sizes or types do not fit each other.
void check(const Attention& of);

/// The same of a tensor with a row for each query, whose last size is `width` where that is given.
void check_rows(const Attention& of, const View& view, const char* name, DType dtype,
                std::optional<int64_t> width);

/// An estimate of a call's work in bytes: `products` of the width for each pair of a query and a key.
double attention_work(const Attention& of, double products);

}  // namespace anynpu::ops
