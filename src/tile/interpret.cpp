#include "tile/interpret.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <utility>

#include "base/error.h"
#include "tile/lane.h"
#include "tile/philox.h"
#include "tile/reduce.h"

namespace anynpu::tile {
namespace {

using Kind = Index::Kind;

constexpr int64_t kMostElements = int64_t{1} << 28;  // of a tile

/// The elements of a tile, row by row. An extent of 1 stretches.
struct Tile {
  DType dtype = DType::kF32;
  int64_t rows = 0, cols = 0;
  std::vector<std::byte> bytes;

  Tile() = default;
  Tile(DType dtype, int64_t rows, int64_t cols) : dtype(dtype), rows(rows), cols(cols) {
    bytes.resize(static_cast<size_t>(rows * cols) * size_of(dtype));
  }
  template <class T>
  T get(int64_t r, int64_t c) const {
    T value;
    std::memcpy(&value, bytes.data() + offset(r, c), sizeof(T));
    return value;
  }
  template <class T>
  void set(int64_t r, int64_t c, T value) {
    std::memcpy(bytes.data() + offset(r, c), &value, sizeof(T));
  }

 private:
  size_t offset(int64_t r, int64_t c) const {
    return static_cast<size_t>((rows == 1 ? 0 : r) * cols + (cols == 1 ? 0 : c)) * size_of(dtype);
  }
};

/// The state of one block.
class Interpreter {
 public:
  Interpreter(const Kernel& kernel, const Arguments& arguments, int64_t block)
      : kernel_(kernel),
        arguments_(arguments),
        block_(block),
        values_(kernel.values.size()),
        counters_(static_cast<size_t>(kernel.counters)) {
    for (size_t i = 0; i < kernel.values.size(); ++i)
      if (kernel.values[i].literal) set_literal(static_cast<Value>(i), *kernel.values[i].literal);
    for (size_t i = 0; i < kernel.scalars.size(); ++i) set_literal(kernel.scalars[i], arguments.scalars[i]);
    for (const Buffer& buffer : kernel.locals) add_local(buffer);
  }

  void run() { body(kernel_.body); }

 private:
  /// Every byte is set, so that what is read before it was written is seen: NaN, or a large number.
  void add_local(const Buffer& buffer) {
    BufferArgument made = {nullptr, std::vector<int64_t>(buffer.sizes.size())};
    int64_t elements = 1;
    for (size_t d = buffer.sizes.size(); d-- > 0;) {
      made.strides[d] = elements;
      const int64_t size = std::max<int64_t>(number(buffer.sizes[d]), 0);
      require(elements == 0 || size <= kMostElements / elements, ErrorCode::kInvalidArgument, "kernel @",
              kernel_.name, ": local %", buffer.name, " has more than ", kMostElements, " elements");
      elements *= size;
    }
    local_memory_.emplace_back(static_cast<size_t>(elements) * size_of(buffer.dtype), std::byte{0xff});
    made.data = local_memory_.back().data();
    locals_.push_back(std::move(made));
  }
  const BufferArgument& argument(int buffer) const {
    const auto at = static_cast<size_t>(buffer);
    return kernel_.is_local(buffer) ? locals_[at - kernel_.buffers.size()] : arguments_.buffers[at];
  }

  Tile& tile(Value value) { return values_[number_of(value)]; }

  void set_literal(Value value, const Literal& literal) {
    Tile& scalar = tile(value) = Tile(kernel_.type(value).dtype, 1, 1);
    visit(scalar.dtype, [&]<class T>(std::type_identity<T>) {
      std::visit([&](auto number) { scalar.set<T>(0, 0, convert<T>(number)); }, literal);
    });
  }

  int64_t number(const Index& index) {
    return index.evaluate([this](const Index& leaf) {
      const auto at = static_cast<size_t>(leaf.value());
      switch (leaf.kind()) {
        case Kind::kSize:
          return arguments_.sizes[at];
        case Kind::kCounter:
          return counters_[at];
        case Kind::kScalar:
          return integer(tile(static_cast<Value>(leaf.value())), 0, 0);
        default:
          return block_;
      }
    });
  }
  static int64_t integer(const Tile& tile, int64_t r, int64_t c) {
    return tile.dtype == DType::kI32 ? tile.get<int32_t>(r, c) : tile.get<int64_t>(r, c);
  }

  Tile make(const Type& type) {
    const int64_t rows = std::max<int64_t>(number(type.rows), 0),
                  cols = std::max<int64_t>(number(type.cols), 0);
    require(rows == 0 || cols <= kMostElements / rows, ErrorCode::kInvalidArgument, "kernel @", kernel_.name,
            ": a tile of ", rows, " x ", cols, " elements is more than ", kMostElements);
    return {type.dtype, rows, cols};
  }

  template <class Function>
  static void for_each(const Tile& tile, const Function& function) {
    for (int64_t r = 0; r < tile.rows; ++r)
      for (int64_t c = 0; c < tile.cols; ++c) function(r, c);
  }

  void body(const Body& body) {
    for (const Instruction& instruction : body.instructions) {
      if (instruction.opcode == Opcode::kYield) return;
      if (instruction.opcode == Opcode::kLoop)
        loop(instruction);
      else
        execute(instruction);
    }
  }

  void loop(const Instruction& instruction) {
    const Body& inner = instruction.body[0];
    std::vector<Tile> carried;
    carried.reserve(instruction.operands.size());
    for (const Value operand : instruction.operands) carried.push_back(tile(operand));
    const int64_t last = number(instruction.last), step = number(instruction.step);
    for (int64_t i = number(instruction.first); i < last; i += step) {
      counters_[static_cast<size_t>(instruction.counter)] = i;
      for (size_t k = 0; k < carried.size(); ++k) tile(inner.arguments[k]) = carried[k];
      body(inner);
      for (size_t k = 0; k < carried.size(); ++k) carried[k] = tile(inner.instructions.back().operands[k]);
      if (i > last - step) break;  // the next one may not fit 64 bits
    }
    for (size_t k = 0; k < carried.size(); ++k) tile(instruction.results[k]) = carried[k];
  }

  void execute(const Instruction& instruction) {
    std::vector<Tile> results;
    results.reserve(instruction.results.size());
    for (const Value value : instruction.results) results.push_back(make(kernel_.type(value)));
    std::vector<const Tile*> operands;
    operands.reserve(instruction.operands.size());
    for (const Value value : instruction.operands) operands.push_back(&tile(value));
    switch (info(instruction.opcode).shape) {
      case OpcodeInfo::Shape::kElementwise:
        elementwise(instruction.opcode, operands, results[0]);
        break;
      case OpcodeInfo::Shape::kCompare:
        compare(instruction.opcode, *operands[0], *operands[1], results[0]);
        break;
      case OpcodeInfo::Shape::kReduceCols:
      case OpcodeInfo::Shape::kReduceRows:
        reduction(instruction.opcode, *operands[0], results);
        break;
      case OpcodeInfo::Shape::kScanCols:
        scan(instruction.opcode, *operands[0], results[0]);
        break;
      case OpcodeInfo::Shape::kSpecial:
        special(instruction, operands, results);
        break;
    }
    for (size_t i = 0; i < results.size(); ++i) tile(instruction.results[i]) = std::move(results[i]);
  }

  void special(const Instruction& instruction, const std::vector<const Tile*>& operands,
               std::vector<Tile>& results) {
    switch (instruction.opcode) {
      case Opcode::kIota:
        return iota(instruction.axis, results[0]);
      case Opcode::kIndex:
        return fill_integer(results[0], 0, 0, number(instruction.index));
      case Opcode::kLoad:
        return load(instruction, results[0]);
      case Opcode::kStore:
      case Opcode::kAccumulate:
        return store(instruction, *operands[0]);
      case Opcode::kCast:
        return cast(instruction.rounding, *operands[0], results[0]);
      case Opcode::kBitcast:
        results[0].bytes = operands[0]->bytes;
        return;
      case Opcode::kSelect:
        return select(operands, results[0]);
      case Opcode::kBroadcast:
        return broadcast(*operands[0], results[0]);
      case Opcode::kTranspose:
        return transpose(*operands[0], results[0]);
      case Opcode::kMatmul:
        return matmul(operands, results[0]);
      case Opcode::kMatmulPairs:
        return matmul_pairs(operands, results[0]);
      case Opcode::kPhilox:
        return philox(operands, results);
      default:
        raise(ErrorCode::kInternal, "tile interpreter: ", info(instruction.opcode).name);
    }
  }

  static void fill_integer(Tile& tile, int64_t r, int64_t c, int64_t value) {
    visit(tile.dtype, [&]<class T>(std::type_identity<T>) { tile.set<T>(r, c, convert<T>(value)); });
  }

  static void iota(Axis axis, Tile& result) {
    for_each(result, [&](int64_t r, int64_t c) { fill_integer(result, r, c, axis == Axis::kRows ? r : c); });
  }

  // Memory.

  /// Where element (r, c) lies, or null where a mask excludes it.
  template <class Visitor>
  void for_each_address(const Instruction& instruction, const Tile& shape, const Visitor& visitor) {
    const Buffer& buffer = kernel_.buffer(instruction.buffer);
    const BufferArgument& argument = this->argument(instruction.buffer);
    const int rank = static_cast<int>(buffer.sizes.size());
    const Tile* mask = instruction.mask ? &tile(*instruction.mask) : nullptr;
    std::vector<int64_t> sizes, starts;
    for (int d = 0; d < rank; ++d) {
      sizes.push_back(number(buffer.sizes[static_cast<size_t>(d)]));
      const auto* index = std::get_if<Index>(&instruction.places[static_cast<size_t>(d)]);
      starts.push_back(index != nullptr ? number(*index) : 0);
    }
    for_each(shape, [&](int64_t r, int64_t c) {
      if (mask != nullptr && !mask->get<bool>(r, c)) return visitor(r, c, nullptr);
      int64_t offset = 0;
      for (int d = 0; d < rank; ++d) {
        const auto at = static_cast<size_t>(d);
        const auto* value = std::get_if<Value>(&instruction.places[at]);
        const int64_t along = d == rank - 1 ? c : d == rank - 2 ? r : 0;
        const int64_t position =
            value != nullptr ? integer(tile(*value), r, c) : lane::add(starts[at], along);
        if (position < 0 || position >= sizes[at])
          raise_fault(kernel_, arguments_, {instruction.buffer, d, position});
        offset += position * argument.strides[at];
      }
      visitor(r, c,
              static_cast<std::byte*>(argument.data) + offset * static_cast<int64_t>(size_of(buffer.dtype)));
    });
  }

  void load(const Instruction& instruction, Tile& result) {
    const Tile* otherwise = instruction.otherwise ? &tile(*instruction.otherwise) : nullptr;
    visit(result.dtype, [&]<class T>(std::type_identity<T>) {
      for_each_address(instruction, result, [&](int64_t r, int64_t c, const std::byte* address) {
        T value = {};
        if (address != nullptr)
          std::memcpy(&value, address, sizeof(T));
        else if (otherwise != nullptr)
          value = otherwise->get<T>(r, c);
        result.set(r, c, value);
      });
    });
  }

  void store(const Instruction& instruction, const Tile& value) {
    visit(value.dtype, [&]<class T>(std::type_identity<T>) {
      for_each_address(instruction, value, [&](int64_t r, int64_t c, std::byte* address) {
        if (address == nullptr) return;
        T stored = value.get<T>(r, c);
        if constexpr (lane::Integer<T> || lane::Float<T>)
          if (instruction.opcode == Opcode::kAccumulate) {
            T there;
            std::memcpy(&there, address, sizeof(T));
            stored = lane::add(there, stored);
          }
        std::memcpy(address, &stored, sizeof(T));
      });
    });
  }

  // Element by element.

  static void elementwise(Opcode opcode, const std::vector<const Tile*>& operands, Tile& result) {
    visit(result.dtype, [&]<class T>(std::type_identity<T>) {
      if constexpr (!std::is_same_v<T, Half> && !std::is_same_v<T, BFloat16>)
        for_each(result, [&](int64_t r, int64_t c) {
          const auto operand = [&](size_t i) { return operands[i]->get<T>(r, c); };
          T value = {};
          if (operands.size() == 1)
            value = lane::unary(opcode, operand(0));
          else if (operands.size() == 2)
            value = lane::binary(opcode, operand(0), operand(1));
          else if constexpr (lane::Float<T>)
            value = lane::fma(operand(0), operand(1), operand(2));
          result.set(r, c, value);
        });
    });
  }

  static void compare(Opcode opcode, const Tile& a, const Tile& b, Tile& result) {
    visit(a.dtype, [&]<class T>(std::type_identity<T>) {
      if constexpr (!std::is_same_v<T, Half> && !std::is_same_v<T, BFloat16>)
        for_each(result, [&](int64_t r, int64_t c) {
          result.set(r, c, lane::compare(opcode, a.get<T>(r, c), b.get<T>(r, c)));
        });
    });
  }

  static void cast(Rounding rounding, const Tile& from, Tile& result) {
    visit(from.dtype, [&]<class From>(std::type_identity<From>) {
      visit(result.dtype, [&]<class To>(std::type_identity<To>) {
        for_each(result, [&](int64_t r, int64_t c) {
          const auto value = from.get<From>(r, c);
          if constexpr (lane::Integer<To> && lane::Float<decltype(widen(value))>)
            if (rounding == Rounding::kSaturate)
              return result.set(r, c, to_integer_saturated<To>(widen(value)));
          result.set(r, c, convert<To>(value));
        });
      });
    });
  }

  static void select(const std::vector<const Tile*>& operands, Tile& result) {
    visit(result.dtype, [&]<class T>(std::type_identity<T>) {
      for_each(result, [&](int64_t r, int64_t c) {
        result.set(r, c, operands[operands[0]->get<bool>(r, c) ? 1 : 2]->get<T>(r, c));
      });
    });
  }

  static void broadcast(const Tile& from, Tile& result) {
    visit(result.dtype, [&]<class T>(std::type_identity<T>) {
      for_each(result, [&](int64_t r, int64_t c) { result.set(r, c, from.get<T>(r, c)); });
    });
  }

  // Whole tiles.

  static void transpose(const Tile& from, Tile& result) {
    visit(result.dtype, [&]<class T>(std::type_identity<T>) {
      for_each(result, [&](int64_t r, int64_t c) { result.set(r, c, from.get<T>(c, r)); });
    });
  }

  static void reduction(Opcode opcode, const Tile& from, std::vector<Tile>& results) {
    const bool along_cols = info(opcode).shape == OpcodeInfo::Shape::kReduceCols;
    const int64_t count = along_cols ? from.cols : from.rows;
    visit(from.dtype, [&]<class T>(std::type_identity<T>) {
      if constexpr (!std::is_same_v<T, Half> && !std::is_same_v<T, BFloat16>)
        for_each(results[0], [&](int64_t r, int64_t c) {
          const auto element = [&](int64_t i) { return along_cols ? from.get<T>(r, i) : from.get<T>(i, c); };
          reduce_one<T>(opcode, count, element,
                        [&](auto value, size_t i = 0) { results[i].set(r, c, value); });
        });
    });
  }

  template <class T, class Element, class Give>
  static void reduce_one(Opcode opcode, int64_t count, const Element& element, const Give& give) {
    const auto position = [&](int64_t i) { return Position<T>{element(i), i}; };
    switch (opcode) {
      case Opcode::kRowMax:
      case Opcode::kColMax:
        return give(reduce<MaxReduction<T>>(count, element));
      case Opcode::kRowMin:
      case Opcode::kColMin:
        return give(reduce<MinReduction<T>>(count, element));
      case Opcode::kRowArgmax:
      case Opcode::kColArgmax:
        return give(reduce<ArgReduction<T, true>>(count, position).position);
      case Opcode::kRowArgmin:
      case Opcode::kColArgmin:
        return give(reduce<ArgReduction<T, false>>(count, position).position);
      default:
        break;
    }
    if constexpr (!std::is_same_v<T, bool>) {
      if (opcode == Opcode::kRowSum || opcode == Opcode::kColSum)
        return give(reduce<SumReduction<T>>(count, element));
      if (opcode == Opcode::kRowProd || opcode == Opcode::kColProd)
        return give(reduce<ProdReduction<T>>(count, element));
    }
    if constexpr (lane::Float<T>) {
      const auto moments = reduce<MomentsReduction<T>>(count, element);
      give(moments.mean, 0);
      give(moments.squares, 1);
    }
  }

  static void scan(Opcode opcode, const Tile& from, Tile& result) {
    visit(from.dtype, [&]<class T>(std::type_identity<T>) {
      if constexpr (lane::Integer<T> || lane::Float<T>)
        for (int64_t r = 0; r < from.rows; ++r) {
          T value = start_of_scan<T>(opcode);
          for (int64_t c = 0; c < from.cols; ++c) {
            const T next = from.get<T>(r, c);
            value = lane::binary(scanned(opcode), value, next);
            result.set(r, c, value);
          }
        }
    });
  }
  template <class T>
  static T start_of_scan(Opcode opcode) {
    switch (opcode) {
      case Opcode::kRowScanSum:
        return SumReduction<T>::identity();
      case Opcode::kRowScanProd:
        return ProdReduction<T>::identity();
      case Opcode::kRowScanMax:
        return MaxReduction<T>::identity();
      default:
        return MinReduction<T>::identity();
    }
  }
  static Opcode scanned(Opcode opcode) {
    switch (opcode) {
      case Opcode::kRowScanSum:
        return Opcode::kAdd;
      case Opcode::kRowScanProd:
        return Opcode::kMul;
      case Opcode::kRowScanMax:
        return Opcode::kMax;
      default:
        return Opcode::kMin;
    }
  }

  /// Over k in order, one fma (of integers: a product and a sum) at a time, starting at operand 2.
  static void matmul(const std::vector<const Tile*>& operands, Tile& result) {
    const auto &a = *operands[0], &b = *operands[1], &c = *operands[2];
    visit(result.dtype, [&]<class T>(std::type_identity<T>) {
      if constexpr (lane::Integer<T> || lane::Float<T>)
        for_each(result, [&](int64_t row, int64_t col) {
          T sum = c.get<T>(row, col);
          for (int64_t k = 0; k < a.cols; ++k) {
            const T x = a.get<T>(row, k), y = b.get<T>(k, col);
            if constexpr (lane::Float<T>)
              sum = lane::fma(x, y, sum);
            else
              sum = lane::add(sum, lane::mul(x, y));
          }
          result.set(row, col, sum);
        });
    });
  }

  static void matmul_pairs(const std::vector<const Tile*>& operands, Tile& result) {
    const auto &a = *operands[0], &b = *operands[1], &c = *operands[2];
    const auto multiply = [&]<class T>(std::type_identity<T>) {
      for_each(result, [&](int64_t row, int64_t col) {
        T sum = c.get<T>(row, col);
        for (int64_t k = 0; k < a.cols; ++k)
          sum = lane::add_products_of_pairs(a.get<int32_t>(row, k), b.get<int32_t>(k, col), sum);
        result.set(row, col, sum);
      });
    };
    if (result.dtype == DType::kF32)
      multiply(std::type_identity<float>());
    else
      multiply(std::type_identity<int32_t>());
  }

  static void philox(const std::vector<const Tile*>& operands, std::vector<Tile>& results) {
    const auto seed = static_cast<uint64_t>(operands[0]->get<int64_t>(0, 0));
    const auto offset = static_cast<uint64_t>(operands[1]->get<int64_t>(0, 0));
    for_each(results[0], [&](int64_t r, int64_t c) {
      const auto words = philox4x32(seed, offset, static_cast<uint64_t>(operands[2]->get<int64_t>(r, c)));
      for (size_t i = 0; i < words.size(); ++i) results[i].set(r, c, static_cast<int32_t>(words[i]));
    });
  }

  const Kernel& kernel_;
  const Arguments& arguments_;
  const int64_t block_;
  std::vector<Tile> values_;
  std::vector<int64_t> counters_;
  std::vector<std::vector<std::byte>> local_memory_;
  std::vector<BufferArgument> locals_;
};

}  // namespace

void check_arguments(const Kernel& kernel, const Arguments& arguments) {
  const auto check = [&](const auto& given, const auto& taken, std::string_view what) {
    require(given.size() == taken.size(), ErrorCode::kInvalidArgument, "kernel @", kernel.name, " takes ",
            taken.size(), " ", what, ", not ", given.size());
  };
  check(arguments.sizes, kernel.sizes, "sizes");
  check(arguments.buffers, kernel.buffers, "buffers");
  check(arguments.scalars, kernel.scalars, "scalars");
  for (size_t i = 0; i < kernel.sizes.size(); ++i)
    require(arguments.sizes[i] >= 0, ErrorCode::kInvalidArgument, "kernel @", kernel.name, ": size ?",
            kernel.sizes[i], " is ", arguments.sizes[i], "; 0 or more is accepted");
  for (size_t i = 0; i < kernel.buffers.size(); ++i) {
    const Buffer& buffer = kernel.buffers[i];
    const auto& strides = arguments.buffers[i].strides;
    require(strides.size() == buffer.strides.size(), ErrorCode::kInvalidArgument, "kernel @", kernel.name,
            ": %", buffer.name, " has ", buffer.strides.size(), " dimensions, not ", strides.size());
    for (size_t d = 0; d < strides.size(); ++d)
      require(!buffer.strides[d] || *buffer.strides[d] == strides[d], ErrorCode::kInvalidArgument, "kernel @",
              kernel.name, ": stride ", d, " of %", buffer.name, " is ", strides[d], "; ",
              buffer.strides[d].value_or(0), " is accepted");
  }
}

int64_t blocks_of(const Kernel& kernel, std::span<const int64_t> sizes) {
  return kernel.grid.evaluate([&](const Index& leaf) { return sizes[static_cast<size_t>(leaf.value())]; });
}

void raise_fault(const Kernel& kernel, const Arguments& arguments, const Fault& fault) {
  const Buffer& buffer = kernel.buffer(fault.buffer);
  const int64_t size = buffer.sizes[static_cast<size_t>(fault.dimension)].evaluate(
      [&](const Index& leaf) { return arguments.sizes[static_cast<size_t>(leaf.value())]; });
  raise(ErrorCode::kInvalidArgument, "kernel @", kernel.name, ": position ", fault.position, " in dimension ",
        fault.dimension, " of %", buffer.name, " is out of range; 0 to ", size - 1, " are accepted");
}

void interpret(const Kernel& kernel, const Arguments& arguments, int64_t first, int64_t last) {
  check_arguments(kernel, arguments);
  for (int64_t block = first; block < last; ++block) Interpreter(kernel, arguments, block).run();
}

void interpret(const Kernel& kernel, const Arguments& arguments) {
  check_arguments(kernel, arguments);
  interpret(kernel, arguments, 0, blocks_of(kernel, arguments.sizes));
}

}  // namespace anynpu::tile
