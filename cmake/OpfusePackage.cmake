# The package for C++ programs, `cmake --install BUILD --component cpp --prefix DIR`: libopfuse_ops.so,
# opfuse/torch.h and a configuration with the target opfuse::ops. In a wheel it lies in the folder of
# the Python package.
set(prefix)
set(library_folder lib)
if(SKBUILD)
  set(prefix opfuse/)
  set(library_folder)  # Python looks for the library beside its own files
endif()
set(config_folder "${prefix}lib/cmake/opfuse")
configure_file("${PROJECT_SOURCE_DIR}/cmake/opfuseConfig.cmake.in" "${PROJECT_BINARY_DIR}/generated/opfuseConfig.cmake" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/generated/opfuseConfig.cmake"
  DESTINATION "${config_folder}" COMPONENT cpp)
install(FILES "${PROJECT_SOURCE_DIR}/opfuse/torch/cpp_api.h"
  DESTINATION "${prefix}include/opfuse" RENAME torch.h COMPONENT cpp)
install(TARGETS opfuse_torch_ops LIBRARY DESTINATION "${prefix}${library_folder}" COMPONENT cpp)
