# opfuse_fmt: fmt without its shared library. opfuse/base/format_library.cc is the compiled half of
# fmt 9; with another version each file compiles what it uses of fmt.
find_package(fmt REQUIRED)
add_library(opfuse_fmt INTERFACE)
if(fmt_VERSION VERSION_GREATER_EQUAL 9 AND fmt_VERSION VERSION_LESS 10)
  set(opfuse_no_fmt_library)
  target_include_directories(opfuse_fmt SYSTEM INTERFACE
    $<TARGET_PROPERTY:fmt::fmt-header-only,INTERFACE_INCLUDE_DIRECTORIES>)
else()
  set(opfuse_no_fmt_library format_library.cc)
  target_link_libraries(opfuse_fmt INTERFACE fmt::fmt-header-only)
endif()
