#include "ops/cube/attention_kernel.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "ops/cube/gemm.h"
#include "ops/random.h"

namespace anynpu::ops {

using tile::Axis;
using tile::Expr;
using tile::Index;

std::optional<int64_t> last_stride(const View& view) {
  const int64_t stride = view.strides.back();
  return stride == 0 || stride == 1 ? std::optional(stride) : std::nullopt;
}

AttentionKernel::AttentionKernel(std::string name, const Attention& of, DType sums)
    : of_(of), sums_type_(sums), builder_(std::move(name)) {
  for (const auto& [member, size] :
       std::initializer_list<std::pair<Index*, const char*>>{{&batches_, "batch"},
                                                             {&heads_, "heads"},
                                                             {&key_heads_, "key_heads"},
                                                             {&shared_by_, "shared_by"},
                                                             {&queries_, "queries"},
                                                             {&keys_, "keys"},
                                                             {&width_, "width"},
                                                             {&value_width_, "value_width"},
                                                             {&block_rows_, "rows"},
                                                             {&least_, "least"},
                                                             {&most_, "most"}})
    *member = builder_.size(size);
  least_ = least_ - Band::kNoLimit;  // sizes are not negative
  most_ = most_ - Band::kNoLimit;
  if (of.prefix != 0) prefix_ = builder_.size("prefix");
  if (of.dropout.keep != 1) {
    first_weight_ = builder_.size("first_weight");
    weights_ = builder_.size(of.dropout.bits ? "bytes_of_bits" : "weights");
  }
  const auto of_scores = [&](const char* buffer, const View& view) {
    return builder_.buffer(buffer, view.dtype, {batches_, heads_, queries_, keys_},
                           {std::nullopt, std::nullopt, std::nullopt, last_stride(view)});
  };
  if (of.bias) bias_ = of_scores("bias", *of.bias);
  if (of.mask) mask_ = of_scores("mask", *of.mask);
  if (of.dropout.keep != 1 && of.dropout.bits)
    bits_ = builder_.buffer("bits", DType::kU8, {queries_, weights_}, {0, 1});  // the same for all rows
  scale_ = builder_.scalar("scale", sums);
  if (of.dropout.keep == 1) return;
  factor_ = builder_.scalar("factor", sums);
  if (!of.dropout.bits) {
    keep_ = builder_.scalar("keep", sums);
    seed_ = builder_.scalar("seed", DType::kI64);
    offset_ = builder_.scalar("offset", DType::kI64);
  }
}

void AttentionKernel::add_key(KernelTable::Key& key, const std::optional<View>& view) {
  key.add(static_cast<uint8_t>(!view ? 3 : last_stride(*view).value_or(2)));
  if (!view) return;
  key.add(view->dtype);
  add_to(key, pairs_of(*view, PairsAlong::kCols));
}

void AttentionKernel::add_key(KernelTable::Key& key, const Attention& of) {
  add_key(key, of.query);
  for (const View& view : {transposed(of.key), of.value}) key.add(layout_of(view));
  for (const View& view : {of.key, of.value}) add_to(key, pairs_of(view, PairsAlong::kCols));
  for (const auto& view : {of.bias, of.mask}) add_key(key, view);
  for (const bool is : {of.bias_is_scaled, of.mask_hides, of.band.has_least(), of.band.has_most(),
                        of.prefix != 0, of.dropout.keep != 1, of.dropout.bits.has_value()})
    key.add(static_cast<uint8_t>(is));
}

void AttentionKernel::add_sizes(jit::PackedArguments& arguments, const Attention& of, int64_t rows) {
  const auto& queries = of.query.sizes;
  const auto& values = of.value.sizes;
  for (const int64_t size :
       {queries[0], queries[1], values[1], queries[1] / values[1], queries[2], values[2], queries[3],
        values[3], rows, of.band.least + Band::kNoLimit, of.band.most + Band::kNoLimit})
    arguments.size(size);
  if (of.prefix != 0) arguments.size(of.prefix);
  if (of.dropout.keep == 1) return;
  arguments.size(of.dropout.first);
  arguments.size(of.dropout.bits
                     ? of.dropout.bits->elements()
                     : of.dropout.count.value_or(of.query.sizes[0] * queries[1] * queries[2] * values[2]));
}

void AttentionKernel::add_buffers(jit::PackedArguments& arguments, const Attention& of) {
  for (const auto& view : {of.bias, of.mask})
    if (view) arguments.buffer(view->data, view->strides);
  if (of.dropout.keep != 1 && of.dropout.bits)
    arguments.buffer(of.dropout.bits->data, std::array<int64_t, 2>{0, 1});
}

void AttentionKernel::add_scalars(jit::PackedArguments& arguments, const Attention& of, DType sums) {
  arguments.scalar(sums, of.scale);
  if (of.dropout.keep == 1) return;
  arguments.scalar(sums, of.dropout.keep == 0 ? 0 : 1 / of.dropout.keep);
  if (of.dropout.bits) return;
  arguments.scalar(sums, of.dropout.keep);
  arguments.scalar(DType::kI64, static_cast<int64_t>(of.dropout.seed));
  arguments.scalar(DType::kI64, static_cast<int64_t>(of.dropout.offset));
}

Expr AttentionKernel::scores(const Expr& products, const Index& query, const Index& key, bool in_band) {
  const tile::Type type = products.type();
  const Expr hidden = products.like(-INFINITY);
  const auto load = [&](int buffer) {
    return builder_.load(buffer, {batch_, head_, query, key}, type.rows, type.cols);
  };
  Expr scores = products;
  if (!of_.bias_is_scaled) scores = scores * *scale_;
  if (bias_ >= 0) scores = scores + converted(load(bias_), sums_type_);
  if (of_.bias_is_scaled) scores = scores * *scale_;
  if (mask_ >= 0) {
    Expr mask = load(mask_);
    if (mask.dtype() != DType::kBool) mask = mask != builder_.constant(mask.dtype(), int64_t{0});
    scores = of_.mask_hides ? select(mask, hidden, scores) : select(mask, scores, hidden);
  }
  if (!in_band) return scores;
  const auto positions = [&](Axis axis, const Index& count, const Index& first) {
    return builder_.iota(axis, count, DType::kI32) + builder_.index(first, DType::kI32);
  };
  const Expr keys = positions(Axis::kCols, type.cols, key);
  const auto bounds = [&](const Index& bound) {
    constexpr int64_t kMost = int64_t{1} << 30;  // beyond all positions
    return positions(Axis::kRows, type.rows, max(min(query + bound, kMost), -kMost));
  };
  if (of_.band.has_least()) scores = select(keys >= bounds(least_), scores, hidden);
  if (!of_.band.has_most()) return scores;
  Expr last = bounds(most_);
  if (of_.prefix != 0) last = max(last, builder_.index(prefix_ - 1, DType::kI32));
  return select(keys <= last, scores, hidden);
}

Index AttentionKernel::end_of_keys(const Index& query) const {
  const Index end = query + (most_ + 1);
  return of_.prefix == 0 ? end : max(end, prefix_);
}

Index AttentionKernel::is_past_prefix(const Index& key) const {
  return of_.prefix == 0 ? Index(1) : max(0, min(1, key + 1 - prefix_));
}

Expr AttentionKernel::drop_factors(const Index& query, const Index& key, const Index& rows,
                                   const Index& cols) {
  const Index line = (batch_ * heads_ + head_) * queries_ + query;
  const Expr elements =
      builder_.iota(Axis::kRows, rows) * builder_.index(keys_) +
      (builder_.iota(Axis::kCols, cols) + builder_.index(first_weight_ + line * keys_ + key));
  if (bits_ < 0) {
    const Expr u = uniform_at(builder_, elements, weights_, *seed_, *offset_, sums_type_);
    return select(u < *keep_, *factor_, factor_->like(0));
  }
  const Expr byte = builder_.op(tile::Opcode::kShr, {elements, elements.like(3)});
  const Expr found = builder_.cast(builder_.load(bits_, {0, byte.value()}, rows, cols), DType::kI64);
  const Expr bit = builder_.op(tile::Opcode::kShr, {found, elements & elements.like(7)}) & found.like(1);
  return select(bit == 1.0, *factor_, factor_->like(0));
}

namespace {

Layout layout_of_rows(const View& rows) {
  return rows.strides.back() == 1 ? Layout::kByRows : Layout::kApart;
}
}  // namespace

Matrices AttentionKernel::rows_of(const std::string& name, const View& view, const Index& heads,
                                  const Index& tokens, const Index& width) {
  return {builder_,          name,   view.dtype, layout_of_rows(view),
          {batches_, heads}, tokens, width,      pairs_of(view, PairsAlong::kCols)};
}

Matrices AttentionKernel::turned_of(const std::string& name, const View& view, const Index& heads,
                                    const Index& tokens, const Index& width) {
  return {builder_,          name,  view.dtype, layout_of(transposed(view)),
          {batches_, heads}, width, tokens,     pairs_of(transposed(view), PairsAlong::kRows)};
}

void AttentionKernel::add_rows(jit::PackedArguments& arguments, const View& rows) {
  Matrices::add_argument(arguments, rows, layout_of_rows(rows), pairs_of(rows, PairsAlong::kCols));
}

void AttentionKernel::add_turned(jit::PackedArguments& arguments, const View& rows) {
  const View turned = transposed(rows);
  Matrices::add_argument(arguments, turned, layout_of(turned), pairs_of(turned, PairsAlong::kRows));
}

Expr AttentionKernel::given_product(const Expr& left, const Expr& right) {
  const auto opcode = of_pairs() ? tile::Opcode::kMatmulPairs : tile::Opcode::kMatmul;
  return builder_.op(opcode, {left, right, filled(0, left.type().rows, right.type().cols)});
}

Expr AttentionKernel::product(const Expr& left, const Expr& right) {
  return builder_.op(tile::Opcode::kMatmul, {left, right, filled(0, left.type().rows, right.type().cols)});
}

Expr AttentionKernel::filled(double value, const Index& rows, const Index& cols) {
  return ops::filled(builder_, sums_type_, value, rows, cols);
}

void AttentionKernel::loop(const Index& first, const Index& last, int64_t step,
                           const std::function<void(const Index&)>& body) {
  builder_.loop(first, last, step, {}, [&](const Index& counter, const auto&) -> std::vector<Expr> {
    body(counter);
    return {};
  });
}

int AttentionKernel::tensor(const std::string& name, const View& view, const Index& heads,
                            const Index& tokens, const Index& width) {
  return builder_.buffer(name, view.dtype, {batches_, heads, tokens, width},
                         {std::nullopt, std::nullopt, std::nullopt, last_stride(view)});
}

void check(const Attention& of) {
  const View &query = of.query, &key = of.key, &value = of.value;
  const auto is_like = [&](const View& view) { return view.sizes.size() == 4 && view.dtype == query.dtype; };
  const bool fits = kAllFloats.contains(query.dtype) && is_like(query) && is_like(key) && is_like(value) &&
                    key.sizes[0] == query.sizes[0] && value.sizes[0] == query.sizes[0] &&
                    key.sizes[1] == value.sizes[1] && key.sizes[2] == value.sizes[2] &&
                    key.sizes[3] == query.sizes[3] &&
                    (key.sizes[1] == 0 ? query.sizes[1] == 0 : query.sizes[1] % key.sizes[1] == 0);
  require(fits, ErrorCode::kInvalidArgument, "attention of queries ", query.text(), ", keys ", key.text(),
          ", values ", value.text(),
          "; accepted are batch x heads x tokens x width of one type of floats, keys and values of as many "
          "tokens, and of a number of heads that divides that of the queries");
  const std::vector<int64_t> scores = {query.sizes[0], query.sizes[1], query.sizes[2], key.sizes[2]};
  const auto check_scores = [&](const std::optional<View>& view, const char* name, DTypes dtypes) {
    require(!view || (view->sizes == scores && dtypes.contains(view->dtype)), ErrorCode::kInvalidArgument,
            "attention: the ", name, " is ", view ? view->text() : "", "; scores are [", scores[0], ", ",
            scores[1], ", ", scores[2], ", ", scores[3], "]");
  };
  check_scores(of.bias, "bias", kAllFloats);
  check_scores(of.mask, "mask", DTypes(DType::kBool, DType::kU8));
  if (of.dropout.keep == 1 || !of.dropout.bits) return;
  const View& bits = *of.dropout.bits;
  const int64_t least = (of.dropout.first + scores[0] * scores[1] * scores[2] * scores[3] + 7) / 8;
  require(bits.dtype == DType::kU8 && bits.same_as(contiguous(bits.dtype, bits.data, bits.sizes)) &&
              bits.elements() >= least,
          ErrorCode::kInvalidArgument, "attention: the mask of dropout is ", bits.text(),
          "; adjacent u8 with a bit for each weight, and so ", least, " or more, are accepted");
}

void check_rows(const Attention& of, const View& view, const char* name, DType dtype,
                std::optional<int64_t> width) {
  std::vector<int64_t> sizes = of.query.sizes;
  sizes.back() = width.value_or(view.sizes.empty() ? 0 : view.sizes.back());
  require(view.sizes == sizes && view.dtype == dtype, ErrorCode::kInvalidArgument, "attention: ", name,
          " is ", view.text(), " for queries ", of.query.text(), "; ", tile::name_of(dtype), "[", sizes[0],
          ", ", sizes[1], ", ", sizes[2], ", ", width ? concat(*width) : "repeats", "] is accepted");
}

double attention_work(const Attention& of, double products) {
  const auto& sizes = of.query.sizes;
  return static_cast<double>(of.query.elements()) * static_cast<double>(of.key.sizes[2]) * products *
             kBytesOfProduct +
         static_cast<double>(sizes[0]) * static_cast<double>(sizes[1]);
}

}  // namespace anynpu::ops
