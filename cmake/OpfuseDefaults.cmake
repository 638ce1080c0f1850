# Compiler settings that every target shares.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_SCAN_FOR_MODULES OFF)  # newer CMake scans every C++20 file for modules otherwise
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
# Everything may end up inside libopfuse_torch.so, which shows two functions to the outside.
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/lib")

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Debug, Release or RelWithDebInfo" FORCE)
endif()

find_program(OPFUSE_CCACHE ccache)
if(OPFUSE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Without the sloppiness ccache passes on every file that uses a precompiled header; with the base
  # directory, build folders and clones share what is in the cache, but for such files.
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CMAKE_COMMAND}" -E env "CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}"
    CCACHE_SLOPPINESS=pch_defines,time_macros "${OPFUSE_CCACHE}")
endif()

# At most two translation units with torch headers at once: each needs up to 1.4 GiB.
set_property(GLOBAL APPEND PROPERTY JOB_POOLS torch_pool=2)

add_library(opfuse_warnings INTERFACE)
target_compile_options(opfuse_warnings INTERFACE -Wall -Wextra)
if(OPFUSE_WERROR)
  target_compile_options(opfuse_warnings INTERFACE -Werror)
endif()
# g++ 12 sees an overlap in `"literal" + std::string` that is not there (its bug 105651).
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  set(opfuse_false_restrict ON)
  target_compile_options(opfuse_warnings INTERFACE -Wno-restrict)
endif()

add_library(opfuse_sanitizers INTERFACE)
if(OPFUSE_FUZZ)
  target_compile_options(opfuse_sanitizers INTERFACE -fsanitize=fuzzer-no-link)
endif()
if(OPFUSE_SANITIZE)
  target_compile_options(opfuse_sanitizers INTERFACE
    -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
  target_link_options(opfuse_sanitizers INTERFACE -fsanitize=address,undefined)
endif()
