#include "runtime/sharing.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <iomanip>
#include <map>
#include <mutex>
#include <sstream>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "runtime/content_watch.h"
#include "runtime/exporter.h"
#include "runtime/standstill.h"

namespace anynpu {
namespace {

constexpr size_t kProcessDigits = 8, kKeyDigits = 64;
constexpr size_t kSecretBytes = (kKeyDigits - kProcessDigits) / 2;
constexpr int kHandleSecretBits = 42;  // below the number of the process, which Linux keeps below 2^22
constexpr uint64_t kHandleSecretMask = (uint64_t{1} << kHandleSecretBits) - 1;

std::string bytes_of(uint64_t value) { return {reinterpret_cast<const char*>(&value), sizeof(value)}; }

uint64_t handle_of(const std::string& secret) {
  uint64_t value = 0;
  std::memcpy(&value, secret.data(), sizeof(value));
  return value;
}

/// What a key says: the exporting process, and the secret that it knows the export by.
struct Key {
  pid_t process;
  std::string secret;
};

std::string text_of(const Key& key) {
  std::ostringstream out;
  out << std::hex << std::setfill('0') << std::setw(kProcessDigits) << key.process;
  for (const char byte : key.secret) out << std::setw(2) << int{static_cast<unsigned char>(byte)};
  return out.str();
}

Key parse(std::string_view text) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  require(text.size() == kKeyDigits && text.find_first_not_of(kDigits) == text.npos,
          ErrorCode::kInvalidArgument, "key '", text.substr(0, kKeyDigits), "' is none: it must be ",
          kKeyDigits, " hexadecimal digits");
  const auto number = [&](size_t at, size_t digits) {
    return std::stoul(std::string(text.substr(at, digits)), nullptr, 16);
  };
  Key key = {static_cast<pid_t>(number(0, kProcessDigits)), {}};
  for (size_t at = kProcessDigits; at < kKeyDigits; at += 2) key.secret += static_cast<char>(number(at, 2));
  return key;
}

std::string add_under_key(Exports::Export exported) {
  const std::string secret =
      Exports::instance().add(std::move(exported), [] { return random_bytes(kSecretBytes); });
  return text_of({getpid(), secret});
}

/// The pages of [address, address + size) as memory that other processes can map.
std::shared_ptr<PhysicalMemory> share_pages(Device& device, const void* address, size_t size) {
  if (auto memory = device.arena().shared(address, size)) return memory;
  const Standstill standstill;
  return device.arena().share(address, size);
}

/// A block that others use; when it goes, the block is over once it is freed.
struct Lent {
  std::shared_ptr<PhysicalMemory> memory;
  std::shared_ptr<Recording> end = std::make_shared<Recording>();

  explicit Lent(std::shared_ptr<PhysicalMemory> of) : memory(std::move(of)) {}
  ~Lent() { end->complete(nullptr); }
  Lent(const Lent&) = delete;
};

/// The whole file at addresses of the device: one mapping for all who ask while it is there.
std::shared_ptr<AddressRange> mapping_of(Descriptor file, Device& device) {
  struct Known {
    std::mutex mutex;
    std::map<std::tuple<int, dev_t, ino_t>, std::weak_ptr<AddressRange>> mappings;
  };
  static auto* known = new Known;  // outlives every thread
  struct stat status = {};
  require(fstat(file.get(), &status) == 0, ErrorCode::kInternal, "borrowing: ", std::strerror(errno));
  std::lock_guard lock(known->mutex);
  std::erase_if(known->mappings, [](const auto& entry) { return entry.second.expired(); });
  auto& place = known->mappings[{device.index(), status.st_dev, status.st_ino}];
  if (auto mapping = place.lock()) return mapping;
  const auto size = static_cast<size_t>(status.st_size);
  const auto mapping = std::make_shared<AddressRange>(device, size, Arena::kPage);
  mapping->map(mapping->begin(), size, PhysicalMemory::adopt(device.index(), size, std::move(file)), 0);
  place = mapping;
  return mapping;
}

size_t pages(size_t size) { return (size + Arena::kPage - 1) / Arena::kPage * Arena::kPage; }

}  // namespace

std::string export_memory(const void* address, size_t size, Importers importers) {
  Device::require_usable();
  Device* device = Device::of(address);
  require(device != nullptr, ErrorCode::kInvalidArgument, "exporting: ", address,
          " is not an address of a device");
  ContentWatch::exclude(address, size);
  const auto memory = share_pages(*device, address, size);
  return add_under_key({ExportKind::kMemory, importers, memory, memory->file(), size,
                        reinterpret_cast<uintptr_t>(address) % Arena::kPage});
}

std::string export_file(ExportKind kind, std::weak_ptr<void> owner, int file, size_t size) {
  return add_under_key({kind, Importers::kAnyProcess, std::move(owner), file, size, 0});
}

Import import_file(std::string_view key, ExportKind kind) {
  const Key parsed = parse(key);
  return Exporter::import(parsed.process, parsed.secret, kind).what;
}

void allow_import(std::string_view key, std::span<const pid_t> processes) {
  const Key parsed = parse(key);
  require(parsed.process == getpid(), ErrorCode::kInvalidHandle, "the key is of process ", parsed.process,
          "; the process that exported says who may import");
  Exports::instance().allow(parsed.secret, processes);
}

void end_export(std::string_view key) {
  const Key parsed = parse(key);
  require(parsed.process == getpid(), ErrorCode::kInvalidHandle, "the key is of process ", parsed.process,
          ", and nothing is imported by it here (any more)");
  Exports::instance().remove(parsed.secret);
}

ImportedMemory::ImportedMemory(std::string_view key, Device& device)
    : import_(import_file(key, ExportKind::kMemory)),
      range_(device, import_.offset % Arena::kPage + import_.size, Arena::kPage) {
  range_.map(range_.begin(), range_.size(),
             PhysicalMemory::adopt(device.index(), range_.size(), std::move(import_.file)), 0);
}

std::string lend(Block* block) {
  Device::require_usable();
  const auto* address = static_cast<const char*>(BlockPool::address(block));
  Device& device = *Device::of(address);
  const auto segment = device.arena().find(address).value();
  ContentWatch::exclude(segment.begin, segment.size);
  const auto lent = std::make_shared<Lent>(share_pages(device, segment.begin, segment.size));
  device.pool().rest_until(block, lent->end);
  const size_t offset = reinterpret_cast<uintptr_t>(segment.begin) % Arena::kPage;
  return add_under_key({.kind = ExportKind::kLoan,
                        .importers = Importers::kAnyProcess,
                        .owner = lent,
                        .file = lent->memory->file(),
                        .size = BlockPool::size(block),
                        .offset = offset + static_cast<size_t>(address - segment.begin),
                        .on_its_way = lent});
}

struct BorrowedMemory::Use {
  std::string secret;
  std::shared_ptr<Exporter> exporter;
  size_t size, offset;
  std::shared_ptr<AddressRange> mapping;

  ~Use() {
    mapping = nullptr;
    exporter->give_back(secret);
  }
};

BorrowedMemory::BorrowedMemory(std::string_view key, int device) {
  const Key parsed = parse(key);
  auto [import, exporter] = Exporter::import(parsed.process, parsed.secret, ExportKind::kLoan);
  use_.reset(new Use{parsed.secret, std::move(exporter), import.size, import.offset, nullptr});
  use_->mapping = mapping_of(std::move(import.file), Device::get(device));
}

/// Where work cannot be waited for any more, the end of the process gives it back.
BorrowedMemory::~BorrowedMemory() {
  Use* const use = use_.release();
  if (!Device::forked()) Device::after_work([use] { delete use; });
}

void* BorrowedMemory::address() const { return use_->mapping->begin() + use_->offset; }

size_t BorrowedMemory::size() const { return use_->size; }

uint64_t export_physical(const std::shared_ptr<PhysicalMemory>& memory, Importers importers) {
  require(!memory->foreign(), ErrorCode::kInvalidArgument,
          "exporting: the memory was imported; the process that allocated it exports it");
  const auto process = static_cast<uint64_t>(getpid()) << kHandleSecretBits;
  return handle_of(Exports::instance().add(
      {ExportKind::kPhysicalMemory, importers, memory, memory->file(), memory->size(), 0}, [process] {
        return bytes_of(process | (handle_of(random_bytes(sizeof(uint64_t))) & kHandleSecretMask));
      }));
}

void allow_import(uint64_t handle, std::span<const pid_t> processes) {
  Exports::instance().allow(bytes_of(handle), processes);
}

std::shared_ptr<PhysicalMemory> import_physical(uint64_t handle, Device& device) {
  Import import = Exporter::import(static_cast<pid_t>(handle >> kHandleSecretBits), bytes_of(handle),
                                   ExportKind::kPhysicalMemory)
                      .what;
  return PhysicalMemory::adopt(device.index(), pages(import.size), std::move(import.file));
}

}  // namespace anynpu
