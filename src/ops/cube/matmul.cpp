#include "ops/cube/matmul.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace anynpu::ops {
namespace {

const Formula kScaled = formula<2>([](auto sum, auto alpha) { return sum * alpha; });
const Formula kAdded = formula<2>([](auto sum, auto added) { return sum + added; });
const Formula kScaledAdded =
    formula<4>([](auto sum, auto added, auto beta, auto alpha) { return beta * added + alpha * sum; });
const Formula kScaledAddedBetaLast =
    formula<4>([](auto sum, auto added, auto alpha, auto beta) { return beta * added + alpha * sum; });
const Formula kScaledAddedUnlessZero = formula<4>([](auto sum, auto added, auto beta, auto alpha) {
  return select(beta == 0.0, alpha * sum, beta * added + alpha * sum);
});
const Formula kScaledTotal =
    formula<3>([](auto sum, auto total, auto alpha) { return alpha * (total + sum); });
const Formula kScaledTotalAdded = formula<5>([](auto sum, auto total, auto added, auto beta, auto alpha) {
  return beta * added + alpha * (total + sum);
});

/// A matrix, or batches of one, of operands of two dimensions or more: the last three.
View batch_of(View view) {
  if (view.sizes.size() > 2) return view;
  view.strides.insert(view.strides.begin(), 0);
  view.sizes.insert(view.sizes.begin(), 1);
  return view;
}

/// With a dimension of one element before dimension `at`.
View widened(View view, size_t at) {
  const auto place = static_cast<ptrdiff_t>(at);
  view.strides.insert(view.strides.begin() + place,
                      at < view.sizes.size() ? view.sizes[at] * view.strides[at] : 1);
  view.sizes.insert(view.sizes.begin() + place, 1);
  return view;
}

/// Element `i` of the first dimension.
View element(const View& view, int64_t i) {
  const int64_t bytes = i * view.strides[0] * static_cast<int64_t>(tile::size_of(view.dtype));
  return {view.dtype,
          static_cast<std::byte*>(view.data) + bytes,
          {view.sizes.begin() + 1, view.sizes.end()},
          {view.strides.begin() + 1, view.strides.end()}};
}

bool is_repeated(const View& view) {
  for (size_t d = 0; d + 2 < view.sizes.size(); ++d)
    if (view.sizes[d] != 1 && view.strides[d] != 0) return false;
  return true;
}

void append(std::vector<Launch> made, std::vector<Launch>& launches) {
  for (Launch& launch : made) launches.push_back(std::move(launch));
}

/// All views of a call, which have the same batches.
class Batches {
 public:
  Batches(const Matmul& call, const TakeMemory& take) : call_(call), take_(take) {}

  std::vector<Launch> launches() {
    add(call_);
    return std::move(launches_);
  }

 private:
  void add(const Matmul& call) {
    const size_t batches = call.out.sizes.size() - 2;
    if (batches > 0 && is_repeated(call.right))
      if (auto rows = changed(call, [&](const View& view) { return view.merged(0, batches + 1); })) {
        rows->right = call.right;
        while (rows->right.sizes.size() > 2) rows->right = element(rows->right, 0);
        return add(*rows);
      }
    if (batches <= 1) return launch(call);
    if (const auto one = changed(call, [&](const View& view) { return view.merged(0, batches); }, true))
      return launch(*one);
    for (int64_t i = 0; i < call.out.sizes[0]; ++i)
      add(*changed(call, [&](const View& view) { return std::optional(element(view, i)); }, true));
  }

  /// The call with other views; nothing where one of them has none. Right's, where it is to have one.
  template <class Change>
  static std::optional<Matmul> changed(const Matmul& call, const Change& change, bool right = false) {
    Matmul made = call;
    const auto set = [&](View& view) {
      const std::optional<View> other = change(view);
      if (other) view = *other;
      return other.has_value();
    };
    if (!set(made.left) || !set(made.out) || (made.added && !set(*made.added)) || (right && !set(made.right)))
      return std::nullopt;
    return made;
  }

  static void finish(const Matmul& call, GemmCall& gemm) {
    const auto is = [](const Factor& factor, double number) {
      return std::holds_alternative<double>(factor) && std::get<double>(factor) == number;
    };
    const auto take = [&](const Factor& factor) {
      if (const auto* number = std::get_if<double>(&factor))
        gemm.numbers.push_back(*number);
      else
        gemm.operands.push_back(batch_of(std::get<View>(factor).expanded(call.out.sizes)));
    };
    const bool adds = call.added && !is(call.beta, 0), scales = !is(call.alpha, 1);
    if (!adds && !scales) return;
    if (adds) gemm.operands = {batch_of(*call.added)};
    if (adds && !scales && is(call.beta, 1)) {
      gemm.finish = &kAdded;
      return;
    }
    if (adds) take(call.beta);
    take(call.alpha);
    // Operands come before numbers.
    const bool beta_last =
        std::holds_alternative<double>(call.beta) && std::holds_alternative<View>(call.alpha);
    if (!adds)
      gemm.finish = &kScaled;
    else if (std::holds_alternative<View>(call.beta))
      gemm.finish = &kScaledAddedUnlessZero;
    else
      gemm.finish = beta_last ? &kScaledAddedBetaLast : &kScaledAdded;
  }

  void launch(const Matmul& call) {
    GemmCall gemm = {batch_of(call.left), batch_of(call.right), batch_of(call.out)};
    if (call.packed && call.right.sizes.size() == 2) gemm.packed = call.packed;
    finish(call, gemm);
    append(prepare(gemm, take_), launches_);
  }

  const Matmul& call_;
  const TakeMemory& take_;
  std::vector<Launch> launches_;
};

void check_added(const Matmul& call) {
  if (!call.added) return;
  const auto sizes = broadcast(call.added->sizes, call.out.sizes);
  require(sizes && *sizes == call.out.sizes, ErrorCode::kInvalidArgument,
          "a product of matrices: what is added is not broadcast to it");
}

}  // namespace

std::optional<std::vector<int64_t>> matmul_sizes(std::span<const int64_t> left,
                                                 std::span<const int64_t> right) {
  if (left.empty() || right.empty()) return std::nullopt;
  const bool row = left.size() == 1, column = right.size() == 1;
  if (left.back() != right[column ? 0 : right.size() - 2]) return std::nullopt;
  auto sizes = broadcast(row ? std::span<const int64_t>() : left.first(left.size() - 2),
                         column ? std::span<const int64_t>() : right.first(right.size() - 2));
  if (!sizes) return std::nullopt;
  if (!row) sizes->push_back(left[left.size() - 2]);
  if (!column) sizes->push_back(right.back());
  return sizes;
}

std::vector<Launch> prepare(const Matmul& given, const TakeMemory& take) {
  const auto sizes = matmul_sizes(given.left.sizes, given.right.sizes);
  require(sizes && *sizes == given.out.sizes, ErrorCode::kInvalidArgument,
          "a product of matrices: sizes of operands and result do not fit");
  check_added(given);
  Matmul call = given;
  if (call.added) call.added = call.added->expanded(call.out.sizes);
  const auto widen = [&](View& operand, size_t place, size_t place_in_result) {
    operand = widened(operand, place);
    call.out = widened(call.out, call.out.sizes.size() - place_in_result);
    if (call.added) call.added = widened(*call.added, call.added->sizes.size() - place_in_result);
  };
  const bool row = given.left.sizes.size() == 1, column = given.right.sizes.size() == 1;
  if (column) widen(call.right, 1, 0);
  if (row) widen(call.left, 0, 1);
  if (call.out.elements() == 0) return {};
  const auto expand = [&](View& operand) {
    std::vector<int64_t> batches(call.out.sizes.begin(), call.out.sizes.end() - 2);
    batches.insert(batches.end(), operand.sizes.end() - 2, operand.sizes.end());
    operand = operand.expanded(batches);
  };
  expand(call.left);
  expand(call.right);
  return Batches(call, take).launches();
}

std::vector<Launch> prepare_sum_of_batches(const Matmul& call, const TakeMemory& take) {
  const auto sizes = matmul_sizes(call.left.sizes, call.right.sizes);
  require(call.left.sizes.size() == 3 && call.right.sizes.size() == 3 && sizes &&
              call.left.sizes[0] == call.right.sizes[0] &&
              std::equal(sizes->begin() + 1, sizes->end(), call.out.sizes.begin(), call.out.sizes.end()),
          ErrorCode::kInvalidArgument, "a sum of products of matrices: sizes do not fit");
  check_added(call);
  const double beta = std::get<double>(call.beta), alpha = std::get<double>(call.alpha);
  const int64_t batches = call.left.sizes[0];
  if (batches < 2) {
    // Of none, the product of matrices whose k is 0.
    Matmul one = call;
    if (batches == 0) one.left.sizes[2] = one.right.sizes[1] = 0;
    one.left.sizes.erase(one.left.sizes.begin());
    one.left.strides.erase(one.left.strides.begin());
    one.right.sizes.erase(one.right.sizes.begin());
    one.right.strides.erase(one.right.strides.begin());
    return prepare(one, take);
  }
  if (call.out.elements() == 0) return {};
  const View total = temporary(take, sum_type(call.left.dtype), call.out.sizes);
  std::vector<Launch> launches;
  for (int64_t i = 0; i < batches; ++i) {
    const bool last = i + 1 == batches;
    GemmCall gemm = {batch_of(element(call.left, i)), batch_of(element(call.right, i)),
                     batch_of(last ? call.out : total)};
    if (i > 0) gemm.operands = {batch_of(total)};
    if (last) {
      const bool adds = call.added && beta != 0;
      gemm.finish = adds ? &kScaledTotalAdded : &kScaledTotal;
      gemm.numbers = adds ? std::vector{beta, alpha} : std::vector{alpha};
      if (adds) gemm.operands.push_back(batch_of(call.added->expanded(call.out.sizes)));
    } else if (i > 0) {
      gemm.finish = &kAdded;
    }
    append(prepare(gemm, take), launches);
  }
  return launches;
}

}  // namespace anynpu::ops
