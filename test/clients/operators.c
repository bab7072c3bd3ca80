/* x + 2 y on a device, and an operator that refuses its arguments. */

#include <acl/acl.h>
#include <aclnnop/aclnn_add.h>
#include <stdio.h>
#include <string.h>

static aclTensor* tensor(const float* values, int64_t count, void** memory) {
  const size_t bytes = (size_t)count * sizeof(float);
  if (aclrtMalloc(memory, bytes, ACL_MEM_MALLOC_NORMAL_ONLY) != ACL_SUCCESS) return NULL;
  if (aclrtMemcpy(*memory, bytes, values, bytes, ACL_MEMCPY_HOST_TO_DEVICE) != ACL_SUCCESS) return NULL;
  return aclCreateTensor(&count, 1, ACL_FLOAT, NULL, 0, ACL_FORMAT_ND, &count, 1, *memory);
}

int main(void) {
  const float of_x[3] = {1, 1, 1}, of_y[3] = {3, 4, 5};
  float result[3] = {0, 0, 0}, two = 2;
  void *x_memory = NULL, *y_memory = NULL, *short_memory = NULL;
  uint64_t size = 0;
  aclOpExecutor* executor = NULL;
  aclrtStream stream = NULL;
  if (aclInit(NULL) != ACL_SUCCESS || aclnnInit(NULL) != ACL_SUCCESS) return 1;
  if (aclrtSetDevice(0) != ACL_SUCCESS || aclrtCreateStream(&stream) != ACL_SUCCESS) return 2;
  aclTensor* x = tensor(of_x, 3, &x_memory);
  aclTensor* y = tensor(of_y, 3, &y_memory);
  aclTensor* shorter = tensor(of_y, 2, &short_memory);
  aclScalar* alpha = aclCreateScalar(&two, ACL_FLOAT);
  if (aclnnInplaceAddGetWorkspaceSize(x, y, alpha, &size, &executor) != ACL_SUCCESS || size != 0) return 3;
  if (aclnnInplaceAdd(NULL, 0, executor, stream) != ACL_SUCCESS) return 4;
  if (aclrtSynchronizeStream(stream) != ACL_SUCCESS) return 5;
  if (aclrtMemcpy(result, sizeof(result), x_memory, sizeof(result), ACL_MEMCPY_DEVICE_TO_HOST) != ACL_SUCCESS)
    return 6;
  printf("%g %g %g\n", result[0], result[1], result[2]);
  const aclnnStatus status = aclnnInplaceAddGetWorkspaceSize(x, shorter, alpha, &size, &executor);
  const char* text = aclGetRecentErrMsg();
  const char* reason = text != NULL ? strstr(text, "other has shape") : NULL;
  printf("%.19s, %d\n", reason != NULL ? reason : "no reason", (int)status);
  if (aclDestroyTensor(x) != ACL_SUCCESS || aclDestroyTensor(y) != ACL_SUCCESS) return 7;
  if (aclDestroyTensor(shorter) != ACL_SUCCESS || aclDestroyScalar(alpha) != ACL_SUCCESS) return 8;
  if (aclrtDestroyStream(stream) != ACL_SUCCESS || aclrtResetDevice(0) != ACL_SUCCESS) return 9;
  return aclnnFinalize() == ACL_SUCCESS && aclFinalize() == ACL_SUCCESS ? 0 : 10;
}
