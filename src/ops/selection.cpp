#include "ops/selection.h"

#include <algorithm>
#include <array>

#include "ops/copy.h"
#include "ops/kernel_table.h"
#include "tile/builder.h"

namespace anynpu::ops {
namespace {

using tile::Axis;
using tile::Builder;
using tile::Expr;
using tile::Index;
using tile::Opcode;

constexpr int64_t kPart = 8192;  ///< elements of a block

int64_t parts_of(int64_t elements) { return (elements + kPart - 1) / kPart; }

/// What a block works on: elements from `first` on, and which of them are chosen.
struct Part {
  Index first, count;
  Expr chosen;

  Part(Builder& builder, int buffer, DType dtype, const Index& elements)
      : first(Index::block() * kPart),
        count(min(kPart, elements - first)),
        chosen(is_chosen(converted(builder.load(buffer, {first}, 1, count), compute_type(dtype)))) {
    builder.grid(ceil_div(elements, kPart));
  }
  static Expr is_chosen(const Expr& element) { return element != 0.0; }
  Expr flags(Builder& builder) const { return builder.cast(chosen, DType::kI64); }
};

/// How many elements of each part are chosen.
tile::Kernel counting_kernel(DType chosen) {
  Builder builder("SelectionCount");
  const Index elements = builder.size("elements");
  const int from = builder.buffer("chosen", chosen, {elements}),
            to = builder.buffer("counts", DType::kI64, {ceil_div(elements, kPart)});
  const Part part(builder, from, chosen, elements);
  builder.store(to, {Index::block()}, row_sum(part.flags(builder)));
  return builder.finish();
}

/// Values, or for each of so many dimensions the index, to their places.
tile::Kernel moving_kernel(DType chosen, std::optional<DType> values, size_t dims) {
  Builder builder("Selection");
  const Index elements = builder.size("elements"), room = builder.size("room");
  std::vector<Index> sizes, steps;
  for (size_t d = 0; d < dims; ++d) {
    sizes.push_back(builder.size(concat("size", d)));
    steps.push_back(builder.size(concat("step", d)));
  }
  const Index parts = ceil_div(elements, kPart);
  const int from = builder.buffer("chosen", chosen, {elements}),
            counts = builder.buffer("counts", DType::kI64, {parts}),
            total = builder.buffer("total", DType::kI64, {1}),
            to = builder.buffer("out", values.value_or(DType::kI64), {room}),
            of_values = values ? builder.buffer("values", *values, {elements}) : -1;
  const Part part(builder, from, chosen, elements);
  const Expr before = row_sum(builder.load(counts, {0}, 1, Index::block())), flags = part.flags(builder);
  const Expr places = builder.op(Opcode::kRowScanSum, {flags}) + before - 1.0;
  if (values) {
    builder.store(to, {places.value()}, builder.load(of_values, {part.first}, 1, part.count), part.chosen);
  } else {
    const Expr numbers = builder.iota(Axis::kCols, part.count) + builder.index(part.first);
    for (size_t d = 0; d < dims; ++d) {
      const Expr along =
          builder.op(Opcode::kRem, {numbers / builder.index(steps[d]), builder.index(sizes[d])});
      builder.store(to, {(places * static_cast<double>(dims) + static_cast<double>(d)).value()}, along,
                    part.chosen);
    }
  }
  const Expr is_last = builder.index(Index::block()) == builder.index(parts - 1);
  builder.store(total, {0}, before + row_sum(flags), is_last);
  return builder.finish();
}

void add(jit::PackedArguments& arguments, const View& view) {
  arguments.buffer(view.data, std::array<int64_t, 1>{1});
}

/// The tensor, or a copy where its elements are not side by side.
View adjacent(const View& view, const TakeMemory& take, std::vector<Launch>& launches) {
  if (view.same_as(contiguous(view.dtype, view.data, view.sizes))) return view;
  View copy = temporary(take, view.dtype, view.sizes);
  launches.push_back(prepare_copy(copy, view));
  return copy;
}

}  // namespace

std::vector<Launch> prepare(const Selection& call, const TakeMemory& take) {
  static KernelTable& counting = *new KernelTable;  // they outlive every thread
  static KernelTable& moving = *new KernelTable;
  std::vector<Launch> launches;
  const View chosen = adjacent(call.chosen, take, launches);
  const int64_t elements = chosen.elements(), parts = parts_of(elements);
  const View counts = temporary(take, DType::kI64, {parts});
  const auto bytes = static_cast<double>(chosen.span());
  jit::PackedArguments to_count;
  to_count.size(elements);
  add(to_count, chosen);
  add(to_count, counts);
  KernelTable::Key key;
  key.add(chosen.dtype);
  launches.emplace_back(counting.find(key, [&] { return counting_kernel(chosen.dtype); }), to_count, parts,
                        bytes);

  const size_t dims = call.values ? 0 : chosen.sizes.size();
  jit::PackedArguments to_move;
  to_move.size(elements);
  to_move.size(call.out.elements());
  for (size_t d = 0; d < dims; ++d) {
    to_move.size(chosen.sizes[d]);
    to_move.size(contiguous(chosen.dtype, nullptr, chosen.sizes).strides[d]);
  }
  for (const View* view : {&chosen, &counts, &call.count, &call.out}) add(to_move, *view);
  std::optional<DType> of_values;
  double moved = bytes + static_cast<double>(elements) * 8 * static_cast<double>(dims);
  if (call.values) {
    const View values = adjacent(*call.values, take, launches);
    of_values = values.dtype;
    moved += 2 * static_cast<double>(values.span());
    add(to_move, values);
  }
  key.add(static_cast<uint8_t>(of_values ? static_cast<int>(*of_values) : -1));
  key.add(static_cast<uint8_t>(dims));
  launches.emplace_back(moving.find(key, [&] { return moving_kernel(chosen.dtype, of_values, dims); }),
                        to_move, parts, moved);
  return launches;
}

}  // namespace anynpu::ops
