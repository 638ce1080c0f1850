# opfuse_torch: libopfuse_torch.so, the only target with torch headers.
# torch is found by asking Python_EXECUTABLE where it lies, without importing it, so that no other
# libtorch of the machine can win. find_package(Torch) is avoided: it links more than we use.
find_package(Python 3.9 REQUIRED COMPONENTS Interpreter)
execute_process(
  COMMAND "${Python_EXECUTABLE}" -c
    "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"
  OUTPUT_VARIABLE opfuse_torch_root OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
if(NOT EXISTS "${opfuse_torch_root}/lib/libtorch_cpu.so")
  message(FATAL_ERROR
    "torch: expected it in ${Python_EXECUTABLE}, found none.\n"
    "Name the interpreter that has it by -DPython_EXECUTABLE=..., or build the core and the "
    "program without it by -DOPFUSE_TORCH=OFF.")
endif()

file(STRINGS "${opfuse_torch_root}/version.py" opfuse_torch_version REGEX "^__version__")
string(REGEX REPLACE "^[^'\"]*['\"]([^'\"]*)['\"].*" "\\1" opfuse_torch_version
  "${opfuse_torch_version}")
if(opfuse_torch_version VERSION_LESS 2.10)
  message(FATAL_ERROR "torch: expected 2.10 or newer, found ${opfuse_torch_version} "
    "in ${opfuse_torch_root}")
endif()
message(STATUS "torch ${opfuse_torch_version}: ${opfuse_torch_root}")

# A torch with the old std::string would load and then fail at the first string.
file(STRINGS "${opfuse_torch_root}/share/cmake/Torch/TorchConfig.cmake" old_abi
  REGEX "_GLIBCXX_USE_CXX11_ABI=0")
if(old_abi)
  message(FATAL_ERROR "torch: expected the C++11 ABI of libstdc++, found the old one "
    "in ${opfuse_torch_root}")
endif()

# Headers and libraries by path: no libtorch_python, no libpython, no OpenMP of our own.
add_library(opfuse_libtorch INTERFACE)
target_include_directories(opfuse_libtorch SYSTEM INTERFACE
  "${opfuse_torch_root}/include" "${opfuse_torch_root}/include/torch/csrc/api/include")
target_link_libraries(opfuse_libtorch INTERFACE
  "${opfuse_torch_root}/lib/libtorch_cpu.so" "${opfuse_torch_root}/lib/libc10.so")

# torch's headers take most of the time that a file with them takes to compile.
function(opfuse_torch_precompile name)
  if(OPFUSE_PCH)
    target_precompile_headers(${name} PRIVATE "${PROJECT_SOURCE_DIR}/opfuse/torch/precompiled.h")
    # ccache has to see what the precompiled header held.
    target_compile_options(${name} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
    if(opfuse_false_restrict)  # with a precompiled header the bug shows under more names
      target_compile_options(${name} PRIVATE -Wno-stringop-overflow -Wno-array-bounds)
    endif()
  endif()
endfunction()

# opfuse_torch_target(NAME): settings of everything compiled against torch. torch's inline code must
# be compiled as the wheel was, hence NDEBUG in every build type. No sanitizers: the host has none.
function(opfuse_torch_target name)
  target_compile_definitions(${name} PRIVATE NDEBUG
    OPFUSE_TORCH_VERSION="${opfuse_torch_version}")
  target_include_directories(${name} PRIVATE
    "${PROJECT_SOURCE_DIR}" "${PROJECT_BINARY_DIR}/generated")
  target_link_libraries(${name} PRIVATE
    opfuse_pipeline opfuse_ops opfuse_libtorch opfuse_warnings nlohmann_json::nlohmann_json)
  set_target_properties(${name} PROPERTIES JOB_POOL_COMPILE torch_pool)
  opfuse_torch_precompile(${name})
endfunction()

opfuse_glob("torch/" torch_sources torch_tests)
list(FILTER torch_sources EXCLUDE REGEX "/torch/ops/")
list(FILTER torch_tests EXCLUDE REGEX "/torch/ops/")
include(OpfuseTorchOps)
if(NOT torch_sources)
  return()
endif()
# Objects first, so that the tests reach what the library hides and no registration is dropped.
add_library(opfuse_torch_objects OBJECT ${torch_sources})
opfuse_torch_target(opfuse_torch_objects)

add_library(opfuse_torch SHARED $<TARGET_OBJECTS:opfuse_torch_objects>)
target_link_libraries(opfuse_torch PRIVATE opfuse_pipeline opfuse_ops opfuse_libtorch)
target_link_options(opfuse_torch PRIVATE -Wl,--no-undefined
  "-Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/opfuse_torch.map")
set_property(TARGET opfuse_torch APPEND PROPERTY
  LINK_DEPENDS "${PROJECT_SOURCE_DIR}/cmake/opfuse_torch.map")
# Python has loaded torch before us; the path beside site-packages/torch is only a fallback.
set_target_properties(opfuse_torch PROPERTIES
  LINKER_LANGUAGE CXX BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "$ORIGIN/../torch/lib")

if(OPFUSE_TESTS AND torch_tests)
  add_executable(opfuse_torch_test ${torch_tests} $<TARGET_OBJECTS:opfuse_torch_objects>)
  opfuse_torch_target(opfuse_torch_test)
  target_compile_definitions(opfuse_torch_test PRIVATE OPFUSE_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  target_compile_options(opfuse_torch_test PRIVATE -O1)
  target_link_libraries(opfuse_torch_test PRIVATE GTest::gmock_main)
  set_target_properties(opfuse_torch_test PROPERTIES BUILD_RPATH "${opfuse_torch_root}/lib")
  # One process for all: loading torch takes longer than most of the tests.
  add_test(NAME torch/all COMMAND opfuse_torch_test WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
  set_tests_properties(torch/all PROPERTIES TIMEOUT 600)
endif()
