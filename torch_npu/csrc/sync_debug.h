#pragma once

#include <cstdint>

namespace torch_npu {

/// What happens where a call makes the host wait for a device, as on a card: torch.npu.set_sync_debug_mode.
enum class SyncDebugMode : uint8_t { kDefault, kWarn, kError };
SyncDebugMode sync_debug_mode();
void set_sync_debug_mode(SyncDebugMode mode);

/// Where such a call begins.
void note_sync();

}  // namespace torch_npu
