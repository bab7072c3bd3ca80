#include "jit/codegen/schedule.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "base/error.h"

namespace anynpu::jit {
namespace {

using tile::Body;
using tile::Kernel;
using tile::Opcode;
using tile::Type;
using Shape = tile::OpcodeInfo::Shape;

constexpr int kCheap = 8;  // up to this, computing again beats memory

/// About how many instructions an element takes.
int cost_of(Opcode opcode) {
  if (opcode >= Opcode::kExp && opcode <= Opcode::kNdtr) return 12;
  switch (opcode) {
    case Opcode::kPow:
    case Opcode::kAtan2:
    case Opcode::kRem:
    case Opcode::kPhilox:
      return 40;
    case Opcode::kDiv:
    case Opcode::kSqrt:
      return 5;
    default:
      return 1;
  }
}

Shape shape_of(const Instruction& instruction) { return tile::info(instruction.opcode).shape; }
bool is_write(const Instruction& i) { return i.opcode == Opcode::kStore || i.opcode == Opcode::kAccumulate; }
bool ends_phase(const Instruction& i) {
  return shape_of(i) == Shape::kReduceCols || shape_of(i) == Shape::kScanCols;
}
bool is_sink(const Instruction& i) {
  return is_write(i) || ends_phase(i) || shape_of(i) == Shape::kReduceRows;
}

/// Extents of what an instruction loops over.
const Type& domain(const Kernel& kernel, const Instruction& instruction) {
  return kernel.type(is_sink(instruction) ? instruction.operands[0] : instruction.results[0]);
}

class Scheduler {
 public:
  explicit Scheduler(const Kernel& kernel)
      : kernel_(kernel), facts_(kernel.values.size()), users_(facts_.size()), uses_(facts_.size()) {
    collect_uses(kernel.body);
    collect_in_place(kernel.body);
  }

  Schedule run() {
    Schedule schedule;
    schedule.steps = body(kernel_.body);
    close();
    decide_storage();
    for (const Facts& facts : facts_) schedule.storage.push_back(facts.storage);
    finish(schedule.steps);
    return schedule;
  }

 private:
  /// A column loop while it is being filled, in the order in which loops are made.
  struct Home {
    int nest, phase;
    Index cols;
    std::vector<const Instruction*> instructions;
    int cost = 0;  ///< of what is computed in it
  };
  struct Facts {
    Storage storage = Storage::kComputed;
    const Instruction* definition = nullptr;
    std::vector<Step>* scope = nullptr;  ///< the steps of the body that defines it
    int home = kNone;                    ///< the loop that it belongs to
    int cost = 0;                        ///< of computing it from memory and registers
  };
  static constexpr int kNone = -1;

  Facts& facts(Value value) { return facts_[number_of(value)]; }
  const Type& type(Value value) const { return kernel_.type(value); }

  void collect_uses(const Body& body) {
    for (const Instruction& instruction : body.instructions) {
      for (const Value value : needs(kernel_, instruction)) ++uses_[number_of(value)];
      if (is_write(instruction)) written_.insert(instruction.buffer);
      for (const Body& inner : instruction.body) collect_uses(inner);
    }
  }

  /// What products of matrices read in place although it was written before.
  void collect_in_place(const Body& body) {
    const auto& instructions = body.instructions;
    for (size_t i = 0; i < instructions.size(); ++i) {
      for (const Body& inner : instructions[i].body) collect_in_place(inner);
      if (is_store_of_one(instructions[i])) to_local_.insert(instructions[i].operands[0]);
      if (!tile::is_product(instructions[i].opcode)) continue;
      for (const Value operand : instructions[i].operands)
        collect_in_place(std::span(instructions).first(i), operand, operand == instructions[i].operands[0]);
    }
  }

  /// To a local buffer, of a value that nothing else uses.
  bool is_store_of_one(const Instruction& instruction) const {
    return instruction.opcode == Opcode::kStore && kernel_.is_local(instruction.buffer) &&
           uses_[number_of(instruction.operands[0])] == 1;
  }

  /// A load, and what converts it, that nothing else uses, and between which and the end of `before` its
  /// buffer is not written. Of a left matrix, whose elements are read one by one, it may be transposed.
  void collect_in_place(std::span<const Instruction> before, Value value, bool is_left) {
    std::vector<const Instruction*> chain;
    for (size_t i = before.size(); i-- > 0 && uses_[number_of(value)] == 1;) {
      const Instruction& instruction = before[i];
      if (std::ranges::find(instruction.results, value) == instruction.results.end()) continue;
      chain.push_back(&instruction);
      if (instruction.opcode == Opcode::kCast || (is_left && instruction.opcode == Opcode::kTranspose)) {
        value = instruction.operands[0];
        continue;
      }
      const auto after = before.subspan(i + 1);
      if (instruction.opcode == Opcode::kLoad && !instruction.mask && !writes(after, instruction.buffer))
        in_place_.insert(chain.begin(), chain.end());
      return;
    }
  }

  static bool writes(std::span<const Instruction> instructions, int buffer) {
    return std::ranges::any_of(instructions, [&](const Instruction& instruction) {
      return (is_write(instruction) && instruction.buffer == buffer) ||
             std::ranges::any_of(instruction.body,
                                 [&](const Body& inner) { return writes(inner.instructions, buffer); });
    });
  }

  // The walk: which loop each instruction belongs to.

  std::vector<Step> body(const Body& body) {
    std::vector<Step> steps;
    std::vector<Step>* const outer = std::exchange(steps_, &steps);
    for (const Instruction& instruction : body.instructions) place(instruction);
    close();
    steps_ = outer;
    return steps;
  }

  void place(const Instruction& instruction) {
    for (const Value result : instruction.results) {
      facts(result).definition = &instruction;
      facts(result).scope = steps_;
    }
    switch (instruction.opcode) {
      case Opcode::kLoop:
        return place_loop(instruction);
      case Opcode::kTranspose:
        return place_transpose(instruction);
      case Opcode::kMatmul:
      case Opcode::kMatmulPairs:
        return place_matmul(instruction);
      case Opcode::kYield:
        return place_apart(instruction, Step::Kind::kYield);
      default:
        break;
    }
    if (in_place_.contains(&instruction)) return;
    const bool sink = is_sink(instruction);
    if (!sink && type(instruction.results[0]).is_scalar()) return place_scalar(instruction);
    if (!sink && floats(instruction)) return;
    place_in_nest(instruction);
  }

  /// Computed before the open nest, which may use it.
  void place_scalar(const Instruction& instruction) {
    const auto operands = needs(kernel_, instruction);
    if (is_write_of_open_nest(instruction.buffer) ||
        std::ranges::any_of(operands, [&](Value value) { return in_open_nest(value); }))
      close();
    for (const Value value : operands) require_in_memory(value);
    for (const Value result : instruction.results) facts(result).storage = Storage::kRegister;
    const Step step = {.kind = Step::Kind::kScalar, .instruction = &instruction};
    steps_->insert(nest_ == kNone ? steps_->end() : std::prev(steps_->end()), step);
  }

  void place_apart(const Instruction& instruction, Step::Kind kind) {
    for (const Value operand : instruction.operands) require_in_memory(operand);
    place_apart_as_is(instruction, kind);
  }

  void place_matmul(const Instruction& instruction) {
    for (const Value operand : instruction.operands)
      if (!is_read_in_place(operand)) require_in_memory(operand);
    place_apart_as_is(instruction, Step::Kind::kMatmul);
  }

  /// In place where what follows writes memory that nothing else has.
  void place_transpose(const Instruction& instruction) {
    if (in_place_.contains(&instruction)) return;
    if (!to_local_.contains(instruction.results[0]) || !is_read_in_place(instruction.operands[0]))
      return place_apart(instruction, Step::Kind::kTranspose);
    place_apart_as_is(instruction, Step::Kind::kTranspose);
  }

  /// An element of a buffer, converted at most: a product of matrices, which takes elements more than once,
  /// reads it each time.
  bool is_read_in_place(Value value) {
    const Facts& facts = this->facts(value);
    if (facts.definition == nullptr) return true;  // a constant, or what a loop carries
    if (facts.home != kNone || facts.storage != Storage::kComputed) return false;
    switch (facts.definition->opcode) {
      case Opcode::kLoad:
        return true;
      case Opcode::kCast:
      case Opcode::kBroadcast:
      case Opcode::kTranspose:
        return is_read_in_place(facts.definition->operands[0]);
      default:
        return false;
    }
  }

  void place_apart_as_is(const Instruction& instruction, Step::Kind kind) {
    for (const Value operand : instruction.operands) apart_.insert(operand);
    close();
    for (const Value result : instruction.results) facts(result).storage = Storage::kTile;
    steps_->push_back({.kind = kind, .instruction = &instruction});
  }

  void place_loop(const Instruction& instruction) {
    for (const Value operand : instruction.operands) {
      require_in_memory(operand);
      apart_.insert(operand);
    }
    close();
    const auto set = [&](const std::vector<Value>& values) {
      for (const Value value : values)
        facts(value).storage = type(value).is_scalar() ? Storage::kRegister : Storage::kTile;
    };
    set(instruction.body[0].arguments);
    Step step = {.kind = Step::Kind::kLoop, .instruction = &instruction};
    step.body = body(instruction.body[0]);
    set(instruction.results);
    steps_->push_back(std::move(step));
  }

  /// A tile that is used apart from nests: there when its nest has ended.
  void require_in_memory(Value value) {
    Facts& facts = this->facts(value);
    if (facts.storage != Storage::kComputed || facts.definition == nullptr) return;
    if (facts.home == kNone) {
      if (facts.scope == steps_)
        place_in_nest(*facts.definition);
      else
        place_ahead(*facts.definition, *facts.scope);
    }
    for (const Value result : facts.definition->results) kept_.insert(result);
  }

  /// In the body that defines it, ahead of the loop that is being walked: whether that runs or not, what
  /// comes after it finds the value in memory.
  void place_ahead(const Instruction& instruction, std::vector<Step>& scope) {
    std::vector<Step>* const steps = std::exchange(steps_, &scope);
    const int nest = std::exchange(nest_, kNone);
    const Index rows = rows_;
    auto accesses = std::exchange(accesses_, {});
    place_in_nest(instruction);
    steps_ = steps;
    nest_ = nest;
    rows_ = rows;
    accesses_ = std::move(accesses);
  }

  /// Cheap, and from nothing that changes: computed wherever it is used, and in no loop of its own.
  bool floats(const Instruction& instruction) {
    if (instruction.opcode == Opcode::kLoad && written_.contains(instruction.buffer)) return false;
    int cost = cost_of(instruction.opcode);
    for (const Value value : needs(kernel_, instruction)) {
      if (in_open_nest(value)) return false;
      cost += facts(value).home == kNone ? facts(value).cost : 1;  // or read from memory
    }
    if (cost > kCheap) return false;
    for (const Value result : instruction.results) facts(result).cost = cost;
    return true;
  }

  void place_in_nest(const Instruction& instruction) {
    const Type& shape = domain(kernel_, instruction);
    if (nest_ != kNone && (!(shape.rows == rows_) || must_wait(instruction))) close();
    if (nest_ == kNone) open(shape.rows);
    int phase = 0;
    for (const Value value : needs(kernel_, instruction))
      if (const Facts& operand = facts(value); in_open_nest(value))
        phase = std::max(phase, homes_[static_cast<size_t>(operand.home)].phase +
                                    (ends_phase(*operand.definition) ? 1 : 0));
    if (is_write(instruction))  // what is read of its memory is read before
      for (const Instruction* other : accesses_)
        if (other->buffer == instruction.buffer)
          phase = std::max(phase, homes_[static_cast<size_t>(facts(other->results[0]).home)].phase);
    const int home = home_of(phase, shape.cols);
    homes_[static_cast<size_t>(home)].instructions.push_back(&instruction);
    for (const Value result : instruction.results) {
      facts(result).home = home;
      facts(result).cost = kCheap + 1;
    }
    if (instruction.buffer >= 0) accesses_.push_back(&instruction);
  }

  /// What the nest gives only when it has ended: sums over rows, scalars of indices, memory that it writes in
  /// another order than it is read.
  bool must_wait(const Instruction& instruction) {
    for (const Value value : needs(kernel_, instruction))
      if (in_open_nest(value) && shape_of(*facts(value).definition) == Shape::kReduceRows) return true;
    if (instruction.buffer < 0) return false;
    return std::ranges::any_of(accesses_, [&](const Instruction* other) {
      return other->buffer == instruction.buffer && (is_write(*other) || is_write(instruction)) &&
             !(other->places == instruction.places &&
               domain(kernel_, *other) == domain(kernel_, instruction) && is_write(instruction) &&
               other->opcode == Opcode::kLoad);
    });
  }
  bool is_write_of_open_nest(int buffer) const {
    return buffer >= 0 && std::ranges::any_of(accesses_, [&](const Instruction* other) {
             return other->buffer == buffer && is_write(*other);
           });
  }
  bool in_open_nest(Value value) {
    const int home = facts(value).home;
    return home != kNone && nest_ != kNone && homes_[static_cast<size_t>(home)].nest == nest_;
  }

  void open(const Index& rows) {
    nest_ = nests_++;
    rows_ = rows;
    steps_->push_back({.kind = Step::Kind::kNest, .nest = {rows, {}}});
    steps_->back().nest.loops.push_back({nest_, 1, {}});  // its number, until finish()
  }
  void close() {
    nest_ = kNone;
    accesses_.clear();
  }
  int home_of(int phase, const Index& cols) {
    for (size_t i = 0; i < homes_.size(); ++i)
      if (homes_[i].nest == nest_ && homes_[i].phase == phase && homes_[i].cols == cols)
        return static_cast<int>(i);
    homes_.push_back({nest_, phase, cols, {}});
    return static_cast<int>(homes_.size()) - 1;
  }

  // Storage.

  /// From the last instruction to the first: in which loops it is computed, and so whether it is kept.
  void decide_storage() {
    std::vector<const Instruction*> all;
    collect(kernel_.body, all);
    for (auto it = all.rbegin(); it != all.rend(); ++it) {
      const Instruction& instruction = **it;
      std::set<int> computed_in;
      for (const Value result : instruction.results) {
        decide(result, users_[number_of(result)]);
        const Facts& known = facts(result);
        if (known.storage == Storage::kComputed)
          computed_in.merge(std::set(users_[number_of(result)]));
        else if (known.home != kNone)
          computed_in.insert(known.home);
      }
      if (is_sink(instruction)) computed_in.insert(sink_home(instruction));
      if (is_read_before_write(instruction)) computed_in.insert(facts(instruction.results[0]).home);
      for (const int home : computed_in)
        if (home != kNone) homes_[static_cast<size_t>(home)].cost += cost_of(instruction.opcode);
      for (const Value value : needs(kernel_, instruction))
        users_[number_of(value)].insert(computed_in.begin(), computed_in.end());
    }
  }

  static void collect(const Body& body, std::vector<const Instruction*>& all) {
    for (const Instruction& instruction : body.instructions) {
      all.push_back(&instruction);
      for (const Body& inner : instruction.body) collect(inner, all);
    }
  }

  int sink_home(const Instruction& instruction) const {
    for (size_t i = 0; i < homes_.size(); ++i)
      if (std::ranges::find(homes_[i].instructions, &instruction) != homes_[i].instructions.end())
        return static_cast<int>(i);
    return kNone;
  }

  void decide(Value value, const std::set<int>& users) {
    Facts& facts = this->facts(value);
    if (facts.home == kNone || facts.storage != Storage::kComputed) return;
    const Home& home = homes_[static_cast<size_t>(facts.home)];
    const bool sink = is_sink(*facts.definition);
    bool elsewhere = kept_.contains(value), in_other_loop = false;
    for (const int user : users) {
      if (user == kNone || homes_[static_cast<size_t>(user)].nest != home.nest)
        elsewhere = true;
      else
        in_other_loop |= user != facts.home;
    }
    const Type& type = this->type(value);
    const bool over_rows = shape_of(*facts.definition) == Shape::kReduceRows;
    if (over_rows || (elsewhere && !type.is_scalar()))
      facts.storage = Storage::kTile;
    else if (type.is_scalar() || (type.cols.is(1) && sink))
      facts.storage = Storage::kRegister;
    else if (shape_of(*facts.definition) == Shape::kScanCols || (in_other_loop && !type.cols.is(1)))
      facts.storage = Storage::kRow;
  }

  /// A read of memory that its loop also writes.
  bool is_read_before_write(const Instruction& instruction) {
    if (instruction.opcode != Opcode::kLoad || facts(instruction.results[0]).home == kNone) return false;
    const Home& home = homes_[static_cast<size_t>(facts(instruction.results[0]).home)];
    return std::ranges::any_of(home.instructions, [&](const Instruction* other) {
      return is_write(*other) && other->buffer == instruction.buffer;
    });
  }

  /// Whether it has a place of its own in its loop, rather than where it is used first.
  bool is_part(const Instruction& instruction) {
    return is_sink(instruction) || is_read_before_write(instruction) ||
           std::ranges::any_of(instruction.results,
                               [&](Value result) { return facts(result).storage != Storage::kComputed; });
  }

  /// Puts the loops into their nests, by phase, with what they write.
  void finish(std::vector<Step>& steps) {
    for (Step& step : steps) {
      finish(step.body);
      if (step.kind != Step::Kind::kNest) continue;
      const int number = step.nest.loops[0].phase;
      step.nest.loops.clear();
      for (const Home& home : homes_) {
        if (home.nest != number) continue;
        ColumnLoop loop = {home.phase, home.cols, {}, home.cost};
        for (const Instruction* instruction : home.instructions)
          if (is_part(*instruction)) loop.parts.push_back(instruction);
        if (!loop.parts.empty()) step.nest.loops.push_back(std::move(loop));
      }
      std::ranges::sort(step.nest.loops, {}, &ColumnLoop::phase);
      if (&step != &steps.front() && takes_product(*std::prev(&step), step.nest, number))
        std::swap(std::prev(&step)->nest, step.nest);
    }
    std::erase_if(steps,
                  [](const Step& step) { return step.kind == Step::Kind::kNest && step.nest.loops.empty(); });
  }

  /// Whether a nest, of that number, does nothing but store what it makes of a product's elements, one by
  /// one, and perhaps of what is there, and nothing else uses them.
  bool takes_product(const Step& step, const Nest& nest, int number) {
    if (step.kind != Step::Kind::kMatmul && step.kind != Step::Kind::kTranspose) return false;
    const Value product = step.instruction->results[0];
    const bool to_local = to_local_.contains(product);
    if (step.kind == Step::Kind::kTranspose && !to_local) return false;
    const Type& shape = type(product);
    // Of a transpose, elements are taken more than once: by their own store alone.
    const auto taken = [&](const Instruction* part) {
      if (step.kind == Step::Kind::kMatmul && part->opcode == Opcode::kLoad)
        return facts(part->results[0]).storage == Storage::kComputed;
      return is_write(*part) && (!to_local || kernel_.is_local(part->buffer)) &&
             (step.kind == Step::Kind::kMatmul || part->operands[0] == product);
    };
    return !apart_.contains(product) && nest.rows == shape.rows && nest.loops.size() == 1 &&
           nest.loops[0].cols == shape.cols && !shape.cols.is(1) &&
           std::ranges::all_of(nest.loops[0].parts, taken) &&
           std::ranges::all_of(users_[number_of(product)], [&](int user) {
             return user != kNone && homes_[static_cast<size_t>(user)].nest == number;
           });
  }

  const Kernel& kernel_;
  std::vector<Facts> facts_;
  std::vector<std::set<int>> users_;  // by value: loops in which it is wanted
  std::vector<int> uses_;             // by value: by how many instructions
  std::set<const Instruction*> in_place_;
  std::set<Value> to_local_;  // only stored, in local buffers
  std::set<int> written_;     // buffers
  std::set<Value> kept_;      // wanted in memory
  std::set<Value> apart_;     // used apart from nests
  std::vector<Home> homes_;
  std::vector<Step>* steps_ = nullptr;

  int nests_ = 0, nest_ = kNone;  // the open one
  Index rows_ = 1;
  std::vector<const Instruction*> accesses_;
};

void print(const Kernel& kernel, const Schedule& schedule, const std::vector<Step>& steps,
           const std::string& indent, std::string& out) {
  constexpr std::string_view kKinds[] = {"scalar", "nest", "loop", "transpose", "matmul", "yield"};
  for (const Step& step : steps) {
    out += indent + std::string(kKinds[static_cast<size_t>(step.kind)]);
    if (step.kind == Step::Kind::kNest) out.append(" ").append(tile::text_of(kernel, step.nest.rows));
    if (step.kind == Step::Kind::kScalar) out.append(" ").append(tile::info(step.instruction->opcode).name);
    out += '\n';
    for (const ColumnLoop& loop : step.nest.loops) {
      out += concat(indent, "  ", loop.phase, " over ", tile::text_of(kernel, loop.cols), ":");
      for (const Instruction* part : loop.parts) {
        constexpr std::string_view kStorage[] = {"", "", " to row", " to tile"};
        out.append(" ").append(tile::info(part->opcode).name);
        if (!part->results.empty()) out.append(kStorage[static_cast<size_t>(schedule.of(part->results[0]))]);
        out += part == loop.parts.back() ? "" : ",";
      }
      out += '\n';
    }
    print(kernel, schedule, step.body, indent + "  ", out);
  }
}

}  // namespace

std::vector<Value> needs(const Kernel& kernel, const Instruction& instruction) {
  std::vector<Value> values = instruction.operands;
  const auto scalars = [&](const Index& index) {
    index.for_each_leaf([&](const Index& leaf) {
      if (leaf.kind() == Index::Kind::kScalar) values.push_back(static_cast<Value>(leaf.value()));
    });
  };
  for (const tile::Place& place : instruction.places)
    if (const auto* value = std::get_if<Value>(&place))
      values.push_back(*value);
    else
      scalars(std::get<Index>(place));
  if (instruction.mask) values.push_back(*instruction.mask);
  if (instruction.otherwise) values.push_back(*instruction.otherwise);
  for (const Index* index : {&instruction.index, &instruction.first, &instruction.last}) scalars(*index);
  for (const Value result : instruction.results) {
    scalars(kernel.type(result).rows);
    scalars(kernel.type(result).cols);
  }
  return values;
}

Schedule schedule(const Kernel& kernel) { return Scheduler(kernel).run(); }

std::string text_of(const Kernel& kernel, const Schedule& schedule) {
  std::string out;
  print(kernel, schedule, schedule.steps, "", out);
  return out;
}

}  // namespace anynpu::jit
