# opfuse_ops: the operator library without torch.
# A folder opfuse/ops/NAME/ holds kernel texts: each NAME/*.cc is compiled once per instruction set
# level, into the namespace opfuse::ops::LEVEL (OPFUSE_LEVEL). opfuse/ops/*.cc are ordinary files.
# A new folder is picked up by the next build.
include(CheckCXXCompilerFlag)

set(opfuse_levels generic)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64|amd64")
  list(APPEND opfuse_levels avx2 avx512 avx512bf16)
endif()
set(opfuse_flags_generic)
set(opfuse_flags_avx2 -mavx2 -mfma -mf16c)
set(opfuse_flags_avx512 ${opfuse_flags_avx2}
  -mavx512f -mavx512bw -mavx512dq -mavx512vl -mprefer-vector-width=512)
set(opfuse_flags_avx512bf16 ${opfuse_flags_avx512} -mavx512bf16)

opfuse_glob("ops/" ops_sources ops_tests)
set(ops_kernels "${ops_sources}")
list(FILTER ops_kernels INCLUDE REGEX "/ops/[^/]+/[^/]+\\.cc$")
list(FILTER ops_sources EXCLUDE REGEX "/ops/[^/]+/[^/]+\\.cc$")

foreach(level IN LISTS opfuse_levels)
  set(target opfuse_ops_${level})
  add_library(${target} OBJECT ${ops_kernels})
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}")
  target_compile_definitions(${target} PRIVATE OPFUSE_LEVEL=${level})
  # No -ffast-math: NaN and infinity must come out as torch's do, and its start-up code would set
  # flush-to-zero for the whole process. Optimized in every build type: without inlining, helpers would
  # become functions of their own.
  target_compile_options(${target} PRIVATE ${opfuse_flags_${level}}
    -O2 -ftree-vectorize -fvect-cost-model=dynamic -fno-math-errno -fno-trapping-math -ffp-contract=fast
    # g++ 12 finds its own _mm512_undefined_ps uninitialized (its bug 105593).
    -Wno-psabi -Wno-uninitialized -Wno-maybe-uninitialized)
  target_link_libraries(${target} PRIVATE opfuse_warnings opfuse_sanitizers)
  list(APPEND ops_objects $<TARGET_OBJECTS:${target}>)
endforeach()

add_library(opfuse_ops STATIC ${ops_sources} ${ops_objects})
target_include_directories(opfuse_ops PUBLIC "${PROJECT_SOURCE_DIR}")
target_link_libraries(opfuse_ops PUBLIC opfuse_base opfuse_sanitizers PRIVATE opfuse_warnings)
opfuse_gtest(ops SOURCES ${ops_tests} LINK opfuse_ops)
if(TARGET opfuse_ops_test)
  target_compile_options(opfuse_ops_test PRIVATE -O2)
  list(REMOVE_DUPLICATES opfuse_levels)
  add_test(NAME ops/isa_objects
    COMMAND "${CMAKE_COMMAND}" -E env "NM=${CMAKE_NM}"
      sh "${PROJECT_SOURCE_DIR}/tools/check_isa_objects.sh" "$<TARGET_FILE:opfuse_ops>" ${opfuse_levels})
endif()
