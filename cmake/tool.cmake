# SPDX-License-Identifier: Apache-2.0
# The command-line tool, on the public headers and the shared library only. All but main.c is a
# library of its own, so that unit tests can look inside.
file(GLOB_RECURSE cli_sources CONFIGURE_DEPENDS cli/*.c)
list(FILTER cli_sources EXCLUDE REGEX "cli/main\\.c$")
if(MICA_TOOL AND cli_sources)
  if(JANSSON_LIBRARY AND JANSSON_INCLUDE AND ARGP_INCLUDE)
    # The demonstration's digits travel inside the tool.
    add_custom_command(OUTPUT digits_csv.c
      COMMAND sh -c "gzip -dc '${PROJECT_SOURCE_DIR}/data/digits.csv.gz' > digits.csv"
      COMMAND mica_embed --text digits_csv ${CMAKE_CURRENT_BINARY_DIR}/digits.csv digits_csv.c
      DEPENDS mica_embed data/digits.csv.gz VERBATIM)
    add_library(mica_cli STATIC ${cli_sources} ${CMAKE_CURRENT_BINARY_DIR}/digits_csv.c)
    target_include_directories(mica_cli PUBLIC include cli)
    target_include_directories(mica_cli SYSTEM PUBLIC ${JANSSON_INCLUDE} ${ARGP_INCLUDE})
    target_link_libraries(mica_cli PUBLIC mica_flags ${JANSSON_LIBRARY} ${argp} m Threads::Threads)
    target_compile_options(mica_cli PRIVATE $<$<CONFIG:Release>:-O2>)
    target_compile_definitions(mica_cli PRIVATE MICA_LIBRARY_FOLDER="${CMAKE_INSTALL_LIBDIR}")
    add_executable(mica cli/main.c)
    target_link_libraries(mica PRIVATE mica_flags mica_cli mica_shared)
  else()
    message(WARNING "jansson or argp.h was not found: the tool `mica` is not built")
  endif()
endif()
