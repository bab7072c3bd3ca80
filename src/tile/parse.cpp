#include <algorithm>
#include <cctype>
#include <charconv>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "base/error.h"
#include "tile/text.h"
#include "tile/verify.h"

namespace anynpu::tile {
namespace {

/// A recursive descent over the text; names are resolved at once, since each is defined before its uses.
class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) { skip(); }

  std::vector<Kernel> kernels() {
    std::vector<Kernel> kernels;
    while (at_ < text_.size()) kernels.push_back(kernel());
    return kernels;
  }

 private:
  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    const std::string_view before = text_.substr(0, at_);
    const auto line = std::count(before.begin(), before.end(), '\n') + 1;
    const size_t start = before.rfind('\n') == before.npos ? 0 : before.rfind('\n') + 1;
    raise(ErrorCode::kInvalidArgument, "tile text, line ", line, ", column ", at_ - start + 1, ": ",
          parts...);
  }

  /// What `function` gives; its errors with the place in the text.
  template <class Function>
  auto located(const Function& function) const {
    try {
      return function();
    } catch (const Error& error) {
      fail(error.what());
    }
  }

  // Words and symbols.
  void skip() {
    while (at_ < text_.size()) {
      if (std::isspace(static_cast<unsigned char>(text_[at_])) != 0) {
        ++at_;
      } else if (text_.substr(at_, 2) == "//") {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else {
        return;
      }
    }
  }
  bool peek(std::string_view symbol) const { return text_.substr(at_, symbol.size()) == symbol; }
  bool accept(std::string_view symbol) {
    if (!peek(symbol)) return false;
    at_ += symbol.size();
    skip();
    return true;
  }
  void expect(std::string_view symbol) {
    if (!accept(symbol)) fail("'", symbol, "' is expected");
  }
  std::string_view peek_word() const {
    size_t end = at_;
    while (end < text_.size() && is_of_name(text_[end])) ++end;
    return text_.substr(at_, end - at_);
  }
  bool accept_word(std::string_view word) { return peek_word() == word && accept(word); }
  void expect_word(std::string_view word) {
    if (!accept_word(word)) fail("'", word, "' is expected");
  }
  std::string word(std::string_view what) {
    const std::string_view found = peek_word();
    if (found.empty()) fail(what, " is expected");
    at_ += found.size();
    skip();
    return std::string(found);
  }
  std::optional<int64_t> accept_integer() {
    const size_t digits = at_ + (peek("-") ? 1 : 0);
    if (digits >= text_.size() || std::isdigit(static_cast<unsigned char>(text_[digits])) == 0)
      return std::nullopt;
    int64_t number = 0;
    const auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), number);
    if (error != std::errc()) fail("the integer does not fit 64 bits");
    at_ = static_cast<size_t>(end - text_.data());
    skip();
    return number;
  }

  // Types and indices.
  DType dtype() {
    const auto dtype = dtype_named(peek_word());
    if (!dtype) fail("a type of elements is expected");
    accept(name_of(*dtype));
    return *dtype;
  }
  Type type() {
    if (!accept_word("tile")) return {dtype()};
    expect("<");
    Type type;
    type.rows = index();
    expect_word("x");
    type.cols = index();
    expect(",");
    type.dtype = dtype();
    expect(">");
    return type;
  }

  // What would take more of the stack than there is, here or where the result is walked through.
  static constexpr int kDeepest = 50, kMostOperators = 200;
  template <class Function>
  auto nested(const Function& function) {
    if (depth_ == kDeepest) fail("brackets and loops are nested deeper than ", kDeepest);
    ++depth_;
    auto result = function();
    --depth_;
    return result;
  }
  void count_operator(int& operators) {
    if (++operators > kMostOperators) fail("an index has more than ", kMostOperators, " operators in a row");
  }

  Index index() {
    Index left = product();
    for (int operators = 0;; count_operator(operators)) {
      if (accept("+"))
        left = left + product();
      else if (accept("-"))
        left = left - product();
      else
        return left;
    }
  }
  Index product() {
    Index left = atom();
    for (int operators = 0;; count_operator(operators)) {
      if (accept("*"))
        left = left * atom();
      else if (!peek("//") && accept("/"))
        left = left / atom();
      else if (peek("% ") && accept("%"))
        left = left % atom();
      else
        return left;
    }
  }
  Index atom() {
    if (const auto number = accept_integer()) return *number;
    if (accept("(")) {
      const Index inner = nested([this] { return index(); });
      expect(")");
      return inner;
    }
    if (accept("?")) return size(word("the name of a size"));
    if (peek("%")) {
      const Value value = operand();
      return Index::scalar(static_cast<int>(value));
    }
    if (accept_word("block")) return Index::block();
    for (const std::string_view function : {"min", "max", "ceil"})
      if (peek_word() == function) return call(function);
    const auto counter = counters_.find(std::string(peek_word()));
    if (counter == counters_.end()) fail("an index is expected");
    accept(counter->first);
    return Index::counter(counter->second);
  }
  Index call(std::string_view function) {
    accept(function);
    expect("(");
    if (function == "ceil") {
      const Index above = product_without_division();
      expect("/");
      const Index below = atom();
      expect(")");
      return ceil_div(above, below);
    }
    const Index a = nested([this] { return index(); });
    expect(",");
    const Index b = nested([this] { return index(); });
    expect(")");
    return function == "min" ? min(a, b) : max(a, b);
  }
  /// What stands before the division in `ceil(a / b)`; sums are put in parentheses there.
  Index product_without_division() {
    Index left = nested([this] { return atom(); });
    for (int operators = 0; accept("*"); count_operator(operators)) left = left * atom();
    return left;
  }
  Index size(const std::string& name) {
    for (size_t i = 0; i < kernel_.sizes.size(); ++i)
      if (kernel_.sizes[i] == name) return Index::size(static_cast<int>(i));
    kernel_.sizes.push_back(name);
    return Index::size(static_cast<int>(kernel_.sizes.size()) - 1);
  }

  // Values.
  Value define(const std::string& name, Type type) {
    const bool number = name.find_first_not_of("0123456789") == name.npos;
    const Value value = kernel_.add_value(std::move(type), number ? "" : name);
    if (!names_.emplace(name, value).second) fail("%", name, " is defined twice");
    return value;
  }
  Value constant(DType dtype) {
    expect("(");
    size_t end = text_.find(')', at_);
    if (end == text_.npos) fail("')' is expected");
    const std::string_view text = text_.substr(at_, end - at_);
    Literal literal = int64_t{0};
    const auto parsed = [&](auto number) {
      const char* const last = std::to_address(text.end());
      const auto [rest, error] = std::from_chars(std::to_address(text.begin()), last, number);
      if (error != std::errc() || rest != last) fail("'", text, "' is no ", name_of(dtype));
      literal = number;
    };
    if (kBits.contains(dtype))
      parsed(int64_t{0});
    else
      parsed(0.0);
    at_ = end + 1;
    skip();
    return located([&] { return kernel_.constant(dtype, literal); });
  }
  /// A value: its name, a constant such as f32(0.5), or an operation in parentheses.
  Value operand() {
    if (accept("(")) {
      Instruction inner = nested([this] { return instruction({""}); });
      expect(")");
      const Value value = inner.results.at(0);
      body_->instructions.push_back(std::move(inner));
      return value;
    }
    if (const auto dtype = dtype_named(peek_word())) {
      accept(name_of(*dtype));
      return constant(*dtype);
    }
    expect("%");
    const std::string name = word("the name of a value");
    const auto found = names_.find(name);
    if (found == names_.end()) fail("%", name, " is not defined");
    return found->second;
  }
  std::vector<Value> operands() {
    std::vector<Value> values = {operand()};
    while (accept(",")) values.push_back(operand());
    return values;
  }

  // Instructions.
  void place(Instruction& instruction) {
    expect("%");
    const std::string name = word("the name of a buffer");
    for (int i = 0; kernel_.has_buffer(i); ++i)
      if (kernel_.buffer(i).name == name) instruction.buffer = i;
    if (instruction.buffer < 0) fail("%", name, " is no buffer");
    expect("[");
    while (!accept("]")) {
      if (!instruction.places.empty()) expect(",");
      if (accept_word("at"))
        instruction.places.emplace_back(operand());
      else
        instruction.places.emplace_back(index());
    }
  }
  void masks(Instruction& instruction) {
    if (accept_word("mask")) instruction.mask = operand();
    if (accept_word("else")) instruction.otherwise = operand();
  }
  void attributes(Instruction& instruction) {
    switch (instruction.opcode) {
      case Opcode::kIota:
        instruction.axis = accept_word("rows") ? Axis::kRows : (expect_word("cols"), Axis::kCols);
        return typed(instruction);
      case Opcode::kIndex:
        instruction.index = index();
        return typed(instruction);
      case Opcode::kLoad:
        place(instruction);
        masks(instruction);
        return typed(instruction);
      case Opcode::kStore:
      case Opcode::kAccumulate:
        place(instruction);
        expect(",");
        instruction.operands = {operand()};
        return masks(instruction);
      case Opcode::kBroadcast:
        instruction.operands = {operand()};
        return typed(instruction);
      case Opcode::kCast:
      case Opcode::kBitcast:
        return cast(instruction);
      case Opcode::kLoop:
        return loop(instruction);
      case Opcode::kYield:
        if (!peek("}")) instruction.operands = operands();
        return;
      default:
        instruction.operands = operands();
    }
  }
  void typed(Instruction& instruction) {
    expect(":");
    instruction.type = type();
  }
  void cast(Instruction& instruction) {
    instruction.operands = {operand()};
    expect(":");
    instruction.type.dtype = dtype();
    if (instruction.opcode != Opcode::kCast) return;
    const bool to_integer = kBits.contains(instruction.type.dtype);
    instruction.rounding = to_integer ? Rounding::kTowardZero : Rounding::kNearestEven;
    if (accept_word("saturate")) instruction.rounding = Rounding::kSaturate;
  }
  void loop(Instruction& instruction) {
    const std::string name = word("the name of a counter");
    instruction.counter = kernel_.counters++;
    expect("=");
    instruction.first = index();
    expect_word("to");
    instruction.last = index();
    if (accept_word("step")) instruction.step = index();
    if (!counters_.emplace(name, instruction.counter).second)
      fail("counter ", name, " is a loop's around it");
    Body inner;
    const auto outer_names = names_;
    if (accept("(")) do {
        expect("%");
        const std::string argument = word("the name of a value");
        expect("=");
        instruction.operands.push_back(operand());
        inner.arguments.push_back(define(argument, kernel_.type(instruction.operands.back())));
      } while (accept(","));
    if (!instruction.operands.empty()) expect(")");
    Body* outer = std::exchange(body_, &inner);
    nested([this] {
      statements();
      return true;
    });
    body_ = outer;
    names_ = outer_names;
    counters_.erase(name);
    instruction.body.push_back(std::move(inner));
  }

  /// An operation and its results, which get the names.
  Instruction instruction(const std::vector<std::string>& results) {
    const std::string name(peek_word());
    const auto opcode = opcode_named(name);
    if (!opcode) fail("'", name, "' is no operation");
    accept(name);
    Instruction instruction;
    instruction.opcode = *opcode;
    attributes(instruction);
    const auto types = located([&] { return infer_types(kernel_, instruction); });
    if (types.size() != results.size()) fail(name, " gives ", types.size(), " results, not ", results.size());
    for (size_t i = 0; i < types.size(); ++i)
      instruction.results.push_back(results[i].empty() ? kernel_.add_value(types[i])
                                                       : define(results[i], types[i]));
    return instruction;
  }

  void statements() {
    expect("{");
    while (!accept("}")) {
      std::vector<std::string> results;
      if (peek("%")) {
        do {
          expect("%");
          results.push_back(word("the name of a value"));
        } while (accept(","));
        expect("=");
      }
      Instruction next = instruction(results);
      body_->instructions.push_back(std::move(next));
    }
  }

  void parameter() {
    expect("%");
    const std::string name = word("the name of a parameter");
    expect(":");
    const DType dtype = this->dtype();
    if (!accept("[")) {
      kernel_.scalars.push_back(define(name, {dtype}));
      return;
    }
    require_new_buffer(name);
    Buffer buffer = {name, dtype, sizes(), {}};
    if (accept(";")) {
      while (!peek("]")) {
        if (!buffer.strides.empty()) expect(",");
        if (accept("?"))
          buffer.strides.emplace_back(std::nullopt);
        else if (const auto stride = accept_integer())
          buffer.strides.emplace_back(stride);
        else
          fail("a stride is expected: an integer or ?");
      }
      if (buffer.strides.size() != buffer.sizes.size())
        fail("%", name, " has ", buffer.sizes.size(), " sizes and ", buffer.strides.size(), " strides");
    } else {
      buffer.strides.resize(buffer.sizes.size());
      if (!buffer.strides.empty()) buffer.strides.back() = 1;
    }
    expect("]");
    kernel_.buffers.push_back(std::move(buffer));
  }

  std::vector<Index> sizes() {
    std::vector<Index> sizes;
    while (!peek("]") && !peek(";")) {
      if (!sizes.empty()) expect(",");
      sizes.push_back(index());
    }
    return sizes;
  }
  void require_new_buffer(const std::string& name) {
    for (int i = 0; kernel_.has_buffer(i); ++i)
      if (kernel_.buffer(i).name == name) fail("%", name, " is defined twice");
  }

  void local() {
    expect("%");
    const std::string name = word("the name of a local buffer");
    require_new_buffer(name);
    expect(":");
    const DType dtype = this->dtype();
    expect("[");
    kernel_.locals.push_back(local_buffer(name, dtype, sizes()));
    expect("]");
  }

  Kernel kernel() {
    kernel_ = {};
    names_.clear();
    expect_word("kernel");
    expect("@");
    kernel_.name = word("the name of a kernel");
    if (accept("[")) {
      do {
        expect("?");
        const std::string name = word("the name of a size");
        if (std::ranges::find(kernel_.sizes, name) != kernel_.sizes.end())
          fail("?", name, " is declared twice");
        kernel_.sizes.push_back(name);
      } while (accept(","));
      expect("]");
    }
    expect("(");
    while (!accept(")")) {
      if (!kernel_.buffers.empty() || !kernel_.scalars.empty()) expect(",");
      parameter();
    }
    expect_word("grid");
    expect("(");
    kernel_.grid = index();
    expect(")");
    if (accept_word("local")) {
      expect("(");
      while (!accept(")")) {
        if (!kernel_.locals.empty()) expect(",");
        local();
      }
    }
    body_ = &kernel_.body;
    statements();
    verify(kernel_);
    return std::move(kernel_);
  }

  std::string_view text_;
  size_t at_ = 0;
  int depth_ = 0;  ///< of brackets and loops
  Kernel kernel_;
  Body* body_ = nullptr;
  std::map<std::string, Value> names_;
  std::map<std::string, int> counters_;
};

}  // namespace

std::vector<Kernel> parse(std::string_view text) { return Parser(text).kernels(); }

}  // namespace anynpu::tile
