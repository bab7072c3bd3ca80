#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "runtime/address_range.h"
#include "runtime/exports.h"

namespace anynpu {

// Device memory of one process in others. A peer maps the very pages, and only those that were exported.

// An export is named by a key, 64 hexadecimal digits of the exporting process and of a secret.

/// Makes [address, address + size) importable until its allocation is freed or end_export() called, under a
/// key that is new each time. The range begins at a page or an allocation and ends at one: what else lies in
/// its pages would be exported with it. It must be the same as, or overlap nothing of, what was exported
/// before. All devices stand still a moment the first time (see Standstill). Raises kInvalidArgument, saying
/// which of this does not hold.
///
/// For a storage out of a pool: export `arena.find(address)`, the segment, and send the offset beside the
/// key.
std::string export_memory(const void* address, size_t size, Importers importers);
void allow_import(std::string_view key, std::span<const pid_t> processes);
void end_export(std::string_view key);

/// Memory of another process at addresses of a device of this one, until it goes. Outlives the export and the
/// exporter. Queued work is waited for as AddressRange does.
class ImportedMemory {
 public:
  ImportedMemory(std::string_view key, Device& device);  ///< raises what Exports::import() does

  void* address() const { return range_.begin() + import_.offset % Arena::kPage; }
  size_t size() const { return import_.size; }

 private:
  Import import_;
  AddressRange range_;
};

/// What the above are made of: exports of files that are owned by something, for any process of this user.
std::string export_file(ExportKind kind, std::weak_ptr<void> owner, int file, size_t size);
Import import_file(std::string_view key, ExportKind kind);

/// The same for memory without an address, by a number with 42 bits that nobody can guess.
uint64_t export_physical(const std::shared_ptr<PhysicalMemory>& memory, Importers importers);
void allow_import(uint64_t handle, std::span<const pid_t> processes);
std::shared_ptr<PhysicalMemory> import_physical(uint64_t handle, Device& device);

}  // namespace anynpu
