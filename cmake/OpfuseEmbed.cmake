# opfuse_embed(TARGET ACCESSOR RELATIVE_TO folder GLOBS patterns...)
# Adds a generated file to TARGET that defines opfuse::ACCESSOR() of opfuse/base/embedded.h over the
# files that match; each is named by its path relative to the folder. A new file is picked up by
# the next build. The bytes enter through the assembler's .incbin: quick for files of megabytes.
function(opfuse_embed target accessor)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "RELATIVE_TO" "GLOBS")
  file(GLOB files CONFIGURE_DEPENDS ${arg_GLOBS})
  list(SORT files)
  set(generated "${CMAKE_CURRENT_BINARY_DIR}/${accessor}.cc")
  set(list_file "${CMAKE_CURRENT_BINARY_DIR}/${accessor}.list")
  # file(GENERATE) rewrites the list only when it changes, so a removed file also triggers a build.
  file(GENERATE OUTPUT "${list_file}" CONTENT "$<JOIN:${files},\n>\n")
  add_custom_command(
    OUTPUT "${generated}"
    COMMAND "${CMAKE_COMMAND}" "-DACCESSOR=${accessor}" "-DRELATIVE_TO=${arg_RELATIVE_TO}"
      "-DLIST=${list_file}" "-DOUT=${generated}" -P "${PROJECT_SOURCE_DIR}/tools/embed.cmake"
    DEPENDS ${files} "${list_file}" "${PROJECT_SOURCE_DIR}/tools/embed.cmake"
    COMMENT "Embedding ${accessor}" VERBATIM)
  set_source_files_properties("${generated}" PROPERTIES OBJECT_DEPENDS "${files}")
  target_sources(${target} PRIVATE "${generated}")
endfunction()
