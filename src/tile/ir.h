#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tile/dtype.h"
#include "tile/index.h"
#include "tile/opcode.h"

namespace anynpu::tile {

/// A value's number in its kernel. Every value has one definition.
enum class Value : int32_t {};
constexpr size_t number_of(Value value) { return static_cast<size_t>(value); }

/// A matrix of elements. Extents are what is there at run time, not an upper limit: nothing lies beside a
/// tile. A scalar is a tile of 1 x 1.
struct Type {
  DType dtype = DType::kF32;
  Index rows = 1, cols = 1;
  bool operator==(const Type&) const = default;
  bool is_scalar() const { return rows.is(1) && cols.is(1); }
};

/// How a cast to a narrower type rounds, and what it does out of the range.
enum class Rounding : uint8_t {
  kNearestEven,  ///< to floats. To integers it is not accepted
  kTowardZero,   ///< to integers; out of the range and NaN as x86 and PyTorch have it: see lane.h
  kSaturate,     ///< to integers, toward zero; the nearest in range, and 0 for NaN
};

enum class Axis : uint8_t { kRows, kCols };

/// A constant: of integer types and bool an int64_t, of floats a double that the type has.
using Literal = std::variant<int64_t, double>;

/// A position in a dimension of a buffer: an index, or a tile of i32 or i64 with one for each element.
using Place = std::variant<Index, Value>;

struct Instruction;

/// Instructions in order. Of a loop: its arguments start as the loop's operands, and its last instruction,
/// yield, gives the next ones.
struct Body {
  std::vector<Value> arguments;
  std::vector<Instruction> instructions;
};

/// One operation. Which members count depends on the opcode; the others keep their defaults.
struct Instruction {
  Opcode opcode = Opcode::kYield;
  std::vector<Value> operands = {};
  std::vector<Value> results = {};

  Type type = {};                              // iota, index, load, cast, bitcast, broadcast: the result's
  Axis axis = Axis::kCols;                     // iota
  Index index = 0;                             // index
  Rounding rounding = Rounding::kNearestEven;  // cast
  int buffer = -1;                             // load, store, accumulate: or a local one; and where in it
  std::vector<Place> places = {};
  /// load, store, accumulate: elements where the mask is false are not touched; a load gives `otherwise`
  /// there, or zero.
  std::optional<Value> mask = {}, otherwise = {};
  int counter = -1;  // loop: from `first` below `last` in steps of `step`
  Index first = 0, last = 0, step = 1;
  std::vector<Body> body = {};  // loop: one
};

/// A tensor in memory. The last dimension is the columns, the one before it the rows. Strides count elements;
/// one without a value comes with the call.
struct Buffer {
  std::string name;
  DType dtype;
  std::vector<Index> sizes;  ///< constants and sizes of the kernel
  std::vector<std::optional<int64_t>> strides;
};

/// Memory of a block's own, contiguous, of constants and sizes: it holds nothing when the block starts. Its
/// strides are those that follow from constant sizes.
Buffer local_buffer(std::string name, DType dtype, std::vector<Index> sizes);

/// A program that runs once for each block of its grid, blocks in any order and at the same time: no block
/// reads what another one writes. Buffers that a kernel writes do not overlap others, except where one tensor
/// is given twice: then each element is written by the block that reads it, after its last read.
struct Kernel {
  std::string name;
  std::vector<std::string> sizes;  ///< names of what comes with the call
  std::vector<Buffer> buffers;
  std::vector<Value> scalars;  ///< parameters: 1 x 1
  std::vector<Buffer> locals;  ///< numbered after the buffers
  Index grid = 1;              ///< of constants and sizes
  Body body;                   ///< without arguments
  int counters = 0;            ///< of loops, numbered from 0

  struct Info {
    Type type;
    std::string name = "";                ///< empty: the text form numbers it
    std::optional<Literal> literal = {};  ///< a constant, which no instruction defines; 1 x 1
  };
  std::vector<Info> values;

  const Type& type(Value value) const { return values[number_of(value)].type; }
  bool has_buffer(int number) const;
  bool is_local(int number) const { return static_cast<size_t>(number) >= buffers.size(); }
  const Buffer& buffer(int number) const;
  Value add_value(Type type, std::string name = "");
  /// The constant nearest to `literal`; equal ones are one value. Raises kInvalidArgument when an integer is
  /// out of the type's range.
  Value constant(DType dtype, Literal literal);
};

/// What is accepted and given, for each opcode.
struct OpcodeInfo {
  Opcode opcode;
  std::string_view name;
  enum class Shape : uint8_t {
    kSpecial,      ///< a rule of its own
    kElementwise,  ///< extents of 1 are broadcast; all operands have one type of elements
    kCompare,      ///< the same, and the result is bool
    kReduceCols,   ///< to one column
    kReduceRows,   ///< to one row
    kScanCols,     ///< the operand's
  } shape;
  int operands;
  DTypes dtypes{};
  std::optional<DType> result{};  ///< in place of the operands'
};
const OpcodeInfo& info(Opcode opcode);
std::optional<Opcode> opcode_named(std::string_view name);

/// The types of an instruction's results, from its operands and attributes. Raises kInvalidArgument, naming
/// the operation, the operand, its type and what is accepted.
std::vector<Type> infer_types(const Kernel& kernel, const Instruction& instruction);

std::string text_of(const Kernel& kernel, const Index& index);
std::string text_of(const Kernel& kernel, const Type& type);

}  // namespace anynpu::tile
