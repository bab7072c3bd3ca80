#include "runtime/physical_memory.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "runtime/arena.h"
#include "runtime/exports.h"

namespace anynpu {
PhysicalMemory::PhysicalMemory(int device, size_t size, Descriptor file, bool foreign, bool counted)
    : device_(device), size_(size), file_(std::move(file)), foreign_(foreign), counted_(counted) {}

PhysicalMemory::~PhysicalMemory() {
  if (counted_) MemoryBudget::instance().release(size_);
}

std::shared_ptr<PhysicalMemory> PhysicalMemory::allocate(int device, size_t size, size_t page) {
  require(size != 0, ErrorCode::kInvalidArgument, "physical memory: size is 0; 1 or more is accepted");
  MemoryBudget& budget = MemoryBudget::instance();
  const size_t bytes = size <= budget.total() ? (size + page - 1) / page * page : size;
  if (!budget.reserve(bytes)) raise_out_of_memory(device, size, "the budget is spent");
  try {
    auto memory = replace(device, bytes);
    memory->take_over();
    return memory;
  } catch (...) {
    budget.release(bytes);
    throw;
  }
}

std::shared_ptr<PhysicalMemory> PhysicalMemory::replace(int device, size_t size) {
  Descriptor file = make_memory_file(size);
  if (!file) raise_out_of_memory(device, size, std::strerror(errno));
  return std::shared_ptr<PhysicalMemory>(new PhysicalMemory(device, size, std::move(file), false, false));
}

std::shared_ptr<PhysicalMemory> PhysicalMemory::adopt(int device, size_t size, Descriptor file) {
  return std::shared_ptr<PhysicalMemory>(new PhysicalMemory(device, size, std::move(file), true, false));
}

}  // namespace anynpu
