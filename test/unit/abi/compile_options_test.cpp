#include "abi_test.h"
#include "acl/acl_op_compiler.h"

namespace {

using AclCompileOptions = AclTest;

std::string option(aclCompileOpt opt) {
  std::string text(aclGetCompileoptSize(opt), '?');
  EXPECT_EQ(aclGetCompileopt(opt, text.data(), text.size()), ACL_SUCCESS);
  EXPECT_EQ(text.back(), '\0');
  text.pop_back();
  return text;
}

TEST_F(AclCompileOptions, AreKept) {
  EXPECT_EQ(option(ACL_DEBUG_DIR), "");
  EXPECT_EQ(option(ACL_OP_JIT_COMPILE), "disable") << "kernels serve all shapes";
  ASSERT_EQ(aclSetCompileopt(ACL_OP_PRECISION_MODE, "high_precision"), ACL_SUCCESS);
  ASSERT_EQ(aclSetCompileopt(ACL_DEBUG_DIR, std::string(4096, 'd').c_str()), ACL_SUCCESS);
  EXPECT_EQ(option(ACL_OP_PRECISION_MODE), "high_precision");
  EXPECT_EQ(option(ACL_DEBUG_DIR), std::string(4096, 'd'));
  ASSERT_EQ(aclSetCompileopt(ACL_DEBUG_DIR, ""), ACL_SUCCESS);
  EXPECT_EQ(option(ACL_DEBUG_DIR), "");
}

TEST_F(AclCompileOptions, BadArgumentsAreRefused) {
  expect_failure(aclSetCompileopt(static_cast<aclCompileOpt>(17), "x"), ACL_ERROR_INVALID_PARAM, "opt is 17");
  expect_failure(aclSetCompileopt(static_cast<aclCompileOpt>(-1), "x"), ACL_ERROR_INVALID_PARAM, "opt is -1");
  expect_failure(aclSetCompileopt(ACL_DEBUG_DIR, nullptr), ACL_ERROR_INVALID_PARAM, "value is null");
  expect_failure(aclSetCompileopt(ACL_DEBUG_DIR, std::string(4097, 'd').c_str()), ACL_ERROR_INVALID_PARAM,
                 "4096");
  EXPECT_EQ(aclGetCompileoptSize(static_cast<aclCompileOpt>(17)), 0u);
  (void)aclGetRecentErrMsg();
  char text[8] = "before!";
  expect_failure(aclGetCompileopt(ACL_OP_JIT_COMPILE, text, 7), ACL_ERROR_INVALID_PARAM, "8 bytes");
  EXPECT_STREQ(text, "before!");
  expect_failure(aclGetCompileopt(ACL_OP_JIT_COMPILE, nullptr, 8), ACL_ERROR_INVALID_PARAM, "value is null");
  EXPECT_EQ(aclGetCompileopt(ACL_OP_JIT_COMPILE, text, 8), ACL_SUCCESS);
  EXPECT_STREQ(text, "disable");
}

using AclAttributes = AclTest;

TEST_F(AclAttributes, OfTheSoftware) {
  const aclCannAttr* list = nullptr;
  size_t count = 0;
  ASSERT_EQ(aclGetCannAttributeList(&list, &count), ACL_SUCCESS);
  const std::vector<aclCannAttr> has(list, list + count);
  EXPECT_EQ(has, (std::vector{ACL_CANN_ATTR_INF_NAN, ACL_CANN_ATTR_BF16}));
  int32_t value = -1;
  for (const aclCannAttr attribute : has) {
    ASSERT_EQ(aclGetCannAttribute(attribute, &value), ACL_SUCCESS);
    EXPECT_EQ(value, 1);
  }
  ASSERT_EQ(aclGetCannAttribute(ACL_CANN_ATTR_JIT_COMPILE, &value), ACL_SUCCESS);
  EXPECT_EQ(value, 0);
  expect_failure(aclGetCannAttribute(ACL_CANN_ATTR_UNDEFINED, &value), ACL_ERROR_INVALID_PARAM,
                 "cannAttr is -1");
  expect_failure(aclGetCannAttribute(ACL_CANN_ATTR_BF16, nullptr), ACL_ERROR_INVALID_PARAM, "value is null");
  expect_failure(aclGetCannAttributeList(nullptr, &count), ACL_ERROR_INVALID_PARAM, "cannAttrList is null");
  expect_failure(aclGetCannAttributeList(&list, nullptr), ACL_ERROR_INVALID_PARAM, "num is null");
}

}  // namespace
