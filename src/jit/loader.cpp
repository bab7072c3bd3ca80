#include "jit/loader.h"

#include <dlfcn.h>

#include <atomic>
#include <filesystem>
#include <string>

#include "base/error.h"
#include "base/fork.h"
#include "jit/build_id.h"

namespace anynpu::jit {
namespace {

constexpr const char* kFile = "libanynpu_jit.so";

std::string beside_this_library() {
  Dl_info info;
  const bool found = dladdr(reinterpret_cast<void*>(&compiler), &info) != 0 && info.dli_fname != nullptr;
  return found ? std::filesystem::path(info.dli_fname).replace_filename(kFile).string() : kFile;
}

Compiler* load() {
  const std::string path = beside_this_library();
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const why = dlerror();
    raise(ErrorCode::kInternal, "jit: the compiler cannot be loaded: ", why != nullptr ? why : path);
  }
  const char* built = "unknown";
  const auto entry = reinterpret_cast<CompilerEntry>(dlsym(library, kCompilerEntry));
  Compiler* const found = entry != nullptr ? entry(kBuildId, &built) : nullptr;
  if (found == nullptr) {
    const std::string was = built;
    dlclose(library);
    raise(ErrorCode::kInternal, "jit: ", path, " is of another version than the library that loads it: ", was,
          ", not ", kBuildId);
  }
  return found;
}

}  // namespace

Compiler& compiler() {
  static std::atomic<Compiler*> loaded;
  return made_once(loaded, load);
}

}  // namespace anynpu::jit
