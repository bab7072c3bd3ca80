#include "abi/operand_memory.h"

#include "abi/call.h"
#include "runtime/device.h"
#include "runtime/memory.h"

namespace anynpu::abi {

void check_memory(const char* name, const ops::View& view, std::optional<int> device, MemoryCodes codes) {
  if (view.elements() == 0 || (view.data == nullptr && !device)) return;
  check(view.data != nullptr, codes.null, name, " has elements, but no address");
  const Device* const home = Device::of(view.data);
  check(home != nullptr || place_of(view.data) == MemoryPlace::kPinnedHost, codes.wrong, name, " lies at ",
        view.data, ", which is no device memory");
  check(home == nullptr || !device || home->index() == *device || Device::get(*device).reaches(*home),
        codes.wrong, name, " lies on device ", home != nullptr ? home->index() : -1,
        ", but the stream is of device ", device.value_or(-1));
  check_range(name, view.data, static_cast<size_t>(view.span()));
}

}  // namespace anynpu::abi
