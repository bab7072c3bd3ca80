#include "jit/runtime.h"

#include <cmath>
#include <cstring>
#include <string_view>

#include "tile/lane.h"
#include "tile/math_f64.h"
#include "tile/opcode.h"
#include "tile/reduce.h"

namespace anynpu::jit {
namespace {

struct RuntimeFunction {
  std::string_view name;
  void* address;
};

template <class Result, class... Operands>
void* address_of(Result (*function)(Operands...)) {
  return reinterpret_cast<void*>(function);
}

using Unary = double (*)(double);
using Binary = double (*)(double, double);

const RuntimeFunction kRuntimeFunctions[] = {
#define ANYNPU_FUNCTION(opcode, name) {#name, address_of(static_cast<Unary>(tile::f64::name))},
    ANYNPU_TILE_UNARY_FUNCTIONS(ANYNPU_FUNCTION)
#undef ANYNPU_FUNCTION
#define ANYNPU_FUNCTION(opcode, name) {#name, address_of(static_cast<Binary>(tile::f64::name))},
        ANYNPU_TILE_BINARY_FUNCTIONS(ANYNPU_FUNCTION)
#undef ANYNPU_FUNCTION
            {"fmod", address_of(static_cast<Binary>(::fmod))},
    {"fmodf", address_of(::fmodf)},
    {"memcpy", address_of(::memcpy)},
    {"memset", address_of(::memset)},
    {"anynpu_jit_reduce", address_of(anynpu_jit_reduce)},
};

using tile::DType;

/// An array of states of a reduction, one component an array.
template <class Reduction, class Load, class Store>
void reduce_states(int64_t count, const Load& load, const Store& store) {
  struct Merging : Reduction {
    static typename Reduction::State take(typename Reduction::State a, typename Reduction::State b) {
      return Reduction::merge(a, b);
    }
  };
  store(tile::reduce<Merging>(count, load));
}

}  // namespace

void* runtime_function(std::string_view name) {
  for (const RuntimeFunction& function : kRuntimeFunctions)
    if (function.name == name) return function.address;
  return nullptr;
}

extern "C" void anynpu_jit_reduce(int opcode, int dtype, void* const* components, int64_t count,
                                  int64_t stride) {
  using tile::Opcode;
  tile::visit(static_cast<DType>(dtype), [&]<class T>(std::type_identity<T>) {
    if constexpr (!std::is_same_v<T, tile::Half> && !std::is_same_v<T, tile::BFloat16>) {
      const auto plain = [&]<class Reduction>(std::type_identity<Reduction>) {
        auto* values = static_cast<T*>(components[0]);
        reduce_states<Reduction>(
            count, [&](int64_t i) { return values[i * stride]; }, [&](T value) { values[0] = value; });
      };
      const auto positions = [&]<class Reduction>(std::type_identity<Reduction>) {
        auto* at = static_cast<int64_t*>(components[0]);
        auto* values = static_cast<T*>(components[1]);
        reduce_states<Reduction>(
            count, [&](int64_t i) { return tile::Position<T>{values[i * stride], at[i * stride]}; },
            [&](tile::Position<T> result) { at[0] = result.position; });
      };
      switch (static_cast<Opcode>(opcode)) {
        case Opcode::kRowMax:
          return plain(std::type_identity<tile::MaxReduction<T>>());
        case Opcode::kRowMin:
          return plain(std::type_identity<tile::MinReduction<T>>());
        case Opcode::kRowArgmax:
          return positions(std::type_identity<tile::ArgReduction<T, true>>());
        case Opcode::kRowArgmin:
          return positions(std::type_identity<tile::ArgReduction<T, false>>());
        default:
          break;
      }
      if constexpr (!std::is_same_v<T, bool>) {
        if (static_cast<Opcode>(opcode) == Opcode::kRowSum)
          return plain(std::type_identity<tile::SumReduction<T>>());
        if (static_cast<Opcode>(opcode) == Opcode::kRowProd)
          return plain(std::type_identity<tile::ProdReduction<T>>());
      }
      if constexpr (std::is_floating_point_v<T>) {
        using Moments = tile::MomentsReduction<T>;
        auto *mean = static_cast<T*>(components[0]), *squares = static_cast<T*>(components[1]),
             *counts = static_cast<T*>(components[2]);
        reduce_states<Moments>(
            count,
            [&](int64_t i) {
              return typename Moments::State{counts[i * stride], mean[i * stride], squares[i * stride]};
            },
            [&](typename Moments::State state) {
              mean[0] = state.mean;
              squares[0] = state.squares;
            });
      }
    }
  });
}

}  // namespace anynpu::jit
