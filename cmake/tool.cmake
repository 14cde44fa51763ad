# SPDX-License-Identifier: Apache-2.0
# The command-line tool, on the public headers and the shared library only. All but main.c is a
# library of its own, so that unit tests reach it.
file(GLOB cli_sources CONFIGURE_DEPENDS cli/*.c)
if(MICA_TOOL AND cli_sources)
  if(JANSSON_LIBRARY AND JANSSON_INCLUDE)
    list(REMOVE_ITEM cli_sources ${PROJECT_SOURCE_DIR}/cli/main.c)
    add_library(mica_cli STATIC ${cli_sources})
    target_include_directories(mica_cli PUBLIC include cli)
    target_include_directories(mica_cli SYSTEM PUBLIC ${JANSSON_INCLUDE})
    target_link_libraries(mica_cli PRIVATE mica_flags PUBLIC ${JANSSON_LIBRARY} m Threads::Threads)
    add_executable(mica cli/main.c)
    target_link_libraries(mica PRIVATE mica_flags mica_cli mica_shared)
  else()
    message(WARNING "jansson was not found: the tool `mica` is not built")
  endif()
endif()
