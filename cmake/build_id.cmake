# Writes OUTPUT, a header with a text that follows from the SOURCES and the version of LLVM.
set(all "")
foreach(source ${SOURCES})
  file(SHA256 ${source} digest)
  string(APPEND all ${digest})
endforeach()
string(SHA256 digest "${all}")
string(SUBSTRING ${digest} 0 32 digest)
file(CONFIGURE OUTPUT ${OUTPUT} @ONLY CONTENT [[
#pragma once

namespace anynpu::jit {

/// Names the sources of the tile IR and the JIT and the version of LLVM: equal in libraries that were built
/// together, and another one when either changed.
constexpr const char kBuildId[] = "@digest@, LLVM @LLVM@";

}  // namespace anynpu::jit
]])
