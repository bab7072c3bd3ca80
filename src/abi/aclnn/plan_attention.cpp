// Attention, whose functions differ in which arguments they have: plans find them by name.

#include <algorithm>
#include <string_view>

#include "abi/aclnn/plans.h"
#include "abi/aclnn/shapes.h"
#include "abi/aclnn/status.h"
#include "ops/cube/flash_attention.h"

namespace anynpu::aclnn {
namespace {

using ops::FlashAttention;
using ops::View;

constexpr FlashAttention::Names kNames = {.layout = "inputLayout",
                                          .bias = "realShiftOptional",
                                          .mask = "attenMaskOptional",
                                          .mode = "sparseMode",
                                          .prefix = "prefixOptional",
                                          .keep = "keepProb",
                                          .query_ends = "actualSeqQLenOptional",
                                          .key_ends = "actualSeqKvLenOptional",
                                          .bits = "dropMaskOptional",
                                          .heads = "headNum",
                                          .maximum = "softmaxMaxOut",
                                          .total = "softmaxSumOut",
                                          .out = "attentionOut",
                                          .grad_query = "dqOut",
                                          .grad_key = "dkOut",
                                          .grad_value = "dvOut",
                                          .grad_bias = "dpseOutOptional"};
constexpr const char *kMaximumIn = "softmaxMaxOptional", *kTotalIn = "softmaxSumOptional",
                     *kAttentionIn = "attentionInOptional";

/// The arguments of a call by name.
class Named {
 public:
  explicit Named(const Call& call) : call_(call) {}

  const Bound* find(std::string_view name) const {
    const auto& all = call_.arguments;
    const auto found =
        std::find_if(all.begin(), all.end(), [&](const Bound& each) { return each.name == name; });
    return found == all.end() ? nullptr : &*found;
  }
  const Bound& operator[](std::string_view name) const { return *find(name); }

  /// A tensor that there is and that has elements.
  std::optional<View> tensor(std::string_view name) const {
    const Bound* const bound = find(name);
    if (bound == nullptr || !bound->given() || bound->view().elements() == 0) return std::nullopt;
    return bound->view();
  }
  std::vector<int64_t> numbers(std::string_view name) const {
    const Bound* const bound = find(name);
    return bound == nullptr || !bound->given() ? std::vector<int64_t>()
                                               : std::get<std::vector<int64_t>>(bound->value);
  }
  int64_t number(std::string_view name, int64_t otherwise = 0) const {
    const Bound* const bound = find(name);
    return bound == nullptr ? otherwise : std::get<int64_t>(bound->value);
  }
  std::string text(std::string_view name) const {
    const Bound* const bound = find(name);
    return bound == nullptr ? "" : std::get<std::string>(bound->value);
  }

  void check_absent(std::initializer_list<const char*> names) const {
    for (const char* name : names)
      require(!tensor(name), ErrorCode::kUnsupported, "not supported: ", name, " is given");
  }

 private:
  const Call& call_;
};

FlashAttention attention_of(const Named& call) {
  call.check_absent({"paddingMaskOptional", "queryRopeOptional", "keyRopeOptional", "sinkOptional",
                     "dqRopeOutOptional", "dkRopeOutOptional", "dsinkOutOptional"});
  FlashAttention of;
  of.query = call["query"].view();
  of.key = call["key"].view();
  of.value = call["value"].view();
  of.names = kNames;
  of.layout = call.text(kNames.layout);
  of.heads = call.number(kNames.heads);
  of.scale = std::get<double>(call["scaleValue"].value);
  of.bias = call.tensor(kNames.bias);
  of.mask = call.tensor(kNames.mask);
  of.mode = call.number(kNames.mode);
  of.before = call.number("preTokens");
  of.after = call.number("nextTokens");
  of.prefix = call.numbers(kNames.prefix);
  of.query_ends = call.numbers(kNames.query_ends);
  of.key_ends = call.numbers(kNames.key_ends);
  of.dropout.keep = std::get<double>(call[kNames.keep].value);
  if (of.dropout.keep != 1) {
    of.dropout.bits = call.tensor(kNames.bits);
    check(of.dropout.bits.has_value() || of.query.elements() == 0, kNames.bits, " is absent, but ",
          kNames.keep, " is ", of.dropout.keep, "; 1 is accepted without a mask");
  }
  // Of 2 and 3 the bias is not given but made, from positions that start at qStartIdx and kvStartIdx.
  const int64_t type = call.number("pseType", 1);
  require(type == 0 || type == 1, ErrorCode::kUnsupported, "not supported: pseType is ", type,
          "; 0 and 1 are accepted");
  of.bias_is_scaled = type == 1;
  const std::string statistics = call.text("softmaxOutLayout");
  check(statistics.empty() || statistics == "same_as_input", "softmaxOutLayout is \"", statistics,
        "\"; \"\" and \"same_as_input\" are accepted");
  of.statistics_by_token = !statistics.empty();
  return of;
}

}  // namespace

Launches plan_attention(const Call& given, Workspace& workspace) {
  const Named call(given);
  const ops::FlashAttentionForward forward = {.of = attention_of(call),
                                              .out = call[kNames.out].view(),
                                              .maximum = call[kNames.maximum].view(),
                                              .total = call[kNames.total].view()};
  return prepare(forward, workspace.taker());
}

Launches plan_attention_backward(const Call& given, Workspace& workspace) {
  const Named call(given);
  FlashAttention of = attention_of(call);
  of.names.maximum = kMaximumIn;
  of.names.total = kTotalIn;
  of.names.out = kAttentionIn;
  for (const char* name : {kMaximumIn, kTotalIn, kAttentionIn})
    check(call[name].given(), name, " is absent; the forward function's result is accepted");
  const ops::FlashAttentionBackward backward = {.of = std::move(of),
                                                .out = call[kAttentionIn].view(),
                                                .grad_out = call[kNames.grad_out].view(),
                                                .maximum = call[kMaximumIn].view(),
                                                .total = call[kTotalIn].view(),
                                                .grad_query = call[kNames.grad_query].view(),
                                                .grad_key = call[kNames.grad_key].view(),
                                                .grad_value = call[kNames.grad_value].view(),
                                                .grad_bias = call.tensor(kNames.grad_bias)};
  return prepare(backward, workspace.taker());
}

}  // namespace anynpu::aclnn
