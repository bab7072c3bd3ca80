#include "ops/cube/flash_attention.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "ops/cube/gemm.h"

namespace anynpu::ops {
namespace {

using Sizes = std::vector<int64_t>;

template <class... Parts>
void check(bool condition, const Parts&... parts) {
  require(condition, ErrorCode::kInvalidArgument, parts...);
}

std::string text(const Sizes& sizes) {
  std::string made = "[";
  for (size_t d = 0; d < sizes.size(); ++d) made += concat(d == 0 ? "" : ", ", sizes[d]);
  return made + "]";
}

/// Which dimensions of a tensor, once heads and their width are two of them, are batch, head, token and
/// width; -1: it has none.
struct TensorLayout {
  std::string_view name;
  bool heads_are_apart;
  std::array<int, 4> order;
};
constexpr TensorLayout kLayouts[] = {{"BNSD", true, {0, 1, 2, 3}},
                                     {"BSND", true, {0, 2, 1, 3}},
                                     {"BSH", false, {0, 2, 1, 3}},
                                     {"SBH", false, {1, 2, 0, 3}},
                                     {"TND", true, {-1, 1, 0, 2}}};

const TensorLayout& layout_of(const FlashAttention& of) {
  for (const TensorLayout& layout : kLayouts)
    if (layout.name == of.layout) return layout;
  raise(ErrorCode::kInvalidArgument, of.names.layout, " is \"", of.layout,
        "\"; BNSD, BSND, BSH, SBH and TND are accepted");
}

/// As batch x heads x tokens x width; `heads` counts where the layout has heads and width as one.
View split(View view, const char* name, const TensorLayout& layout, int64_t heads) {
  const size_t dims = layout.heads_are_apart && layout.order[0] >= 0 ? 4 : 3;
  check(view.sizes.size() == dims, name, " has shape ", text(view.sizes), "; ", dims,
        " dimensions are accepted with layout ", layout.name);
  if (!layout.heads_are_apart) {
    check(heads > 0 && view.sizes[2] % heads == 0, name, " has shape ", text(view.sizes),
          "; a last size that ", heads, " heads divide is accepted");
    const int64_t width = view.sizes[2] / heads, stride = view.strides[2];
    view.sizes = {view.sizes[0], view.sizes[1], heads, width};
    view.strides = {view.strides[0], view.strides[1], width * stride, stride};
  }
  View made = {view.dtype, view.data, {1, 1, 1, 1}, {0, 0, 0, 0}};
  for (size_t d = 0; d < 4; ++d)
    if (layout.order[d] >= 0) {
      made.sizes[d] = view.sizes[static_cast<size_t>(layout.order[d])];
      made.strides[d] = view.strides[static_cast<size_t>(layout.order[d])];
    }
  return made;
}

/// So many indices of a dimension, from `first` on.
View part_of(View view, size_t dim, int64_t first, int64_t count) {
  view.data = static_cast<char*>(view.data) +
              first * view.strides[dim] * static_cast<int64_t>(tile::size_of(view.dtype));
  view.sizes[dim] = count;
  return view;
}

/// A batch, or a sequence: a part of the tensors whose queries see its keys alone.
struct Sequence {
  int64_t batch = 0, query = 0, queries = 0, key = 0, keys = 0;  ///< the first query and key, and how many
  int64_t weight = 0;                                            ///< the number of its first weight
};

/// The tensors of a call, which are of all its sequences.
struct Tensors {
  const FlashAttention& of;
  const TensorLayout& layout;
  View query, key, value;

  explicit Tensors(const FlashAttention& given) : of(given), layout(layout_of(given)) {
    check(DTypes(DType::kF16, DType::kBF16, DType::kF32).contains(of.query.dtype), of.names.query, " is ",
          of.query.text(), "; f16, bf16 and f32 are accepted");
    query = split(of.query, of.names.query, layout, of.heads);
    check(query.sizes[1] == of.heads, of.names.heads, " is ", of.heads, ", but ", of.names.query,
          " has shape ", text(of.query.sizes), ", which is of ", query.sizes[1], " heads");
    key = split(of.key, of.names.key, layout, heads_of_keys());
    value = split(of.value, of.names.value, layout, key.sizes[1]);
  }
  /// Where the layout does not say, they are as wide as queries.
  int64_t heads_of_keys() const {
    if (layout.heads_are_apart || of.key.sizes.empty()) return 0;
    return query.sizes[3] == 0 ? query.sizes[1] : of.key.sizes.back() / query.sizes[3];
  }

  int64_t heads() const { return query.sizes[1]; }
  View of_queries(const View& given, const char* name) const { return split(given, name, layout, heads()); }
  View of_keys(const View& given, const char* name) const { return split(given, name, layout, key.sizes[1]); }
  View queries_of(const View& all, const Sequence& sequence) const {
    if (!of.is_packed()) return all;
    return part_of(all, 2, sequence.query, sequence.queries);
  }
  View keys_of(const View& all, const Sequence& sequence) const {
    if (!of.is_packed()) return all;
    return part_of(all, 2, sequence.key, sequence.keys);
  }
};

/// The lengths that cumulative ones say, of tensors of so many tokens.
Sizes lengths(const Sizes& ends, const char* name, int64_t tokens) {
  size_t count = ends.size();
  while (count > 0 && ends[count - 1] == 0) --count;  // left out, or empty
  Sizes made(ends.size(), 0);
  for (size_t i = 0; i < count; ++i) {
    made[i] = ends[i] - (i == 0 ? 0 : ends[i - 1]);
    check(made[i] >= 0 && ends[i] <= tokens, name, " is ", text(ends), "; sums that do not fall, to ", tokens,
          " tokens at most, are accepted, and zeros after them");
  }
  return made;
}

std::vector<Sequence> sequences_of(const Tensors& tensors) {
  const FlashAttention& of = tensors.of;
  const int64_t queries = tensors.query.sizes[2], keys = tensors.key.sizes[2];
  if (!of.is_packed()) {
    for (const auto& [ends, name] :
         {std::pair{&of.query_ends, of.names.query_ends}, {&of.key_ends, of.names.key_ends}})
      check(ends->empty(), name, " is ", text(*ends), ", but ", of.names.layout, " is ", of.layout,
            "; with TND it is accepted");
    return {{.queries = queries, .keys = keys}};
  }
  check(!of.query_ends.empty() && of.query_ends.size() == of.key_ends.size(), of.names.query_ends, " is ",
        text(of.query_ends), " and ", of.names.key_ends, " ", text(of.key_ends),
        "; layout TND needs both, with one cumulative length for each sequence");
  const Sizes query_lengths = lengths(of.query_ends, of.names.query_ends, queries),
              key_lengths = lengths(of.key_ends, of.names.key_ends, keys);
  std::vector<Sequence> sequences;
  Sequence next;
  for (size_t i = 0; i < query_lengths.size(); ++i) {
    next.queries = query_lengths[i];
    next.keys = key_lengths[i];
    sequences.push_back(next);
    next.query += next.queries;
    next.key += next.keys;
    next.weight += tensors.heads() * next.queries * next.keys;
  }
  return sequences;
}

constexpr int64_t kTriangle = 2048, kPrefixRows = 1024;  // of a mask that stands for one of any size

void check_mask_of_mode(const FlashAttention& of) {
  const auto& names = of.names;
  if (!of.mask) {
    check(of.mode == 0, names.mask, " is absent; with ", names.mode, " ", of.mode,
          of.mode == 1 || of.mode == 5 ? " it covers all scores" : " it has shape [2048, 2048]",
          of.mode == 6 ? " above 1024 rows of the prefix" : "");
    return;
  }
  check(DTypes(DType::kBool, DType::kU8).contains(of.mask->dtype), names.mask, " is ", of.mask->text(),
        "; bool and u8 are accepted");
  if (of.mode == 0 || of.mode == 1 || of.mode == 5) return;
  const Sizes& sizes = of.mask->sizes;
  const int64_t rows = of.mode == 6 ? kTriangle + kPrefixRows : kTriangle;
  const bool fits = sizes.size() >= 2 && sizes.end()[-2] == rows && sizes.end()[-1] == kTriangle &&
                    std::all_of(sizes.begin(), sizes.end() - 2, [](int64_t size) { return size == 1; });
  check(fits, names.mask, " has shape ", text(sizes), "; with ", names.mode, " ", of.mode, " it has shape [",
        rows, ", ", kTriangle, "]");
}

void check_mode(const FlashAttention& of) {
  const auto& names = of.names;
  const int64_t last = of.is_packed() ? 8 : 6;
  check(of.mode >= 0 && of.mode <= last && !(of.is_packed() && of.mode == 5), names.mode, " is ", of.mode,
        "; ", of.is_packed() ? "0 to 4 and 6 to 8 are" : "0 to 6 are", " accepted with layout ", of.layout);
  check_mask_of_mode(of);
  require(!of.bias || of.mode < 7, ErrorCode::kUnsupported, "not supported: ", names.bias, " with ",
          names.mode, " ", of.mode);
  check(of.prefix.empty() || of.mode == 5 || of.mode == 6, names.prefix, " is ", text(of.prefix), ", but ",
        names.mode, " is ", of.mode, "; with 5 and 6 it is accepted");
}

/// The band that counts from the last token on.
Band from_the_last(const Band& band, const Sequence& sequence) {
  const int64_t shift = sequence.keys - sequence.queries;
  return {band.has_least() ? band.least + shift : band.least,
          band.has_most() ? band.most + shift : band.most};
}

Band band_of(const FlashAttention& of, const Sequence& sequence, bool is_first, bool is_last) {
  constexpr int64_t kAny = FlashAttention::kAnyDistance;
  Band distances;
  if (of.before < kAny) distances.least = -std::max(of.before, -kAny);
  if (of.after < kAny) distances.most = std::max(of.after, -kAny);
  switch (of.mode) {
    case 0:
      return of.mask ? distances : Band();
    case 1:
    case 5:
      return {};
    case 4:
      return from_the_last(distances, sequence);
    case 2:
    case 8:
      return of.mode == 8 && is_first ? from_the_last(distances, sequence) : Band{.most = 0};
    default:
      return from_the_last(of.mode == 7 && is_last ? distances : Band{.most = 0}, sequence);
  }
}

/// Repeated to the sequence's batch x heads x queries x keys.
View of_scores(const View& view, const char* name, const Sizes& scores) {
  const auto sizes = broadcast(view.sizes, scores);
  check(sizes == scores, name, " has shape ", text(view.sizes), "; what is broadcast to the scores' ",
        text(scores), " is accepted");
  return view.expanded(scores);
}

/// Of one line of all scores of a packed batch: those of a sequence.
View of_line(const View& line, const Sequence& sequence, int64_t heads) {
  const int64_t stride = line.strides[0], row = sequence.keys * stride;
  View view = part_of(line, 0, sequence.weight, 0);
  view.sizes = {1, heads, sequence.queries, sequence.keys};
  view.strides = {0, sequence.queries * row, row, stride};
  return view;
}

/// The mask of a sequence of a packed batch: the first rows and columns of one for the longest.
View of_longest(const FlashAttention& of, const Sequence& sequence, const Sizes& scores) {
  const View& mask = *of.mask;
  check(mask.sizes.size() == 2 && mask.sizes[0] >= sequence.queries && mask.sizes[1] >= sequence.keys,
        of.names.mask, " has shape ", text(mask.sizes), "; two sizes, of the longest sequence, at least [",
        sequence.queries, ", ", sequence.keys, "], are accepted with layout TND");
  return part_of(part_of(mask, 0, 0, sequence.queries), 1, 0, sequence.keys).expanded(scores);
}

Attention attention_of(const Tensors& tensors, const Sequence& sequence, bool is_first, bool is_last) {
  const FlashAttention& of = tensors.of;
  Attention made = {tensors.queries_of(tensors.query, sequence), tensors.keys_of(tensors.key, sequence),
                    tensors.keys_of(tensors.value, sequence)};
  made.scale = of.scale;
  const Sizes scores = {made.query.sizes[0], made.query.sizes[1], sequence.queries, sequence.keys};
  if (of.bias) {
    made.bias =
        of.is_packed() ? of_line(*of.bias, sequence, scores[1]) : of_scores(*of.bias, of.names.bias, scores);
    made.bias_is_scaled = of.bias_is_scaled;
  }
  if (of.mask && (of.mode < 2 || of.mode == 5)) {
    made.mask =
        of.is_packed() ? of_longest(of, sequence, scores) : of_scores(*of.mask, of.names.mask, scores);
    made.mask_hides = true;
  }
  made.band = band_of(of, sequence, is_first, is_last);
  made.dropout = of.dropout;
  made.dropout.first = sequence.weight;
  return made;
}

void check_bias(const Tensors& tensors, const std::vector<Sequence>& sequences, const View& bias,
                const char* name) {
  if (!tensors.of.is_packed()) return;
  const Sequence& last = sequences.back();
  const int64_t all = last.weight + tensors.heads() * last.queries * last.keys;
  check(bias.sizes.size() == 1 && bias.sizes[0] == all, name, " has shape ", text(bias.sizes), "; [", all,
        "], the scores of all sequences, is accepted with layout TND");
}

/// The calls of a call: each sequence's, or each batch's where they see different prefixes.
struct Parts {
  Tensors tensors;
  std::vector<Sequence> sequences;
  std::vector<Attention> calls;

  explicit Parts(const FlashAttention& of) : tensors(of), sequences(sequences_of(tensors)) {
    const auto& names = of.names;
    check_mode(of);
    check(of.dropout.keep > 0 && of.dropout.keep <= 1, names.keep, " is ", of.dropout.keep,
          "; more than 0, and 1 at most, is accepted");
    if (of.bias) {
      check(kAllFloats.contains(of.bias->dtype), names.bias, " is ", of.bias->text(),
            "; floats are accepted");
      check_bias(tensors, sequences, *of.bias, names.bias);
    }
    if (of.mode == 5 || of.mode == 6) {
      const size_t batches = of.is_packed() ? sequences.size() : static_cast<size_t>(tensors.query.sizes[0]);
      check(of.prefix.size() == batches, names.prefix, " is ", text(of.prefix), "; with ", names.mode, " ",
            of.mode, " a number for each of ", batches, " batches is accepted");
    }
    const auto is_there = [](const Sequence& each) { return each.queries != 0 || each.keys != 0; };
    const auto first = std::find_if(sequences.begin(), sequences.end(), is_there);
    const auto last = std::find_if(sequences.rbegin(), sequences.rend(), is_there);
    for (const Sequence& each : sequences)
      calls.push_back(attention_of(tensors, each, first != sequences.end() && &each == &*first,
                                   last != sequences.rend() && &each == &*last));
    if (of.mode == 6) add_prefixes();
    if (of.dropout.keep != 1)
      for (Attention& call : calls) call.dropout.count = of.weights();
    if (of.is_packed()) add_rest();
  }

 private:
  void add_prefixes() {
    const FlashAttention& of = tensors.of;
    const bool by_batch = !of.is_packed();
    if (by_batch) {
      const Attention whole = calls[0];
      calls.clear();
      sequences.resize(static_cast<size_t>(tensors.query.sizes[0]), sequences[0]);
      for (size_t b = 0; b < sequences.size(); ++b) {
        Sequence& each = sequences[b];
        each.batch = static_cast<int64_t>(b);
        each.weight = each.batch * tensors.heads() * each.queries * each.keys;
        Attention call = whole;
        for (View* view : {&call.query, &call.key, &call.value}) *view = part_of(*view, 0, each.batch, 1);
        if (call.bias) call.bias = part_of(*call.bias, 0, each.batch, 1);
        call.dropout.first = each.weight;
        calls.push_back(std::move(call));
      }
    }
    for (size_t i = 0; i < calls.size(); ++i) {
      check(of.prefix[i] >= 0 && of.prefix[i] <= sequences[i].keys, of.names.prefix, " is ", text(of.prefix),
            "; numbers from 0 to those of keys, ", sequences[i].keys, ", are accepted");
      calls[i].prefix = of.prefix[i];
    }
  }

  /// Queries after the last sequence see nothing, and nothing sees such keys.
  void add_rest() {
    const Sequence& last = sequences.back();
    const int64_t query = last.query + last.queries, key = last.key + last.keys,
                  queries = tensors.query.sizes[2] - query, keys = tensors.key.sizes[2] - key;
    for (const Sequence& rest : {Sequence{0, query, queries, key, 0}, {0, query + queries, 0, key, keys}}) {
      if (rest.queries == 0 && rest.keys == 0) continue;
      sequences.push_back(rest);
      calls.push_back({tensors.queries_of(tensors.query, rest), tensors.keys_of(tensors.key, rest),
                       tensors.keys_of(tensors.value, rest)});
    }
  }
};

/// The part of a call's tensor of queries or keys, and of its rows' statistics.
class Slices {
 public:
  Slices(const Parts& parts, size_t i)
      : tensors_(parts.tensors), sequence_(parts.sequences[i]), by_batch_(tensors_.of.mode == 6) {}

  View queries(const View& given, const char* name) const {
    return of_batch(tensors_.queries_of(tensors_.of_queries(given, name), sequence_));
  }
  View keys(const View& given, const char* name) const {
    return of_batch(tensors_.keys_of(tensors_.of_keys(given, name), sequence_));
  }
  View statistics(const View& given, const char* name) const {
    constexpr int64_t kRepeats = FlashAttention::kRepeats;
    const Sizes& rows = tensors_.query.sizes;
    const bool packed = tensors_.of.is_packed();
    const Sizes sizes =
        packed ? Sizes{rows[2], rows[1], kRepeats} : Sizes{rows[0], rows[1], rows[2], kRepeats};
    check(given.sizes == sizes && given.dtype == DType::kF32, name, " is ", given.text(), "; f32",
          text(sizes), " is accepted");
    if (!packed) return of_batch(given);
    View view = given;
    if (tensors_.of.statistics_by_token) {
      view.sizes = {1, rows[1], rows[2], kRepeats};
      view.strides = {0, given.strides[1], given.strides[0], given.strides[2]};
      return part_of(view, 2, sequence_.query, sequence_.queries);
    }
    check(given.same_as(contiguous(given.dtype, given.data, given.sizes)), name, " has strides ",
          text(given.strides), "; adjacent elements are accepted");
    view.sizes = {1, rows[1], sequence_.queries, kRepeats};
    view.strides = {0, sequence_.queries * kRepeats, kRepeats, 1};
    view.data = static_cast<float*>(view.data) + sequence_.query * rows[1] * kRepeats;
    return view;
  }
  /// Of the gradient of the bias, which has its sizes: without dimensions that it lacks.
  View bias(const View& given) const {
    if (tensors_.of.is_packed()) return of_line(given, sequence_, tensors_.heads());
    View view = {given.dtype, given.data, {1, 1, 1, 1}, {0, 0, 0, 0}};
    const size_t missing = 4 - given.sizes.size();
    for (size_t d = 0; d < given.sizes.size(); ++d) {
      view.sizes[missing + d] = given.sizes[d];
      view.strides[missing + d] = given.strides[d];
    }
    return view;
  }

 private:
  View of_batch(const View& view) const {
    return by_batch_ && !tensors_.of.is_packed() ? part_of(view, 0, sequence_.batch, 1) : view;
  }

  const Tensors& tensors_;
  const Sequence& sequence_;
  const bool by_batch_;
};

}  // namespace

int64_t FlashAttention::weights() const {
  const Tensors tensors(*this);
  const Sequence last = sequences_of(tensors).back();
  return tensors.query.sizes[0] * (last.weight + tensors.heads() * last.queries * last.keys);
}

std::vector<Launch> prepare(const FlashAttentionForward& call, const TakeMemory& take) {
  const Parts parts(call.of);
  const auto& names = call.of.names;
  std::vector<AttentionForward> calls;
  for (size_t i = 0; i < parts.calls.size(); ++i) {
    const Slices slices(parts, i);
    calls.push_back({.of = parts.calls[i],
                     .out = slices.queries(call.out, names.out),
                     .maximum = slices.statistics(call.maximum, names.maximum),
                     .total = slices.statistics(call.total, names.total)});
  }
  return prepare(calls, take);
}

std::vector<Launch> prepare(const FlashAttentionBackward& call, const TakeMemory& take) {
  const Parts parts(call.of);
  const auto& names = call.of.names;
  if (call.grad_bias) {
    check(call.of.bias.has_value(), names.grad_bias, " is wanted, but ", names.bias, " is absent");
    check(call.grad_bias->sizes == call.of.bias->sizes && call.grad_bias->dtype == call.of.bias->dtype,
          names.grad_bias, " is ", call.grad_bias->text(), "; ", call.of.bias->text(), ", as ", names.bias,
          " is, is accepted");
    require(call.of.mode != 6 || call.of.is_packed(), ErrorCode::kUnsupported,
            "not supported: ", names.grad_bias, " with ", names.mode, " 6");
    const Sizes& sizes = call.grad_bias->sizes;
    check(!sizes.empty() && (call.of.is_packed() || sizes.back() == parts.tensors.key.sizes[2]),
          names.grad_bias, " is ", call.grad_bias->text(), "; a last size of the number of keys is accepted");
  }
  std::vector<AttentionBackward> calls;
  for (size_t i = 0; i < parts.calls.size(); ++i) {
    const Slices slices(parts, i);
    calls.push_back({.of = parts.calls[i],
                     .out = slices.queries(call.out, names.out),
                     .grad_out = slices.queries(call.grad_out, names.grad_out),
                     .maximum = slices.statistics(call.maximum, names.maximum),
                     .total = slices.statistics(call.total, names.total),
                     .grad_query = slices.queries(call.grad_query, names.grad_query),
                     .grad_key = slices.keys(call.grad_key, names.grad_key),
                     .grad_value = slices.keys(call.grad_value, names.grad_value)});
    if (call.grad_bias && parts.calls[i].bias) calls.back().grad_bias = slices.bias(*call.grad_bias);
  }
  return prepare(calls, take);
}

}  // namespace anynpu::ops
