#include "ops/line_tables.h"

namespace anynpu::ops {
namespace {

/// A reduction of one operand to one result, which is applied to the results of parts of a line too.
LineOp reduction(LineOp row) {
  row.short_results = 0b1;
  if (row.of_parts.empty()) row.of_parts = row.name;
  row.of_results = row.name;
  return row;
}

/// A reduction to the position of the first element that is in front of the others, and to that element: of a
/// line, or of elements with their positions, which parts of a line give.
LineOp search(LineOp row) {
  const bool value = row.formula.results == 2;
  row.operands = static_cast<int>(row.formula.arguments);
  row.short_results = value ? 0b11 : 0b1;
  row.given = {value ? Holds::kCommon : Holds::kPosition, Holds::kPosition};
  row.taken = {Holds::kCommon, Holds::kPosition};
  row.of_nothing = false;
  return row;
}

#define ANYNPU_ALONG(function) [](const auto& along, const auto& x) { return along.function(x); }
#define ANYNPU_WITH_POSITION(function) \
  [](const auto& along, const auto& x) { return std::tuple(along.function(x), along.arg##function(x)); }
#define ANYNPU_POSITION_OF_PARTS(function)                     \
  [](const auto& along, const auto& x, const auto& position) { \
    return along.at(position, along.arg##function(x));         \
  }
#define ANYNPU_WITH_POSITION_OF_PARTS(function)                                       \
  [](const auto& along, const auto& x, const auto& position) {                        \
    return std::tuple(along.function(x), along.at(position, along.arg##function(x))); \
  }

}  // namespace

std::vector<LineOp> reductions() {
  const auto mean = [](const auto& along, const auto& x) { return along.sum(x) / along.length(); };
  const auto any = [](const auto& along, const auto& x) { return along.any(x != 0.0); };
  const auto all = [](const auto& along, const auto& x) { return along.all(x != 0.0); };
  return {
      reduction({.name = "Sum",
                 .doc = "the sum",
                 .formula = line_formula<1>(ANYNPU_ALONG(sum)),
                 .dtypes = kAllNumbers,
                 .widens = true,
                 .aten = {"sum"}}),
      reduction({.name = "Prod",
                 .doc = "the product",
                 .formula = line_formula<1>(ANYNPU_ALONG(prod)),
                 .dtypes = kAllNumbers,
                 .widens = true,
                 .aten = {"prod"}}),
      reduction({.name = "Mean",
                 .doc = "the mean",
                 .formula = line_formula<1>(mean),
                 .rounds_operands = false,
                 .of_parts = "Sum",
                 .aten = {"mean"}}),
      reduction({.name = "Amax",
                 .doc = "the largest; NaN where there is one",
                 .formula = line_formula<1>(ANYNPU_ALONG(max)),
                 .dtypes = tile::kAll,
                 .of_nothing = false,
                 .aten = {"amax", "max"}}),
      reduction({.name = "Amin",
                 .doc = "the smallest; NaN where there is one",
                 .formula = line_formula<1>(ANYNPU_ALONG(min)),
                 .dtypes = tile::kAll,
                 .of_nothing = false,
                 .aten = {"amin", "min"}}),
      reduction({.name = "Any",
                 .doc = "whether an element is not 0",
                 .formula = line_formula<1>(any),
                 .dtypes = tile::kAll,
                 .given = {Holds::kTruth},
                 .aten = {"any"}}),
      reduction({.name = "All",
                 .doc = "whether no element is 0",
                 .formula = line_formula<1>(all),
                 .dtypes = tile::kAll,
                 .given = {Holds::kTruth},
                 .aten = {"all"}}),
      search({.name = "ArgMax",
              .doc = "where the largest is first",
              .formula = line_formula<1>(ANYNPU_ALONG(argmax)),
              .dtypes = kAllNumbers,
              .of_parts = "MaxDim",
              .of_results = "ArgMaxOfParts",
              .aten = {"argmax"}}),
      search({.name = "ArgMaxOfParts",
              .doc = "the same of parts of a line",
              .formula = line_formula<2>(ANYNPU_POSITION_OF_PARTS(max)),
              .dtypes = kAllNumbers}),
      search({.name = "ArgMin",
              .doc = "where the smallest is first",
              .formula = line_formula<1>(ANYNPU_ALONG(argmin)),
              .dtypes = kAllNumbers,
              .of_parts = "MinDim",
              .of_results = "ArgMinOfParts",
              .aten = {"argmin"}}),
      search({.name = "ArgMinOfParts",
              .doc = "the same of parts of a line",
              .formula = line_formula<2>(ANYNPU_POSITION_OF_PARTS(min)),
              .dtypes = kAllNumbers}),
      search({.name = "MaxDim",
              .doc = "the largest, and where it is first",
              .formula = line_formula<1, 2>(ANYNPU_WITH_POSITION(max)),
              .dtypes = tile::kAll,
              .of_parts = "MaxDim",
              .of_results = "MaxDimOfParts",
              .aten = {"max"}}),
      search({.name = "MaxDimOfParts",
              .doc = "the same of parts of a line",
              .formula = line_formula<2, 2>(ANYNPU_WITH_POSITION_OF_PARTS(max)),
              .dtypes = tile::kAll}),
      search({.name = "MinDim",
              .doc = "the smallest, and where it is first",
              .formula = line_formula<1, 2>(ANYNPU_WITH_POSITION(min)),
              .dtypes = tile::kAll,
              .of_parts = "MinDim",
              .of_results = "MinDimOfParts",
              .aten = {"min"}}),
      search({.name = "MinDimOfParts",
              .doc = "the same of parts of a line",
              .formula = line_formula<2, 2>(ANYNPU_WITH_POSITION_OF_PARTS(min)),
              .dtypes = tile::kAll}),
  };
}

std::vector<LineOp> scans() {
  return {
      {.name = "Cumsum",
       .doc = "the sums so far",
       .formula = line_formula<1>(ANYNPU_ALONG(running_sum)),
       .dtypes = kAllNumbers,
       .widens = true,
       .in_f64 = true,
       .in_order = true,
       .aten = {"cumsum"}},
      {.name = "Cumprod",
       .doc = "the products so far",
       .formula = line_formula<1>(ANYNPU_ALONG(running_prod)),
       .dtypes = kAllNumbers,
       .widens = true,
       .in_f64 = true,
       .in_order = true,
       .aten = {"cumprod"}},
  };
}

#undef ANYNPU_ALONG
#undef ANYNPU_WITH_POSITION
#undef ANYNPU_POSITION_OF_PARTS
#undef ANYNPU_WITH_POSITION_OF_PARTS

}  // namespace anynpu::ops
