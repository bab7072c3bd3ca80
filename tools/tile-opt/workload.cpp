#include "workload.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <set>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "tile/lane.h"

namespace anynpu::tile {
namespace {

constexpr int64_t kMostElements = int64_t{1} << 28;  // of a buffer

void collect_written(const Kernel& kernel, const Body& body, std::set<size_t>& written) {
  for (const Instruction& instruction : body.instructions) {
    const bool writes = instruction.opcode == Opcode::kStore || instruction.opcode == Opcode::kAccumulate;
    if (writes && !kernel.is_local(instruction.buffer))
      written.insert(static_cast<size_t>(instruction.buffer));
    for (const Body& inner : instruction.body) collect_written(kernel, inner, written);
  }
}

class Maker {
 public:
  Maker(Workload& workload, Layout layout, std::mt19937_64& random)
      : workload_(workload), layout_(layout), random_(random) {}

  void run() {
    const auto& kernel = workload_.kernel;
    require(workload_.arguments.sizes.size() == kernel.sizes.size(), ErrorCode::kInvalidArgument, "kernel @",
            kernel.name, " takes ", kernel.sizes.size(), " sizes, not ", workload_.arguments.sizes.size());
    std::set<size_t> written;
    collect_written(kernel, kernel.body, written);
    workload_.written.assign(written.begin(), written.end());
    for (size_t i = 0; i < kernel.buffers.size(); ++i)
      add_buffer(kernel.buffers[i], layout_ == Layout::kRandom && !written.contains(i));
    for (const Value scalar : kernel.scalars)
      workload_.arguments.scalars.push_back(scalar_of(kernel.type(scalar).dtype));
  }

 private:
  int between(int least, int most) { return std::uniform_int_distribution<int>(least, most)(random_); }
  bool chance(int percent) { return between(1, 100) <= percent; }

  void add_buffer(const Buffer& buffer, bool may_repeat) {
    std::vector<int64_t> sizes;
    for (const Index& size : buffer.sizes)
      sizes.push_back(size.evaluate(
          [&](const Index& leaf) { return workload_.arguments.sizes[static_cast<size_t>(leaf.value())]; }));
    double elements_in = 1;
    for (const int64_t size : sizes) elements_in *= static_cast<double>(std::max<int64_t>(size, 1));
    require(elements_in <= kMostElements, ErrorCode::kInvalidArgument, "kernel @", workload_.kernel.name,
            ": %", buffer.name, " has ", elements_in, " elements; at most ", kMostElements, " are accepted");
    const auto strides = strides_of(buffer, sizes, may_repeat);
    const bool empty = std::ranges::any_of(sizes, [](int64_t size) { return size <= 0; });
    int64_t count = empty ? 0 : 1;
    for (size_t d = 0; d < sizes.size() && !empty; ++d) count += (sizes[d] - 1) * strides[d];
    workload_.memory.push_back(elements(buffer.dtype, static_cast<size_t>(count)));
    workload_.arguments.buffers.push_back({workload_.memory.back().data(), strides});
  }

  /// From the dimension whose elements are next to each other to the one whose are farthest apart.
  std::vector<int64_t> strides_of(const Buffer& buffer, const std::vector<int64_t>& sizes, bool may_repeat) {
    std::vector<size_t> order(sizes.size());
    std::iota(order.rbegin(), order.rend(), size_t{0});
    if (layout_ == Layout::kRandom && chance(40)) std::ranges::shuffle(order, random_);
    std::ranges::stable_partition(order, [&](size_t d) { return buffer.strides[d].has_value(); });
    std::vector<int64_t> strides(sizes.size());
    int64_t span = 1;
    for (const size_t d : order) {
      const int64_t gap = layout_ == Layout::kRandom && chance(40) ? between(1, 5) : 0;
      strides[d] = buffer.strides[d].value_or(may_repeat && chance(20) ? 0 : span + gap);
      span = std::max(span, strides[d] * std::max<int64_t>(sizes[d], 1));
    }
    return strides;
  }

  GuardedMemory elements(DType dtype, size_t count) {
    using Edge = GuardedMemory::Edge;
    GuardedMemory bytes(count * size_of(dtype), chance(50) ? Edge::kStart : Edge::kEnd);
    visit(dtype, [&]<class T>(std::type_identity<T>) {
      for (size_t k = 0; k < count; ++k) {
        const T element = convert<T>(number());
        std::memcpy(bytes.data() + k * sizeof(T), &element, sizeof(T));
      }
    });
    return bytes;
  }
  Literal scalar_of(DType dtype) {
    Literal literal;
    visit(dtype, [&]<class T>(std::type_identity<T>) {
      const T element = convert<T>(number());
      if constexpr (std::is_integral_v<T>)
        literal = static_cast<int64_t>(element);
      else
        literal = convert<double>(element);
    });
    return literal;
  }
  double number() {
    constexpr double kInf = std::numeric_limits<double>::infinity();
    constexpr std::array kSpecial = {0.0,   -0.0,  kInf, -kInf, std::numeric_limits<double>::quiet_NaN(),
                                     1e-40, -3e38, 1e10};
    if (chance(4)) return kSpecial[static_cast<size_t>(between(0, kSpecial.size() - 1))];
    return chance(30) ? between(-300, 300) : std::normal_distribution<double>(0, 3)(random_);
  }

  Workload& workload_;
  const Layout layout_;
  std::mt19937_64& random_;
};

}  // namespace

Arguments Workload::on_copies(std::vector<GuardedMemory>& copies) const {
  copies = memory;
  Arguments copied = arguments;
  for (const size_t i : written) copied.buffers[i].data = copies[i].data();
  return copied;
}

Workload make_workload(Kernel kernel, std::vector<int64_t> sizes, Layout layout, std::mt19937_64& random) {
  Workload made;
  made.kernel = std::move(kernel);
  made.arguments.sizes = std::move(sizes);
  Maker(made, layout, random).run();
  return made;
}

std::string difference(const Workload& workload, const std::vector<GuardedMemory>& expected,
                       const std::vector<GuardedMemory>& actual) {
  std::ostringstream out;
  for (size_t i = 0; i < actual.size(); ++i)
    if (!actual[i].intact())
      out << "beside %" << workload.kernel.buffers[i].name << " something was written\n";
  for (const size_t i : workload.written)
    visit(workload.kernel.buffers[i].dtype, [&]<class T>(std::type_identity<T>) {
      using Shown = std::conditional_t<lane::Integer<T>, int64_t, double>;
      for (size_t k = 0; k < expected[i].size() / sizeof(T) && out.tellp() < 400; ++k) {
        T x, y;
        std::memcpy(&x, expected[i].data() + k * sizeof(T), sizeof(T));
        std::memcpy(&y, actual[i].data() + k * sizeof(T), sizeof(T));
        if (std::memcmp(&x, &y, sizeof(T)) == 0) continue;
        const auto wanted = convert<Shown>(x), got = convert<Shown>(y);
        if (wanted != wanted && got != got) continue;
        out << "%" << workload.kernel.buffers[i].name << " element " << k << ": " << got << ", not " << wanted
            << "\n";
      }
    });
  return out.str();
}

}  // namespace anynpu::tile
