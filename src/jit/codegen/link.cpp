#include "jit/codegen/link.h"

#include <llvm/BinaryFormat/ELF.h>
#include <llvm/Object/ELFObjectFile.h>
#include <llvm/Support/Endian.h>

#include <algorithm>
#include <map>
#include <string>

#include "base/error.h"
#include "jit/codegen/checked.h"

namespace anynpu::jit {
namespace {

using Object = llvm::object::ELF64LEObjectFile;
using llvm::object::RelocationRef;
using llvm::object::SectionRef;
using llvm::object::SymbolRef;

class Linker {
 public:
  explicit Linker(std::string_view object)
      : object_(checked(Object::create(llvm::MemoryBufferRef({object.data(), object.size()}, "kernel")),
                        "reading an object file")) {}

  Code run(std::string_view entry) {
    for_each_relocation([this](const SectionRef&, const RelocationRef& relocation) {
      if (const SymbolRef symbol = *relocation.getSymbol(); is_external(symbol)) slot_of(symbol);
    });
    code_.bytes.resize(code_.functions.size() * 8);
    for (const SectionRef& section : object_.sections())
      if (is_loaded(section)) add(section);
    for_each_relocation(
        [this](const SectionRef& section, const RelocationRef& relocation) { resolve(section, relocation); });
    code_.entry = offset_of(symbol_named(entry));
    return std::move(code_);
  }

 private:
  static bool is_loaded(const llvm::object::ELFSectionRef& section) {
    return (section.getFlags() & llvm::ELF::SHF_ALLOC) != 0 && section.getSize() != 0;
  }

  template <class Function>
  void for_each_relocation(const Function& function) {
    for (const SectionRef& relocations : object_.sections()) {
      const auto section = checked(relocations.getRelocatedSection(), "relocations");
      if (section == object_.section_end() || !is_loaded(*section)) continue;
      for (const RelocationRef& relocation : relocations.relocations()) function(*section, relocation);
    }
  }

  SymbolRef symbol_named(std::string_view name) {
    for (const SymbolRef& symbol : object_.symbols())
      if (checked(symbol.getName(), "a name") == llvm::StringRef(name.data(), name.size())) return symbol;
    raise(ErrorCode::kInternal, "jit: an object file without ", name);
  }

  static bool is_external(const SymbolRef& symbol) {
    return (checked(symbol.getFlags(), "a symbol") & SymbolRef::SF_Undefined) != 0;
  }

  /// The offset of a function's address in the table.
  size_t slot_of(const SymbolRef& symbol) {
    const std::string name = checked(symbol.getName(), "a name").str();
    const auto found = std::ranges::find(code_.functions, name);
    const auto number = static_cast<size_t>(found - code_.functions.begin());
    if (found == code_.functions.end()) code_.functions.push_back(name);
    return number * 8;
  }

  void add(const llvm::object::ELFSectionRef& section) {
    require((section.getFlags() & llvm::ELF::SHF_WRITE) == 0 && section.getType() != llvm::ELF::SHT_NOBITS,
            ErrorCode::kInternal, "jit: code with variables of its own");
    const size_t alignment = section.getAlignment().value();
    require(alignment <= kCodeAlignment, ErrorCode::kInternal, "jit: code that is aligned to ", alignment);
    code_.bytes.resize((code_.bytes.size() + alignment - 1) / alignment * alignment);
    offsets_[section.getIndex()] = code_.bytes.size();
    code_.bytes += checked(section.getContents(), "a section").str();
  }

  uint64_t offset_of(const SymbolRef& symbol) {
    const auto section = checked(symbol.getSection(), "a symbol");
    const auto found = section == object_.section_end() ? offsets_.end() : offsets_.find(section->getIndex());
    require(found != offsets_.end(), ErrorCode::kInternal, "jit: code refers to ",
            checked(symbol.getName(), "a name").str());
    return found->second + checked(symbol.getValue(), "a symbol");
  }

  void resolve(const SectionRef& section, const llvm::object::ELFRelocationRef& relocation) {
    const SymbolRef symbol = *relocation.getSymbol();
    const uint64_t place = offsets_.at(section.getIndex()) + relocation.getOffset();
    uint64_t target = 0;
    switch (relocation.getType()) {
      case llvm::ELF::R_X86_64_PC32:
      case llvm::ELF::R_X86_64_PLT32:
        target = offset_of(symbol);
        break;
      case llvm::ELF::R_X86_64_GOTPCREL:
      case llvm::ELF::R_X86_64_GOTPCRELX:
      case llvm::ELF::R_X86_64_REX_GOTPCRELX:
        target = slot_of(symbol);
        break;
      default:
        raise(ErrorCode::kInternal, "jit: relocation ", relocation.getType(), " in code");
    }
    const auto addend = static_cast<uint64_t>(checked(relocation.getAddend(), "relocations"));
    llvm::support::endian::write32le(code_.bytes.data() + place,
                                     static_cast<uint32_t>(target + addend - place));
  }

  const Object object_;
  Code code_;
  std::map<uint64_t, uint64_t> offsets_;  ///< of sections, by their index
};

}  // namespace

Code link(std::string_view object, std::string_view entry) { return Linker(object).run(entry); }

}  // namespace anynpu::jit
