# opfuse_layer(NAME [LINK targets...] [LINK_INTERNAL targets...] [EXCLUDE files...])
# Declares the static library opfuse_NAME from every *.cc below opfuse/NAME and the GoogleTest
# program opfuse_NAME_test from every *_test.cc there. New files are picked up without an edit; a
# folder that holds headers only is an INTERFACE library.
#   LINK           layers below, handed on to whoever links this one
#   LINK_INTERNAL  third-party libraries used in .cc files, not handed on
function(opfuse_layer name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "LINK;LINK_INTERNAL;EXCLUDE")
  opfuse_glob("${name}/" sources tests ${arg_EXCLUDE})
  opfuse_library(${name} SOURCES ${sources} LINK ${arg_LINK} LINK_INTERNAL ${arg_LINK_INTERNAL})
  opfuse_gtest(${name} SOURCES ${tests} LINK opfuse_${name} ${arg_LINK_INTERNAL})
endfunction()

# Splits the *.cc files below opfuse/FOLDER into sources and tests; further arguments are left out.
function(opfuse_glob folder out_sources out_tests)
  set(root "${PROJECT_SOURCE_DIR}/opfuse/${folder}")
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${root}*.cc")
  set(tests "${sources}")
  list(FILTER sources EXCLUDE REGEX "_test\\.cc$")
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  list(TRANSFORM ARGN PREPEND "${root}" OUTPUT_VARIABLE left_out)
  list(REMOVE_ITEM sources ${left_out})
  set(${out_sources} "${sources}" PARENT_SCOPE)
  set(${out_tests} "${tests}" PARENT_SCOPE)
endfunction()

function(opfuse_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LINK;LINK_INTERNAL")
  if(NOT arg_SOURCES)
    add_library(opfuse_${name} INTERFACE)
    target_include_directories(opfuse_${name} INTERFACE "${PROJECT_SOURCE_DIR}")
    target_link_libraries(opfuse_${name} INTERFACE ${arg_LINK} opfuse_sanitizers)
    return()
  endif()
  add_library(opfuse_${name} STATIC ${arg_SOURCES})
  target_include_directories(opfuse_${name} PUBLIC "${PROJECT_SOURCE_DIR}")
  target_link_libraries(opfuse_${name}
    PUBLIC ${arg_LINK} opfuse_sanitizers
    PRIVATE ${arg_LINK_INTERNAL} opfuse_warnings)
endfunction()

# opfuse_gtest(NAME SOURCES files... LINK targets...): nothing is declared when there is no file.
# Tests run in the root of the source tree, which is also OPFUSE_SOURCE_DIR.
function(opfuse_gtest name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LINK")
  if(NOT OPFUSE_TESTS OR NOT arg_SOURCES)
    return()
  endif()
  add_executable(opfuse_${name}_test ${arg_SOURCES})
  target_compile_definitions(opfuse_${name}_test PRIVATE OPFUSE_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  # The compiler takes two thirds of the time for them so; what they test is optimized as ever.
  target_compile_options(opfuse_${name}_test PRIVATE -O1)
  target_link_libraries(opfuse_${name}_test PRIVATE ${arg_LINK} opfuse_warnings GTest::gmock_main)
  gtest_discover_tests(opfuse_${name}_test DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
    TEST_PREFIX "${name}/" WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}" PROPERTIES TIMEOUT 300)
endfunction()
