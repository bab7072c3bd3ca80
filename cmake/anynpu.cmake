# How every target of the project is built, and the one function that declares a layer.

find_package(Threads REQUIRED)

add_library(anynpu_flags INTERFACE)
# A sum of a product is fused where the program says fma and nowhere else: results are the same bits everywhere.
target_compile_options(anynpu_flags INTERFACE -Wall -Wextra -Werror -ffp-contract=off
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>) # gcc 12 warns of its own strings, PR 105651
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  target_compile_options(anynpu_flags INTERFACE -march=x86-64-v3) # AVX2 is the documented minimum
endif()
if(ANYNPU_SANITIZE)
  # The checks that a sanitizer adds make gcc warn of reads of values that nothing has written, as its manual says.
  add_compile_options(-fsanitize=${ANYNPU_SANITIZE} -fno-omit-frame-pointer -Wno-maybe-uninitialized)
  add_link_options(-fsanitize=${ANYNPU_SANITIZE})
endif()
# The thread sanitizer does not understand libgomp's barriers; without OpenMP parallel_ranges is serial.
if(NOT ANYNPU_SANITIZE MATCHES "thread")
  find_package(OpenMP REQUIRED COMPONENTS CXX)
  target_link_libraries(anynpu_flags INTERFACE OpenMP::OpenMP_CXX)
endif()
target_link_libraries(anynpu_flags INTERFACE Threads::Threads)
target_include_directories(anynpu_flags INTERFACE ${PROJECT_SOURCE_DIR}/src)

# anynpu_layer(NAME [FOLDER...]): all .cpp files of the calling folder and of those in it, as a part of libanynpu.so.
function(anynpu_layer name)
  list(TRANSFORM ARGN APPEND /*.cpp OUTPUT_VARIABLE in_folders)
  file(GLOB sources CONFIGURE_DEPENDS *.cpp ${in_folders})
  add_library(anynpu_${name} OBJECT ${sources})
  target_link_libraries(anynpu_${name} PUBLIC anynpu_flags)
  target_link_libraries(anynpu PRIVATE anynpu_${name})
endfunction()

# What paths in the toolkit start with under the install prefix: a folder of the wheel, else nothing. Exported targets
# find the prefix by counting the folders of the path, where "." would be one more.
if(SKBUILD)
  set(toolkit anynpu/)
else()
  set(toolkit "")
endif()

# anynpu_toolkit_library(TARGET): a library of the toolkit, in the source tree as where it is installed.
function(anynpu_toolkit_library target)
  set_target_properties(${target} PROPERTIES
    LIBRARY_OUTPUT_DIRECTORY ${ANYNPU_PYTHON_DIR}/anynpu/lib64
    BUILD_WITH_INSTALL_RPATH ON
    INSTALL_RPATH "$ORIGIN")
  install(TARGETS ${target} EXPORT anynpu LIBRARY DESTINATION ${toolkit}lib64)
endfunction()
