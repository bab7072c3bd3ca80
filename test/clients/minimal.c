/* The smallest C program: is there a device, and does its memory hold what is put there? */

#include <acl/acl.h>
#include <stdio.h>

int main(void) {
  int sent = 41, received = 0;
  void* memory = NULL;
  if (aclInit(NULL) != ACL_SUCCESS || aclrtSetDevice(0) != ACL_SUCCESS) return 1;
  if (aclrtMalloc(&memory, sizeof(int), ACL_MEM_MALLOC_NORMAL_ONLY) != ACL_SUCCESS) return 2;
  if (aclrtMemcpy(memory, sizeof(int), &sent, sizeof(int), ACL_MEMCPY_HOST_TO_DEVICE) != ACL_SUCCESS)
    return 3;
  if (aclrtMemcpy(&received, sizeof(int), memory, sizeof(int), ACL_MEMCPY_DEVICE_TO_HOST) != ACL_SUCCESS)
    return 4;
  printf("%s %d\n", aclrtGetSocName(), received);
  return aclrtFree(memory) == ACL_SUCCESS && aclrtResetDevice(0) == ACL_SUCCESS &&
                 aclFinalize() == ACL_SUCCESS
             ? 0
             : 5;
}
