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
  ImportedMemory(std::string_view key, Device& device);  ///< raises what Exporter::import() does

  void* address() const { return range_.begin() + import_.offset % Arena::kPage; }
  size_t size() const { return import_.size; }

 private:
  Import import_;
  AddressRange range_;
};

/// Lends a block of a pool to another process: the memory of the block, once it is freed, rests until every
/// process that borrowed it has given it back or has ended. The key, which is new each time, is for one
/// process to borrow by: until it does, and so for ever when it ends without, the block is lent. (More may
/// borrow by it while one has the block by it.) All devices stand still a moment when the first block of a
/// segment is lent (see Standstill).
std::string lend(Block* block);

/// A block of another process at an address of a device of this one, until it goes and the work that streams
/// have then is done. Outlives its exporter. What is borrowed of one segment has one mapping, so borrowing a
/// block again gives the same address. In a fork it is nothing.
class BorrowedMemory {
 public:
  /// Raises what Exporter::import() does, and kInvalidDevice where there is no such device, when the loan is
  /// given back.
  BorrowedMemory(std::string_view key, int device);
  ~BorrowedMemory();
  BorrowedMemory(const BorrowedMemory&) = delete;

  void* address() const;
  size_t size() const;  ///< of the block

 private:
  struct Use;
  std::unique_ptr<Use> use_;
};

/// What the above are made of: exports of files that are owned by something, for any process of this user.
std::string export_file(ExportKind kind, std::weak_ptr<void> owner, int file, size_t size);
Import import_file(std::string_view key, ExportKind kind);

/// The same for memory without an address, by a number with 42 bits that nobody can guess.
uint64_t export_physical(const std::shared_ptr<PhysicalMemory>& memory, Importers importers);
void allow_import(uint64_t handle, std::span<const pid_t> processes);
std::shared_ptr<PhysicalMemory> import_physical(uint64_t handle, Device& device);

}  // namespace anynpu
