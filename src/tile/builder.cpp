#include "tile/builder.h"

#include <utility>

#include "base/error.h"
#include "tile/verify.h"

namespace anynpu::tile {

Index Builder::size(const std::string& name) {
  kernel_.sizes.push_back(name);
  return Index::size(static_cast<int>(kernel_.sizes.size()) - 1);
}

int Builder::buffer(const std::string& name, DType dtype, std::vector<Index> sizes) {
  std::vector<std::optional<int64_t>> strides(sizes.size());
  if (!strides.empty()) strides.back() = 1;
  return buffer(name, dtype, std::move(sizes), std::move(strides));
}

int Builder::buffer(const std::string& name, DType dtype, std::vector<Index> sizes,
                    std::vector<std::optional<int64_t>> strides) {
  require(kernel_.locals.empty(), ErrorCode::kInternal, "kernel @", kernel_.name, ": %", name,
          " comes after a local buffer");
  kernel_.buffers.push_back({name, dtype, std::move(sizes), std::move(strides)});
  return static_cast<int>(kernel_.buffers.size()) - 1;
}

int Builder::local(const std::string& name, DType dtype, std::vector<Index> sizes) {
  kernel_.locals.push_back(local_buffer(name, dtype, std::move(sizes)));
  return static_cast<int>(kernel_.buffers.size() + kernel_.locals.size()) - 1;
}

Expr Builder::scalar(const std::string& name, DType dtype) {
  const Value value = kernel_.add_value({dtype}, name);
  kernel_.scalars.push_back(value);
  return {this, value};
}

Expr Builder::constant(DType dtype, double literal) {
  if (!kBits.contains(dtype)) return {this, kernel_.constant(dtype, literal)};
  const auto integer = static_cast<int64_t>(literal);
  require(static_cast<double>(integer) == literal, ErrorCode::kInvalidArgument, "tile constant: ", literal,
          " is no ", name_of(dtype));
  return {this, kernel_.constant(dtype, integer)};
}

Expr Builder::constant(DType dtype, int64_t literal) { return {this, kernel_.constant(dtype, literal)}; }

std::vector<Expr> Builder::append(Instruction instruction) {
  std::vector<Expr> results;
  for (Type& type : infer_types(kernel_, instruction)) {
    instruction.results.push_back(kernel_.add_value(std::move(type)));
    results.emplace_back(this, instruction.results.back());
  }
  body_->instructions.push_back(std::move(instruction));
  return results;
}

Expr Builder::iota(Axis axis, const Index& count, DType dtype) {
  Type type = {dtype, 1, 1};
  (axis == Axis::kRows ? type.rows : type.cols) = count;
  return append({.opcode = Opcode::kIota, .type = std::move(type), .axis = axis})[0];
}

Expr Builder::index(const Index& index, DType dtype) {
  return append({.opcode = Opcode::kIndex, .type = {dtype}, .index = index})[0];
}

Expr Builder::load(int buffer, std::vector<Place> places, const Index& rows, const Index& cols) {
  const DType dtype = kernel_.buffer(buffer).dtype;
  return append({.opcode = Opcode::kLoad,
                 .type = {dtype, rows, cols},
                 .buffer = buffer,
                 .places = std::move(places)})[0];
}

Expr Builder::load_where(const Expr& mask, int buffer, std::vector<Place> places, const Index& rows,
                         const Index& cols, std::optional<Expr> otherwise) {
  Instruction instruction = {.opcode = Opcode::kLoad, .buffer = buffer, .places = std::move(places)};
  instruction.type = {kernel_.buffer(buffer).dtype, rows, cols};
  instruction.mask = mask.value();
  if (otherwise) instruction.otherwise = otherwise->value();
  return append(std::move(instruction))[0];
}

void Builder::store(int buffer, std::vector<Place> places, const Expr& value, std::optional<Expr> mask) {
  Instruction instruction = {
      .opcode = Opcode::kStore, .operands = {value.value()}, .buffer = buffer, .places = std::move(places)};
  if (mask) instruction.mask = mask->value();
  append(std::move(instruction));
}

void Builder::accumulate(int buffer, std::vector<Place> places, const Expr& value, std::optional<Expr> mask) {
  Instruction instruction = {.opcode = Opcode::kAccumulate,
                             .operands = {value.value()},
                             .buffer = buffer,
                             .places = std::move(places)};
  if (mask) instruction.mask = mask->value();
  append(std::move(instruction));
}

Expr Builder::cast(const Expr& value, DType dtype, bool saturate) {
  if (value.dtype() == dtype) return value;
  const Rounding rounding = saturate                ? Rounding::kSaturate
                            : kBits.contains(dtype) ? Rounding::kTowardZero
                                                    : Rounding::kNearestEven;
  return append(
      {.opcode = Opcode::kCast, .operands = {value.value()}, .type = {dtype}, .rounding = rounding})[0];
}

Expr Builder::bitcast(const Expr& value, DType dtype) {
  return append({.opcode = Opcode::kBitcast, .operands = {value.value()}, .type = {dtype}})[0];
}

Expr Builder::broadcast(const Expr& value, const Index& rows, const Index& cols) {
  return append(
      {.opcode = Opcode::kBroadcast, .operands = {value.value()}, .type = {value.dtype(), rows, cols}})[0];
}

std::vector<Expr> Builder::ops(Opcode opcode, std::initializer_list<Expr> operands) {
  Instruction instruction = {.opcode = opcode};
  for (const Expr& operand : operands) instruction.operands.push_back(operand.value());
  return append(std::move(instruction));
}

std::vector<Expr> Builder::loop(
    const Index& first, const Index& last, int64_t step, const std::vector<Expr>& start,
    const std::function<std::vector<Expr>(const Index&, const std::vector<Expr>&)>& body) {
  Instruction instruction = {
      .opcode = Opcode::kLoop, .counter = kernel_.counters++, .first = first, .last = last, .step = step};
  Body inner;
  std::vector<Expr> arguments;
  for (const Expr& value : start) {
    instruction.operands.push_back(value.value());
    inner.arguments.push_back(kernel_.add_value(value.type()));
    arguments.emplace_back(this, inner.arguments.back());
  }
  Body* outer = std::exchange(body_, &inner);
  Instruction yield = {.opcode = Opcode::kYield};
  for (const Expr& value : body(Index::counter(instruction.counter), arguments))
    yield.operands.push_back(value.value());
  append(std::move(yield));
  body_ = outer;
  instruction.body.push_back(std::move(inner));
  return append(std::move(instruction));
}

Kernel Builder::finish() {
  verify(kernel_);
  return std::move(kernel_);
}

}  // namespace anynpu::tile
