// Debian's static LLVM takes arc4random (for the names of temporary files, of which the JIT makes none) from
// glibc 2.36. With this one, libanynpu_jit runs on systems with an older glibc too.

#include <stdint.h>
#include <sys/random.h>

__attribute__((visibility("hidden"))) uint32_t arc4random(void) {
  uint32_t number = 0;
  while (getrandom(&number, sizeof(number), 0) != sizeof(number)) {
  }
  return number;
}
