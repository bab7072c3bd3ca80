#include "ops/catalog.h"

#include <bit>
#include <utility>

#include "base/error.h"
#include "ops/cube/gemm.h"
#include "ops/elementwise.h"
#include "ops/indexing.h"
#include "ops/lines.h"
#include "ops/random.h"

namespace anynpu::ops {
namespace {

/// Phrases, one after another.
class Phrases {
 public:
  void add(bool applies, std::string_view phrase) {
    if (applies) text_ += concat(text_.empty() ? "" : "; ", phrase);
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

/// Operands by their numbers: "operand 1", "operands 0, 2".
std::string operands(uint8_t bits) {
  std::string numbers;
  for (int i = 0; i < 8; ++i)
    if ((bits >> i & 1) != 0) numbers += concat(numbers.empty() ? "" : ", ", i);
  return concat(numbers.size() == 1 ? "operand " : "operands ", numbers);
}

Entry entry(const Elementwise& op) {
  Phrases types;
  const bool promotes = op.operands - std::popcount(static_cast<unsigned>(op.masks | op.follows)) > 1;
  types.add(promotes, op.promotes ? "operands are promoted" : "operands have one type");
  types.add(op.gives_floats, "integers become floats");
  types.add(op.masks != 0, concat(operands(op.masks), " bool"));
  types.add(op.follows != 0, concat(operands(op.follows), " converted"));
  types.add(op.compares, "gives bool");
  types.add(op.casts, "a result of another type is converted to");
  Phrases error;
  for (size_t i = 0; i < op.formulas.size(); ++i) {
    const double ulps = op.formulas[i].ulps;
    if (ulps == 0 || op.compares || !op.formulas[i].of_floats) continue;
    error.add(true, op.choice ? concat(op.choice->values[i], ": ", ulps, " ulp") : concat(ulps, " ulp"));
  }
  error.add(op.cancels && !error.text().empty(), "of the largest operand where that is more");
  return {op.name, op.doc, op.dtypes, types.text(), error.text()};
}

/// Whether any step of the reference rounds.
bool rounds(const LineOp& op) {
  const std::vector<Line> arguments(op.formula.arguments, Line(std::vector<Rounded>{1.L, 2.L, 1.L}));
  for (const Line& result : op.formula.reference(LinesAlong(3), arguments))
    for (size_t i = 0; i < result.size(); ++i)
      if (result[i].error != 0) return true;
  return false;
}

Entry entry(const LineOp& op) {
  Phrases types;
  types.add(op.widens, "integers are widened to i64");
  for (size_t i = 0; i < op.formula.results; ++i) {
    const std::string result = op.formula.results == 1 ? "gives " : concat("result ", i, " ");
    types.add(op.gives(i) == Holds::kPosition, concat(result, "i64"));
    types.add(op.gives(i) == Holds::kTruth, concat(result, "bool"));
  }
  types.add(op.in_f64, "f32 is computed in f64");
  return {op.name, op.doc, op.dtypes, types.text(), rounds(op) ? "what rounding each step adds up to" : ""};
}

Entry entry(const IndexingOp& op) {
  return {op.name, op.doc, op.adds ? kAllNumbers : tile::kAll, "indices are i32 or i64",
          op.adds ? "what rounding each sum adds up to" : ""};
}

Entry entry(const RandomOp& op) {
  return {op.name, op.doc, kAllFloats, op.results > 1 ? "result 1 bool" : "", ""};
}

}  // namespace

std::vector<Entry> catalog() {
  std::vector<Entry> entries;
  for (const Elementwise& op : elementwise_ops()) entries.push_back(entry(op));
  for (const LineOp& op : line_ops()) entries.push_back(entry(op));
  for (const IndexingOp& op : indexing_ops()) entries.push_back(entry(op));
  for (const RandomOp& op : random_ops()) entries.push_back(entry(op));
  entries.push_back({"Gemm", "products of matrices, and a multiple of a tensor added to them", kProductTypes,
                     "operands have one type", "what rounding each sum adds up to"});
  entries.push_back({"Attention", "dropout(softmax(scale q k^T + bias)) v, by blocks of keys", kAllFloats,
                     "operands have one type, a bias any", "what rounding each score and sum adds up to"});
  entries.push_back({"AttentionBackward", "the gradients of the same to q, k, v and bias", kAllFloats,
                     "operands have one type, a bias any", "what rounding each score and sum adds up to"});
  entries.push_back({"Convolution",
                     "convolutions of one to three dimensions, transposed ones, and their gradients",
                     kAllFloats, "operands have one type", "what rounding each sum adds up to"});
  entries.push_back(
      {"MaxPool", "the greatest element of each window, and its place", kAllFloats, "result 1 i64", ""});
  entries.push_back({"MaxPoolBackward", "each gradient added to the element that its index names", kAllFloats,
                     "", "what rounding each sum adds up to"});
  for (const auto& [name, dtypes] : {std::pair("AveragePool", kAllFloats), {"AveragePool3d", tile::kFloats}})
    entries.push_back({name, "the mean of each window", dtypes, "", "what rounding each sum adds up to"});
  for (const auto& [name, dtypes] :
       {std::pair("AveragePoolBackward", kAllFloats), {"AveragePool3dBackward", tile::kFloats}})
    entries.push_back({name, "each gradient, divided, added to the elements of its window", dtypes, "",
                       "what rounding each sum adds up to"});
  entries.push_back({"DropoutMask",
                     "a bit for each element, 0 with probability p; x / (1 - p) where it is 1, else 0",
                     kAllFloats, "the mask is u8", ""});
  entries.push_back(
      {"Selection", "the elements that a tensor chooses, or their indices", tile::kAll, "", ""});
  return entries;
}

}  // namespace anynpu::ops
