/* A product of two matrices on a device, and one that is refused. */

#include <acl/acl.h>
#include <acl/ops/acl_cblas.h>
#include <stdio.h>
#include <string.h>

static void* on_device(const void* values, size_t bytes) {
  void* memory = NULL;
  if (aclrtMalloc(&memory, bytes, ACL_MEM_MALLOC_NORMAL_ONLY) != ACL_SUCCESS) return NULL;
  return aclrtMemcpy(memory, bytes, values, bytes, ACL_MEMCPY_HOST_TO_DEVICE) == ACL_SUCCESS ? memory : NULL;
}

int main(void) {
  const float left[6] = {1, 2, 3, 4, 5, 6}, right[6] = {7, 8, 9, 10, 11, 12};
  float result[4] = {0, 0, 0, 0}, one = 1, none = 0;
  aclrtStream stream = NULL;
  if (aclInit(NULL) != ACL_SUCCESS || aclrtSetDevice(0) != ACL_SUCCESS) return 1;
  if (aclrtCreateStream(&stream) != ACL_SUCCESS) return 2;
  void* const a = on_device(left, sizeof(left));
  void* const b = on_device(right, sizeof(right));
  void* const c = on_device(result, sizeof(result));
  if (aclblasGemmEx(ACL_TRANS_N, ACL_TRANS_N, ACL_TRANS_N, 2, 2, 3, &one, a, -1, ACL_FLOAT, b, -1, ACL_FLOAT,
                    &none, c, -1, ACL_FLOAT, ACL_COMPUTE_HIGH_PRECISION, stream) != ACL_SUCCESS)
    return 3;
  if (aclrtSynchronizeStream(stream) != ACL_SUCCESS) return 4;
  if (aclrtMemcpy(result, sizeof(result), c, sizeof(result), ACL_MEMCPY_DEVICE_TO_HOST) != ACL_SUCCESS)
    return 5;
  printf("%g %g %g %g\n", result[0], result[1], result[2], result[3]);
  const aclError status =
      aclblasGemmEx(ACL_TRANS_N, ACL_TRANS_N, ACL_TRANS_N, 2, 2, 3, &one, a, 2, ACL_FLOAT, b, -1, ACL_FLOAT,
                    &none, c, -1, ACL_FLOAT, ACL_COMPUTE_HIGH_PRECISION, stream);
  const char* text = aclGetRecentErrMsg();
  const char* reason = text != NULL ? strstr(text, "lda is 2") : NULL;
  printf("%.8s, %d\n", reason != NULL ? reason : "no reason", (int)status);
  if (aclrtFree(a) != ACL_SUCCESS || aclrtFree(b) != ACL_SUCCESS || aclrtFree(c) != ACL_SUCCESS) return 6;
  if (aclrtDestroyStream(stream) != ACL_SUCCESS || aclrtResetDevice(0) != ACL_SUCCESS) return 7;
  return aclFinalize() == ACL_SUCCESS ? 0 : 8;
}
