// Attention under its published conventions: layouts by name, masks that hide where they are true, and the
// maximum and the sum of each row as statistics.

#include <array>
#include <string>

#include "abi/aclnn/plans.h"
#include "abi/aclnn/shapes.h"
#include "abi/aclnn/status.h"
#include "ops/cube/attention.h"

namespace anynpu::aclnn {
namespace {

using ops::View;
using tile::DType;

constexpr int64_t kStatistics = 8;  ///< how often each row's maximum and sum stand side by side

/// Which dimensions of a tensor, once heads and their width are two of them, are batch, head, token and
/// width.
struct TensorLayout {
  std::string_view name;
  bool heads_are_apart;
  std::array<size_t, 4> order;
};
constexpr TensorLayout kLayouts[] = {{"BNSD", true, {0, 1, 2, 3}},
                                     {"BSND", true, {0, 2, 1, 3}},
                                     {"BSH", false, {0, 2, 1, 3}},
                                     {"SBH", false, {1, 2, 0, 3}}};

const TensorLayout& layout_of(const Bound& argument) {
  const auto& name = std::get<std::string>(argument.value);
  for (const TensorLayout& layout : kLayouts)
    if (layout.name == name) return layout;
  require(name != "TND", ErrorCode::kUnsupported, "not supported: ", argument.name, " is TND");
  check(false, argument.name, " is \"", name, "\"; BNSD, BSND, BSH and SBH are accepted");
  return kLayouts[0];
}

/// As batch x heads x tokens x width; `heads` counts where the layout has heads and width as one.
View split(const Bound& argument, const TensorLayout& layout, int64_t heads) {
  View view = argument.view();
  const size_t dims = layout.heads_are_apart ? 4 : 3;
  check(view.sizes.size() == dims, argument.name, " has shape ", Listed{view.sizes}, "; ", dims,
        " dimensions are accepted with layout ", layout.name);
  if (!layout.heads_are_apart) {
    check(heads > 0 && view.sizes[2] % heads == 0, argument.name, " has shape ", Listed{view.sizes},
          "; a last size that ", heads, " heads divide is accepted");
    const int64_t width = view.sizes[2] / heads, stride = view.strides[2];
    view.sizes = {view.sizes[0], view.sizes[1], heads, width};
    view.strides = {view.strides[0], view.strides[1], width * stride, stride};
  }
  View made = view;
  for (size_t d = 0; d < 4; ++d) {
    made.sizes[d] = view.sizes[layout.order[d]];
    made.strides[d] = view.strides[layout.order[d]];
  }
  return made;
}

bool is_there(const Bound& argument) {
  if (!argument.given()) return false;
  if (argument.is_tensor) return argument.view().elements() != 0;
  return !std::get<std::vector<int64_t>>(argument.value).empty();
}
void check_absent(const Bound& argument) {
  require(!is_there(argument), ErrorCode::kUnsupported, "not supported: ", argument.name, " is given");
}

/// Repeated to batch x heads x queries x keys.
View of_scores(const Bound& argument, const std::vector<int64_t>& scores) {
  const auto sizes = ops::broadcast(argument.view().sizes, scores);
  check(sizes == scores, argument.name, " has shape ", Listed{argument.view().sizes},
        "; what is broadcast to the scores' ", Listed{scores}, " is accepted");
  return argument.view().expanded(scores);
}

/// What forward and backward say alike, from where each has it: query, key and value come first; the optional
/// tensors of scores, and the attributes from `prefixOptional` on.
struct Common {
  const Bound &position_scores, &drop_mask, &padding_mask, &mask;
  const Bound* attributes;

  const Bound& prefix() const { return attributes[0]; }
  double scale() const { return std::get<double>(attributes[1].value); }
  const Bound& keep() const { return attributes[2]; }
  int64_t before() const { return std::get<int64_t>(attributes[3].value); }
  int64_t after() const { return std::get<int64_t>(attributes[4].value); }
  int64_t heads() const { return std::get<int64_t>(attributes[5].value); }
  const Bound& layout() const { return attributes[6]; }
  const Bound& mode() const { return attributes[8]; }
};

int64_t key_heads(const View& query, const Bound& key, const TensorLayout& layout) {
  const auto& sizes = key.view().sizes;
  if (layout.heads_are_apart || sizes.empty()) return 0;
  return query.sizes[3] == 0 ? query.sizes[1] : sizes.back() / query.sizes[3];
}

/// Which keys the sparse mode shows, and the mask where that counts.
void show(ops::Attention& of, const Common& common, const std::vector<int64_t>& scores) {
  constexpr int64_t kAny = 2147483647;  // masks nothing
  const int64_t mode = std::get<int64_t>(common.mode().value);
  require(mode >= 0 && mode <= 3, ErrorCode::kUnsupported, "not supported: ", common.mode().name, " is ",
          mode, "; 0 to 3 are accepted");
  if (mode >= 2) {  // causal, from the first or from the last token on; the mask only stands for that
    of.band.most = mode == 3 ? scores[3] - scores[2] : 0;
    return;
  }
  if (mode == 0 && common.before() < kAny) of.band.least = -common.before();
  if (mode == 0 && common.after() < kAny) of.band.most = common.after();
  if (!is_there(common.mask)) {
    check(mode == 0, common.mask.name, " is absent; with ", common.mode().name, " 1 it covers all scores");
    return;
  }
  check_type(common.mask, tile::DTypes(DType::kBool, DType::kU8));
  of.mask = of_scores(common.mask, scores);
  of.mask_hides = true;
}

ops::Attention attention_of(const Call& call, const Common& common) {
  check_absent(common.drop_mask);
  check_absent(common.padding_mask);
  check_absent(common.prefix());
  require(std::get<double>(common.keep().value) == 1, ErrorCode::kUnsupported,
          "not supported: ", common.keep().name, " is ", std::get<double>(common.keep().value),
          "; 1 is accepted");
  const TensorLayout& layout = layout_of(common.layout());
  check_type(call[0], tile::DTypes(DType::kF16, DType::kBF16, DType::kF32));
  ops::Attention of;
  of.query = split(call[0], layout, common.heads());
  const int64_t heads = key_heads(of.query, call[1], layout);
  of.key = split(call[1], layout, heads);
  of.value = split(call[2], layout, heads);
  of.scale = common.scale();
  const std::vector<int64_t> scores = {of.query.sizes[0], of.query.sizes[1], of.query.sizes[2],
                                       of.key.sizes[2]};
  if (is_there(common.position_scores)) {
    check_type(common.position_scores, ops::kAllFloats);
    of.bias = of_scores(common.position_scores, scores);
    of.bias_is_scaled = true;
  }
  show(of, common, scores);
  return of;
}

const View& statistics(const Bound& argument, const ops::Attention& of) {
  const auto& sizes = of.query.sizes;
  check_shape(argument, std::array{sizes[0], sizes[1], sizes[2], kStatistics});
  check_type(argument, tile::DTypes(DType::kF32));
  return argument.view();
}

}  // namespace

Launches plan_attention(const Call& call, Workspace& workspace) {
  const Common common = {call[3], call[4], call[5], call[6], &call[7]};
  const ops::Attention of = attention_of(call, common);
  const View out = split(call[19], layout_of(common.layout()), common.heads());
  const ops::AttentionForward forward = {
      .of = of, .out = out, .maximum = statistics(call[16], of), .total = statistics(call[17], of)};
  return prepare(forward, workspace.taker());
}

Launches plan_attention_backward(const Call& call, Workspace& workspace) {
  const Common common = {call[4], call[5], call[6], call[7], &call[12]};
  const ops::Attention of = attention_of(call, common);
  const TensorLayout& layout = layout_of(common.layout());
  const int64_t heads = common.heads(), heads_of_keys = key_heads(of.query, call[1], layout);
  check_absent(call[24]);
  check(call[8].given() && call[9].given() && call[11].given(), "one of ", call[8].name, ", ", call[9].name,
        " and ", call[11].name, " is absent; all are needed");
  const ops::AttentionBackward backward = {.of = of,
                                           .out = split(call[11], layout, heads),
                                           .grad_out = split(call[3], layout, heads),
                                           .maximum = statistics(call[8], of),
                                           .total = statistics(call[9], of),
                                           .grad_query = split(call[21], layout, heads),
                                           .grad_key = split(call[22], layout, heads_of_keys),
                                           .grad_value = split(call[23], layout, heads_of_keys)};
  return prepare(backward, workspace.taker());
}

}  // namespace anynpu::aclnn
