#include "fuzz/unfused.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "guarded_memory.h"
#include "tile/bounds.h"
#include "tile/verify.h"

namespace anynpu::tile {
namespace {

/// An index with other leaves.
Index replaced(const Index& index, const std::function<Index(const Index&)>& leaf) {
  const auto left = [&] { return replaced(index.left(), leaf); };
  const auto right = [&] { return replaced(index.right(), leaf); };
  switch (index.kind()) {
    case Index::Kind::kAdd:
      return left() + right();
    case Index::Kind::kSub:
      return left() - right();
    case Index::Kind::kMul:
      return left() * right();
    case Index::Kind::kDiv:
      return left() / right();
    case Index::Kind::kMod:
      return left() % right();
    case Index::Kind::kMin:
      return min(left(), right());
    case Index::Kind::kMax:
      return max(left(), right());
    default:
      return leaf(index);
  }
}

/// A value of the whole kernel in memory: for each block as many rows and columns as it has in any.
struct Stored {
  GuardedMemory memory;
  int64_t rows = 0, cols = 0;
};

/// The kernel of one instruction, and what to call it with. Its sizes are those of the whole kernel, then the
/// counters of its loops, then the extents of values in memory.
class Step {
 public:
  Step(const Kernel& whole, const Arguments& arguments, const std::vector<int64_t>& counters,
       std::vector<Stored>& values, const std::vector<BufferArgument>& locals, int64_t blocks)
      : whole_(whole), given_(arguments), values_(values), locals_(locals) {
    step_.name = "step";
    step_.sizes = whole.sizes;
    arguments_.sizes = arguments.sizes;
    for (size_t i = 0; i < counters.size(); ++i) add_size("counter", counters[i]);
    step_.grid = whole.grid;
    blocks_ = add_size("blocks", blocks);
  }

  /// The value of the whole kernel, here.
  Value use(Value value) {
    if (const auto found = used_.find(value); found != used_.end()) return found->second;
    const auto& [type, name, literal] = whole_.values[number_of(value)];
    const auto parameter = std::ranges::find(whole_.scalars, value);
    Value here;
    if (literal) {
      here = step_.constant(type.dtype, *literal);
    } else if (parameter != whole_.scalars.end()) {
      here = step_.add_value(type);
      step_.scalars.push_back(here);
      arguments_.scalars.push_back(given_.scalars[static_cast<size_t>(parameter - whole_.scalars.begin())]);
    } else {
      const int buffer = add_memory(value);
      here = append({.opcode = Opcode::kLoad, .type = here_of(type), .buffer = buffer, .places = kPlaces})[0];
    }
    return used_.emplace(value, here).first->second;
  }

  /// An instruction of the whole kernel; stores its results.
  void perform(const Instruction& instruction) {
    Instruction copy = instruction;
    copy.results.clear();
    for (Value& operand : copy.operands) operand = use(operand);
    for (Place& place : copy.places) {
      if (auto* value = std::get_if<Value>(&place))
        *value = use(*value);
      else
        place = here_of(std::get<Index>(place));
    }
    for (std::optional<Value>* value : {&copy.mask, &copy.otherwise})
      if (*value) *value = use(**value);
    copy.type = here_of(copy.type);
    copy.index = here_of(copy.index);
    if (copy.buffer >= 0) {
      const auto number = static_cast<size_t>(copy.buffer);
      Buffer buffer = whole_.buffer(copy.buffer);
      if (whole_.is_local(copy.buffer)) {
        copy.places.insert(copy.places.begin(), Index::block());
        buffer.sizes.insert(buffer.sizes.begin(), *blocks_);
        buffer.strides.insert(buffer.strides.begin(), std::nullopt);
        copy.buffer = add_buffer(std::move(buffer), locals_[number - whole_.buffers.size()]);
      } else {
        copy.buffer = add_buffer(std::move(buffer), given_.buffers[number]);
      }
    }
    const auto results = append(std::move(copy));
    for (size_t i = 0; i < results.size(); ++i) store(instruction.results[i], results[i]);
  }

  /// Stores a value of the step as one of the whole kernel.
  void store(Value value, Value here) {
    const int buffer = add_memory(value);
    append({.opcode = Opcode::kStore, .operands = {here}, .buffer = buffer, .places = kPlaces});
  }

  void run(const CompileStep& compile) {
    verify(step_);
    compile(step_)->run(arguments_);
  }

 private:
  inline static const std::vector<Place> kPlaces = {Index::block(), Index(0), Index(0)};

  Index add_size(const std::string& name, int64_t size) {
    step_.sizes.push_back(name + std::to_string(step_.sizes.size()));
    arguments_.sizes.push_back(size);
    return Index::size(static_cast<int>(step_.sizes.size()) - 1);
  }
  int add_buffer(Buffer buffer, BufferArgument argument) {
    buffer.name = "b" + std::to_string(step_.buffers.size());
    step_.buffers.push_back(std::move(buffer));
    arguments_.buffers.push_back(std::move(argument));
    return static_cast<int>(step_.buffers.size()) - 1;
  }
  int add_memory(Value value) {
    Stored& stored = values_[number_of(value)];
    const Index rows = add_size("rows", stored.rows), cols = add_size("cols", stored.cols);
    return add_buffer({"", whole_.type(value).dtype, {*blocks_, rows, cols}, {std::nullopt, std::nullopt, 1}},
                      {stored.memory.data(), {stored.rows * stored.cols, stored.cols, 1}});
  }
  std::vector<Value> append(Instruction instruction) {
    for (const Type& type : infer_types(step_, instruction))
      instruction.results.push_back(step_.add_value(type));
    step_.body.instructions.push_back(std::move(instruction));
    return step_.body.instructions.back().results;
  }

  Index here_of(const Index& index) {
    return replaced(index, [&](const Index& leaf) {
      if (leaf.kind() == Index::Kind::kCounter)
        return Index::size(static_cast<int>(whole_.sizes.size()) + static_cast<int>(leaf.value()));
      if (leaf.kind() == Index::Kind::kScalar)
        return Index::scalar(static_cast<int>(use(static_cast<Value>(leaf.value()))));
      return leaf;
    });
  }
  Type here_of(const Type& type) { return {type.dtype, here_of(type.rows), here_of(type.cols)}; }

  const Kernel& whole_;
  const Arguments& given_;
  std::vector<Stored>& values_;
  const std::vector<BufferArgument>& locals_;  ///< a tensor of all blocks' for each
  Kernel step_;
  Arguments arguments_;
  std::optional<Index> blocks_;
  std::map<Value, Value> used_;
};

class Unfused {
  static constexpr int64_t kMost = int64_t{1} << 30;  // elements: of a fuzzer's values, none has as many

 public:
  Unfused(const Kernel& kernel, const Arguments& arguments, const CompileStep& compile)
      : kernel_(kernel),
        arguments_(arguments),
        compile_(compile),
        blocks_(blocks_of(kernel, arguments.sizes)),
        counters_(static_cast<size_t>(kernel.counters)),
        values_(kernel.values.size()) {
    Bounds bounds(kernel);
    std::vector<std::pair<size_t, size_t>> extents;
    for (const auto& value : kernel.values)
      extents.emplace_back(bounds.add(value.type.rows), bounds.add(value.type.cols));
    std::vector<Interval> intervals(bounds.count());
    bounds.evaluate(arguments.sizes, intervals);
    for (size_t i = 0; i < values_.size(); ++i) {
      values_[i].rows = std::max<int64_t>(intervals[extents[i].first].greatest, 0);
      values_[i].cols = std::max<int64_t>(intervals[extents[i].second].greatest, 0);
    }
    for (const Buffer& local : kernel.locals) add_local(local);
  }

  void run(const Body& body) {
    for (const Instruction& instruction : body.instructions) {
      if (instruction.opcode == Opcode::kLoop) {
        run_loop(instruction);
      } else if (instruction.opcode != Opcode::kYield) {
        for (const Value result : instruction.results) allocate(result);
        Step step = new_step();
        step.perform(instruction);
        step.run(compile_);
      }
    }
  }

 private:
  Step new_step() { return {kernel_, arguments_, counters_, values_, locals_, blocks_}; }

  void add_local(const Buffer& local) {
    BufferArgument argument = {nullptr, std::vector<int64_t>(local.sizes.size() + 1)};
    int64_t elements = 1;
    for (size_t d = local.sizes.size(); d > 0; --d) {
      argument.strides[d] = elements;
      elements *= std::max<int64_t>(known(local.sizes[d - 1]), 0);
    }
    argument.strides[0] = elements;
    require(elements * blocks_ < kMost, ErrorCode::kOutOfMemory, "unfused: a local buffer is too large");
    local_memory_.emplace_back(static_cast<size_t>(elements * blocks_) * size_of(local.dtype),
                               GuardedMemory::Edge::kEnd);
    argument.data = local_memory_.back().data();
    locals_.push_back(std::move(argument));
  }

  void allocate(Value value) {
    Stored& stored = values_[number_of(value)];
    require(stored.rows < kMost && stored.cols < kMost && stored.rows * stored.cols * blocks_ < kMost,
            ErrorCode::kOutOfMemory, "unfused: a value is too large");
    const int64_t elements = stored.rows * stored.cols * blocks_;
    using Edge = GuardedMemory::Edge;
    stored.memory =
        GuardedMemory(static_cast<size_t>(elements) * size_of(kernel_.type(value).dtype), Edge::kEnd);
  }

  int64_t known(const Index& index) const {
    return index.evaluate([&](const Index& leaf) {
      if (leaf.kind() == Index::Kind::kCounter) return counters_[static_cast<size_t>(leaf.value())];
      require(leaf.kind() == Index::Kind::kSize, ErrorCode::kInternal,
              "unfused: the turns of a loop follow from data or the block");
      return arguments_.sizes[static_cast<size_t>(leaf.value())];
    });
  }

  /// What a loop carries: copies, made before any of them changes.
  void carry(const std::vector<Value>& from, const std::vector<Value>& to) {
    std::vector<GuardedMemory> old;
    for (const Value value : to) old.push_back(std::move(values_[number_of(value)].memory));
    std::vector<GuardedMemory> made;
    for (size_t i = 0; i < from.size(); ++i) {
      const auto argument = std::ranges::find(to, from[i]);
      allocate(to[i]);
      if (argument != to.end()) {
        const GuardedMemory& source = old[static_cast<size_t>(argument - to.begin())];
        made.push_back(source);
        continue;
      }
      Step step = new_step();
      step.store(to[i], step.use(from[i]));
      step.run(compile_);
      made.push_back(std::move(values_[number_of(to[i])].memory));
    }
    for (size_t i = 0; i < to.size(); ++i) values_[number_of(to[i])].memory = std::move(made[i]);
  }

  void run_loop(const Instruction& loop) {
    const Body& body = loop.body[0];
    carry(loop.operands, body.arguments);
    const int64_t last = known(loop.last), step = *loop.step.constant();
    auto& counter = counters_[static_cast<size_t>(loop.counter)];
    for (counter = known(loop.first); counter < last; counter += step) {
      run(body);
      carry(body.instructions.back().operands, body.arguments);
    }
    counter = 0;
    carry(body.arguments, loop.results);
  }

  const Kernel& kernel_;
  const Arguments& arguments_;
  const CompileStep& compile_;
  const int64_t blocks_;
  std::vector<int64_t> counters_;
  std::vector<Stored> values_;  ///< by number
  std::vector<GuardedMemory> local_memory_;
  std::vector<BufferArgument> locals_;  ///< into it
};

}  // namespace

void run_unfused(const Kernel& kernel, const Arguments& arguments, const CompileStep& compile) {
  Unfused(kernel, arguments, compile).run(kernel.body);
}

}  // namespace anynpu::tile
