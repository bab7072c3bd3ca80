#include "jit/code.h"

#include <type_traits>

#include "base/error.h"

namespace anynpu::jit {
namespace {

using tile::Index;
using Kind = Index::Kind;

class Writer {
 public:
  template <class T>
    requires std::is_trivially_copyable_v<T>
  void write(T value) {
    out.append(reinterpret_cast<const char*>(&value), sizeof(T));
  }
  void write(std::string_view text) {
    write(static_cast<uint64_t>(text.size()));
    out.append(text);
  }
  void write(const Index& index) {
    write(index.kind());
    if (index.kind() < Kind::kAdd) return write(index.value());
    write(index.left());
    write(index.right());
  }

  std::string out;
};

class Reader {
 public:
  explicit Reader(std::string_view left) : left_(left) {}

  template <class T>
  T read() {
    T value{};
    take(sizeof(T)).copy(reinterpret_cast<char*>(&value), sizeof(T));
    return value;
  }
  std::string_view text() { return take(read<uint64_t>()); }
  Index index() {
    const auto kind = read<Kind>();
    require(kind <= Kind::kMax, ErrorCode::kInternal, "jit: an index is of no kind");
    if (kind < Kind::kAdd) return leaf(kind, read<int64_t>());
    const Index left = index(), right = index();
    switch (kind) {
      case Kind::kAdd:
        return left + right;
      case Kind::kSub:
        return left - right;
      case Kind::kMul:
        return left * right;
      case Kind::kDiv:
        return left / right;
      case Kind::kMod:
        return left % right;
      case Kind::kMin:
        return min(left, right);
      default:
        return max(left, right);
    }
  }
  bool done() const { return left_.empty(); }

 private:
  std::string_view take(uint64_t count) {
    require(count <= left_.size(), ErrorCode::kInternal, "jit: code ends early");
    const std::string_view taken = left_.substr(0, count);
    left_.remove_prefix(count);
    return taken;
  }
  static Index leaf(Kind kind, int64_t value) {
    switch (kind) {
      case Kind::kSize:
        return Index::size(static_cast<int>(value));
      case Kind::kBlock:
        return Index::block();
      case Kind::kCounter:
        return Index::counter(static_cast<int>(value));
      case Kind::kScalar:
        return Index::scalar(static_cast<int>(value));
      default:
        return value;
    }
  }

  std::string_view left_;
};

}  // namespace

std::string to_bytes(const Code& code) {
  Writer writer;
  writer.write(std::string_view(code.bytes));
  writer.write(code.entry);
  writer.write(static_cast<uint64_t>(code.functions.size()));
  for (const std::string& name : code.functions) writer.write(std::string_view(name));
  writer.write(static_cast<uint64_t>(code.scratch.size()));
  for (const Scratch& region : code.scratch) {
    writer.write(region.rows);
    writer.write(region.cols);
    writer.write(region.dtype);
  }
  return writer.out;
}

Code code_of(std::string_view bytes) {
  Reader reader(bytes);
  Code code;
  code.bytes = reader.text();
  code.entry = reader.read<uint64_t>();
  for (auto left = reader.read<uint64_t>(); left != 0; --left) code.functions.emplace_back(reader.text());
  for (auto left = reader.read<uint64_t>(); left != 0; --left) {
    const Index rows = reader.index(), cols = reader.index();
    const auto dtype = reader.read<tile::DType>();
    require(static_cast<int>(dtype) < tile::kDTypes, ErrorCode::kInternal, "jit: scratch memory has no type");
    code.scratch.push_back({rows, cols, dtype});
  }
  require(reader.done() && code.entry < code.bytes.size() && code.functions.size() * 8 <= code.bytes.size(),
          ErrorCode::kInternal, "jit: this is no code");
  return code;
}

}  // namespace anynpu::jit
