// Compiles the headers as C. What fails here fails for every C program.
#pragma GCC diagnostic error "-Wpedantic"
#pragma GCC diagnostic error "-Wstrict-prototypes"

#include "acl/acl.h"

size_t c_program_describes_a_tensor(void) {
  const int64_t dims[3] = {2, 3, 4};
  aclTensorDesc* desc = aclCreateTensorDesc(ACL_FLOAT16, 3, dims, ACL_FORMAT_ND);
  const size_t size = aclGetTensorDescSize(desc);
  aclDestroyTensorDesc(desc);
  return size;
}

// The sizes that binaries built against the published headers have.
_Static_assert(sizeof(aclDataType) == sizeof(int), "an enum is an int");
_Static_assert(sizeof(aclrtMallocConfig) == 16, "a pointer and a size");
_Static_assert(sizeof(aclrtMallocAttribute) == 12, "an enum and 8 bytes");
_Static_assert(sizeof(aclrtPtrAttributes) == 28, "a location, a page size and 4 reserved words");
_Static_assert(sizeof(aclrtPhysicalMemProp) == 32, "three enums, a location and a reserved word");
_Static_assert(sizeof(aclrtUuid) == 16, "16 bytes");
_Static_assert(sizeof(aclCANNPackageVersion) == 128 + 4 * 64 + 128, "texts of fixed size");
