#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "base/error.h"
#include "tile/text.h"

namespace anynpu::tile {
namespace {

using Kind = Index::Kind;

int precedence(Kind kind) {
  switch (kind) {
    case Kind::kAdd:
    case Kind::kSub:
      return 1;
    case Kind::kMul:
    case Kind::kDiv:
    case Kind::kMod:
      return 2;
    default:
      return 3;
  }
}

const char* symbol(Kind kind) {
  switch (kind) {
    case Kind::kAdd:
      return " + ";
    case Kind::kSub:
      return " - ";
    case Kind::kMul:
      return " * ";
    case Kind::kDiv:
      return " / ";
    default:
      return " % ";
  }
}

/// The shortest text that reads back as the number.
template <class T>
std::string shortest(T number) {
  char text[32];
  return {text, std::to_chars(std::begin(text), std::end(text), number).ptr};
}

class Printer {
 public:
  explicit Printer(const Kernel& kernel) : kernel_(kernel) {}

  std::string kernel() {
    out_ = "(";
    const char* separator = "";
    for (const Buffer& buffer : kernel_.buffers) {
      taken_.insert(buffer.name);
      out_ += std::exchange(separator, ", ") + text(buffer);
    }
    for (const Value scalar : kernel_.scalars)
      out_ += std::exchange(separator, ", ") + define(scalar) + ": " + text(kernel_.type(scalar));
    out_ += ") grid(" + text(kernel_.grid) + ")";
    separator = " local(";
    for (const Buffer& buffer : kernel_.locals) {
      taken_.insert(buffer.name);
      out_ += std::exchange(separator, ", ") + text(buffer, sizes_of(buffer));
    }
    out_ += kernel_.locals.empty() ? " {\n" : ") {\n";
    body(kernel_.body, 1);
    return "kernel @" + kernel_.name + declared_sizes() + out_ + "}\n";
  }

  std::string text(const Index& index) {
    switch (index.kind()) {
      case Kind::kConstant:
        return std::to_string(index.value());
      case Kind::kSize:
        return "?" + kernel_.sizes[static_cast<size_t>(index.value())];
      case Kind::kBlock:
        return "block";
      case Kind::kCounter:
        return "i" + std::to_string(index.value());
      case Kind::kScalar:
        return name(static_cast<Value>(index.value()));
      case Kind::kMin:
        return "min(" + text(index.left()) + ", " + text(index.right()) + ")";
      case Kind::kMax:
        return "max(" + text(index.left()) + ", " + text(index.right()) + ")";
      default:
        break;
    }
    const int own = precedence(index.kind());
    const auto side = [&](const Index& operand, int least) {
      const std::string inner = text(operand);
      return precedence(operand.kind()) < least ? "(" + inner + ")" : inner;
    };
    return side(index.left(), own) + symbol(index.kind()) + side(index.right(), own + 1);
  }

  std::string text(const Type& type) {
    std::string dtype(name_of(type.dtype));
    if (type.is_scalar()) return dtype;
    return "tile<" + text(type.rows) + " x " + text(type.cols) + ", " + dtype + ">";
  }

 private:
  /// The sizes, where they are not those that the rest of the text names, in the order in which it does:
  /// calls give all of them in this one.
  std::string declared_sizes() const {
    std::vector<std::string> named;
    for (size_t at = out_.find('?'); at != out_.npos; at = out_.find('?', at + 1)) {
      const auto end =
          std::find_if_not(out_.begin() + static_cast<ptrdiff_t>(at) + 1, out_.end(), is_of_name);
      std::string name(out_.begin() + static_cast<ptrdiff_t>(at) + 1, end);
      const bool is_stride = name.empty();
      if (!is_stride && std::ranges::find(named, name) == named.end()) named.push_back(std::move(name));
    }
    if (named == kernel_.sizes) return "";
    std::string text;
    for (const std::string& name : kernel_.sizes) text += (text.empty() ? "[?" : ", ?") + name;
    return text + "]";
  }

  std::string text(const Buffer& buffer) {
    std::string strides;
    bool usual = true;  // only the last one is known, and 1
    for (size_t d = 0; d < buffer.strides.size(); ++d) {
      const auto& stride = buffer.strides[d];
      usual &= d + 1 == buffer.strides.size() ? stride == 1 : !stride.has_value();
      strides += (strides.empty() ? "" : ", ") + (stride ? std::to_string(*stride) : std::string("?"));
    }
    return text(buffer, sizes_of(buffer) + (usual ? "" : "; " + strides));
  }
  static std::string text(const Buffer& buffer, const std::string& extents) {
    return concat("%", buffer.name, ": ", name_of(buffer.dtype), "[", extents, "]");
  }
  std::string sizes_of(const Buffer& buffer) {
    std::string sizes;
    for (const Index& size : buffer.sizes) sizes += (sizes.empty() ? "" : ", ") + text(size);
    return sizes;
  }

  std::string literal(Value value) {
    const auto& [type, name, literal] = kernel_.values[number_of(value)];
    const auto text = [&]() -> std::string {
      if (const auto* integer = std::get_if<int64_t>(&*literal)) return std::to_string(*integer);
      const double number = std::get<double>(*literal);
      return type.dtype == DType::kF64 ? shortest(number) : shortest(static_cast<float>(number));
    };
    return concat(name_of(type.dtype), "(", text(), ")");
  }

  /// A name for a value that is defined here.
  std::string define(Value value) {
    std::string name = kernel_.values[number_of(value)].name;
    while (name.empty() || !taken_.insert(name).second) name = std::to_string(next_++);
    return "%" + (names_[value] = name);
  }

  std::string name(Value value) {
    const auto& known = kernel_.values[number_of(value)];
    if (known.literal) return literal(value);
    const auto found = names_.find(value);
    if (found != names_.end()) return "%" + found->second;
    return "%" + (known.name.empty() ? "v" + std::to_string(number_of(value))
                                     : known.name);  // outside of a whole kernel
  }

  std::string list(const std::vector<Value>& values) {
    std::string text;
    for (const Value value : values) text += (text.empty() ? "" : ", ") + name(value);
    return text;
  }

  std::string place(const Instruction& instruction) {
    std::string text;
    for (const Place& place : instruction.places) {
      text += text.empty() ? "" : ", ";
      const auto* index = std::get_if<Index>(&place);
      text += index != nullptr ? this->text(*index) : "at " + name(std::get<Value>(place));
    }
    return "%" + kernel_.buffer(instruction.buffer).name + "[" + text + "]";
  }

  std::string masks(const Instruction& instruction) {
    std::string text;
    if (instruction.mask) text += " mask " + name(*instruction.mask);
    if (instruction.otherwise) text += " else " + name(*instruction.otherwise);
    return text;
  }

  /// What follows the name of the operation.
  std::string details(const Instruction& instruction) {
    std::string operands = list(instruction.operands);
    const auto typed = [&](const std::string& what) { return what + " : " + text(instruction.type); };
    switch (instruction.opcode) {
      case Opcode::kIota:
        return typed(instruction.axis == Axis::kRows ? "rows" : "cols");
      case Opcode::kIndex:
        return typed(text(instruction.index));
      case Opcode::kLoad:
        return typed(place(instruction) + masks(instruction));
      case Opcode::kStore:
      case Opcode::kAccumulate:
        return place(instruction) + ", " + operands + masks(instruction);
      case Opcode::kBroadcast:
        return typed(operands);
      case Opcode::kCast:
        return operands + " : " + std::string(name_of(instruction.type.dtype)) +
               (instruction.rounding == Rounding::kSaturate ? " saturate" : "");
      case Opcode::kBitcast:
        return operands + " : " + std::string(name_of(instruction.type.dtype));
      default:
        return operands;
    }
  }

  void body(const Body& body, int depth) {
    const std::string indent(static_cast<size_t>(depth) * 2, ' ');
    for (const Instruction& instruction : body.instructions) {
      out_ += indent + results(instruction);
      if (instruction.opcode == Opcode::kLoop) {
        out_ += head(instruction) + " {\n";
        this->body(instruction.body[0], depth + 1);
        out_ += indent + "}\n";
      } else {
        const std::string what = details(instruction);
        out_.append(info(instruction.opcode).name).append(what.empty() ? "" : " ").append(what).append("\n");
      }
    }
  }

  std::string results(const Instruction& instruction) {
    std::string text;
    for (const Value value : instruction.results) text += (text.empty() ? "" : ", ") + define(value);
    return text.empty() ? text : text + " = ";
  }

  std::string head(const Instruction& instruction) {
    std::string text = concat("loop i", instruction.counter, " = ", this->text(instruction.first), " to ",
                              this->text(instruction.last));
    if (!instruction.step.is(1)) text += " step " + this->text(instruction.step);
    std::string arguments;
    for (size_t i = 0; i < instruction.operands.size(); ++i) {
      const std::string start = name(instruction.operands[i]);
      arguments +=
          (arguments.empty() ? " (" : ", ") + define(instruction.body[0].arguments[i]) + " = " + start;
    }
    return text + (arguments.empty() ? "" : arguments + ")");
  }

  const Kernel& kernel_;
  std::string out_;
  std::map<Value, std::string> names_;
  std::set<std::string> taken_;
  int next_ = 0;
};

}  // namespace

std::string print(const Kernel& kernel) { return Printer(kernel).kernel(); }
std::string text_of(const Kernel& kernel, const Index& index) { return Printer(kernel).text(index); }
std::string text_of(const Kernel& kernel, const Type& type) { return Printer(kernel).text(type); }

}  // namespace anynpu::tile
