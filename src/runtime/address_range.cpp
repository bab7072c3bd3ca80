#include "runtime/address_range.h"

#include <utility>

#include "base/error.h"
#include "runtime/memory.h"

namespace anynpu {
namespace {

size_t round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

struct AddressRange::Addresses {
  Arena& arena;
  const size_t size;
  char* const begin;

  Addresses(Arena& of, size_t bytes, size_t alignment)
      : arena(of), size(bytes), begin(static_cast<char*>(of.reserve(bytes, alignment))) {}
  ~Addresses() { arena.release(begin, size); }
  Addresses(const Addresses&) = delete;
};

AddressRange::AddressRange(Device& device, size_t size, size_t alignment)
    : device_(device),
      addresses_(std::make_shared<Addresses>(device.arena(), round_up(size, Arena::kPage), alignment)) {}

AddressRange::~AddressRange() {
  for (void* address : addresses_->arena.live_in(begin(), size())) try {
      unmap(address);
    } catch (const Error&) {  // the process is exiting, and takes all memory with it
    }
}

char* AddressRange::begin() const { return addresses_->begin; }

size_t AddressRange::size() const { return addresses_->size; }

void AddressRange::map(void* address, size_t size, std::shared_ptr<PhysicalMemory> memory, size_t offset) {
  const size_t bytes = round_up(size, Arena::kPage);
  const auto at = static_cast<size_t>(static_cast<char*>(address) - begin());
  require(at % Arena::kPage == 0 && offset % Arena::kPage == 0, ErrorCode::kInvalidArgument, "mapping at ",
          address, " from offset ", offset, ": multiples of ", Arena::kPage, " are accepted");
  require(size != 0 && at < this->size() && bytes <= this->size() - at, ErrorCode::kInvalidArgument,
          "mapping ", size, " bytes at ", address, ": 1 to ", at < this->size() ? this->size() - at : 0,
          " bytes are accepted there, the rest of its reserved range");
  require(offset < memory->size() && bytes <= memory->size() - offset, ErrorCode::kInvalidArgument,
          "mapping ", size, " bytes from offset ", offset, " of physical memory that has ", memory->size());
  require(memory->device() == device_.index(), ErrorCode::kInvalidArgument, "mapping memory of device ",
          memory->device(), " to addresses of device ", device_.index());
  Arena& arena = device_.arena();
  if (arena.map(address, bytes, memory, offset)) return;
  Device::wait_for_after_work(kFreeingLimit);
  require(arena.map(address, bytes, std::move(memory), offset), ErrorCode::kInvalidArgument, "mapping at ",
          address, ": work that was queued before the last unmapping still uses the range");
}

void AddressRange::unmap(void* address) {
  {
    const auto changing = change_memory();
    addresses_->arena.retire(address);
  }
  Device::after_work([addresses = addresses_, address] { addresses->arena.give_back_retired(address); });
}

bool AddressRange::mapped() const { return !addresses_->arena.live_in(begin(), size()).empty(); }

}  // namespace anynpu
