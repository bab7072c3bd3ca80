#include "tile/verify.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "base/error.h"
#include "tile/text.h"

namespace anynpu::tile {
namespace {

using Kind = Index::Kind;

bool is_name(std::string_view text) { return !text.empty() && std::ranges::all_of(text, is_of_name); }

class Verifier {
 public:
  explicit Verifier(const Kernel& kernel) : kernel_(kernel) {}

  void run() {
    names();
    require_leaves(kernel_.grid, "the grid");
    for (const Buffer& buffer : kernel_.buffers) {
      if (buffer.strides.size() != buffer.sizes.size())
        fail("%", buffer.name, " has ", buffer.sizes.size(), " sizes and ", buffer.strides.size(),
             " strides");
      for (const Index& size : buffer.sizes) require_leaves(size, "a size of %" + buffer.name);
    }
    for (const Buffer& buffer : kernel_.locals) {
      for (const Index& size : buffer.sizes) require_leaves(size, "a size of %" + buffer.name);
      if (buffer.strides != local_buffer(buffer.name, buffer.dtype, buffer.sizes).strides)
        fail("%", buffer.name, " is local and not contiguous");
    }
    for (const Value scalar : kernel_.scalars) {
      define(scalar);
      if (!kernel_.type(scalar).is_scalar()) fail("a parameter is no scalar");
    }
    in_body_ = true;
    if (!kernel_.body.arguments.empty()) fail("its body has arguments");
    body(kernel_.body, false);
  }

 private:
  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    raise(ErrorCode::kInvalidArgument, "kernel @", kernel_.name, ": ", parts...);
  }

  /// Each name is a word of the text form, of one size or of one buffer.
  void names() const {
    std::set<std::string_view> sizes, buffers;
    for (const std::string& size : kernel_.sizes)
      if (!is_name(size) || !sizes.insert(size).second) fail("size ?", size, " has no name of its own");
    for (const auto* some : {&kernel_.buffers, &kernel_.locals})
      for (const Buffer& buffer : *some)
        if (!is_name(buffer.name) || !buffers.insert(buffer.name).second)
          fail("buffer %", buffer.name, " has no name of its own");
  }

  void define(Value value) {
    if (number_of(value) >= kernel_.values.size()) fail("value ", number_of(value), " does not exist");
    if (kernel_.values[number_of(value)].literal)
      fail("value ", number_of(value), " is a constant and defined");
    if (!defined_.insert(value).second) fail("value ", number_of(value), " is defined twice");
    in_scope_.insert(value);
  }

  void use(Value value, std::string_view what) const {
    if (number_of(value) >= kernel_.values.size())
      fail(what, ": value ", number_of(value), " does not exist");
    if (!kernel_.values[number_of(value)].literal && !in_scope_.contains(value))
      fail(what, ": value ", number_of(value), " is not defined there");
  }

  void require_leaves(const Index& index, std::string_view what) const {
    index.for_each_leaf([&](const Index& leaf) {
      switch (leaf.kind()) {
        case Kind::kConstant:
          return;
        case Kind::kSize:
          if (leaf.value() < 0 || leaf.value() >= static_cast<int64_t>(kernel_.sizes.size()))
            fail(what, ": size ", leaf.value(), " does not exist");
          return;
        default:
          break;
      }
      if (!in_body_) fail(what, ": accepted are constants and sizes");
      if (leaf.kind() == Kind::kCounter && !counters_.contains(leaf.value()))
        fail(what, ": counter i", leaf.value(), " is of no loop around it");
      if (leaf.kind() != Kind::kScalar) return;
      use(static_cast<Value>(leaf.value()), what);
      const Type& type = kernel_.type(static_cast<Value>(leaf.value()));
      if (!type.is_scalar() || (type.dtype != DType::kI32 && type.dtype != DType::kI64))
        fail(what, ": ", text_of(kernel_, type), " is no index; a scalar of i32 or i64 is accepted");
    });
  }

  void indices(const Instruction& instruction, std::string_view name) const {
    for (const Index* index : {&instruction.type.rows, &instruction.type.cols, &instruction.index,
                               &instruction.first, &instruction.last})
      require_leaves(*index, name);
    for (const Place& place : instruction.places) {
      if (const auto* index = std::get_if<Index>(&place))
        require_leaves(*index, name);
      else
        use(std::get<Value>(place), name);
    }
    if (instruction.mask) use(*instruction.mask, name);
    if (instruction.otherwise) use(*instruction.otherwise, name);
  }

  void body(const Body& body, bool yields) {
    for (const Instruction& instruction : body.instructions) {
      const std::string_view name = info(instruction.opcode).name;
      for (const Value operand : instruction.operands) use(operand, name);
      indices(instruction, name);
      if (instruction.opcode == Opcode::kLoop) loop(instruction);
      if (instruction.opcode == Opcode::kYield && (!yields || &instruction != &body.instructions.back()))
        fail("yield does not end a loop's body");
      const auto types = infer_types(kernel_, instruction);
      if (types.size() != instruction.results.size())
        fail(name, " gives ", types.size(), " results, not ", instruction.results.size());
      for (size_t i = 0; i < types.size(); ++i) {
        define(instruction.results[i]);
        if (!(kernel_.type(instruction.results[i]) == types[i]))
          fail(name, ": result ", i, " is ", text_of(kernel_, kernel_.type(instruction.results[i])), ", not ",
               text_of(kernel_, types[i]));
      }
    }
  }

  void loop(const Instruction& instruction) {
    if (instruction.counter < 0 || instruction.counter >= kernel_.counters ||
        !all_counters_.insert(instruction.counter).second)
      fail("loop: counter ", instruction.counter, " is another loop's or none");
    const auto outside = in_scope_;
    counters_.insert(instruction.counter);
    for (const Body& inner : instruction.body) {
      for (const Value argument : inner.arguments) {
        define(argument);
        require_invariant(kernel_.type(argument), instruction.counter);
      }
      body(inner, true);
    }
    counters_.erase(instruction.counter);
    in_scope_ = outside;
  }

  /// What a loop carries keeps its extents.
  void require_invariant(const Type& type, int counter) const {
    for (const Index* extent : {&type.rows, &type.cols})
      extent->for_each_leaf([&](const Index& leaf) {
        if (leaf == Index::counter(counter))
          fail("loop: it carries ", text_of(kernel_, type), ", of its counter");
      });
  }

  const Kernel& kernel_;
  std::set<Value> defined_, in_scope_;
  std::set<int64_t> counters_, all_counters_;
  bool in_body_ = false;
};

}  // namespace

void verify(const Kernel& kernel) { Verifier(kernel).run(); }

}  // namespace anynpu::tile
