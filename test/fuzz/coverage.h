#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "tile/ir.h"

namespace anynpu::tile {

/// What programs are made of, counted: operations by the type of elements that they work on, and the ways to
/// address memory.
class Coverage {
 public:
  void add(const Kernel& kernel);

  /// What is accepted and was not seen: operations with their types, casts from each type to each other one,
  /// and ways. Empty when nothing is missing.
  std::string missing() const;
  /// A line for each operation and each way, with how often it was seen.
  std::string text() const;

 private:
  enum class Way : uint8_t {
    kParameter,
    kMaskedLoad,
    kLoadWithOtherwise,
    kMaskedStore,
    kMaskedAccumulate,
    kGatheredCols,
    kGatheredRows,
    kScatteredCols,
    kScatteredRows,
    kScalarPosition,
    kRepeatedLoad,
    kSaturatingCast,
    kLoopWithCounter,
    kLoadOfPart,
    kStoreOfPart,
    kTurnedToLocal,
    kProductOfMemory,
    kProductOfLocal,
    kProductOfConverted,
    kProductOfTurned,
    kProductOfComputed,
    kProductOfOverwritten,
    kStoredProduct,
    kFinishedProduct,
    kAddedProduct,
    kSharedProduct,
    kProductInLoop,
    kProductInRegisters,
  };
  static constexpr const char* kWays[] = {"scalar parameter",
                                          "masked load",
                                          "masked load with values elsewhere",
                                          "masked store",
                                          "masked accumulate",
                                          "gather of columns",
                                          "gather of rows",
                                          "scatter of columns",
                                          "scatter of rows",
                                          "position in a scalar",
                                          "load of a column over and over",
                                          "saturating cast",
                                          "use of a loop's counter",
                                          "load of a part of a local buffer",
                                          "store of a part of a local buffer",
                                          "transpose that is stored in a local buffer",
                                          "product of what memory holds",
                                          "product of what a local buffer holds",
                                          "product of what is converted",
                                          "product of a transpose",
                                          "product of what is computed",
                                          "product of what is overwritten before it",
                                          "product that is only stored",
                                          "product that is computed with and stored",
                                          "product that is only added to memory",
                                          "product that several operations use",
                                          "products that a loop adds up",
                                          "product of no more than registers hold"};

  void add(const Kernel& kernel, const Body& body);
  void add_memory(const Kernel& kernel, const Instruction& instruction);
  void add_uses(const Kernel& kernel, const Body& body);
  void add_product(const Kernel& kernel, const Body& body, const Instruction& product);
  void see(Way way) { ++ways_[static_cast<size_t>(way)]; }

  std::array<std::array<uint64_t, kDTypes>, kOpcodes> operations_{};
  std::array<std::array<uint64_t, kDTypes>, kDTypes> casts_{};
  std::array<uint64_t, std::size(kWays)> ways_{};
  /// Loads, stores and accumulates of local buffers.
  std::array<std::array<uint64_t, kDTypes>, 3> locals_{};
  uint64_t programs_ = 0;
};

}  // namespace anynpu::tile
