# SPDX-License-Identifier: Apache-2.0
# The command-line tool, on the public headers and the shared library only.
file(GLOB cli_sources CONFIGURE_DEPENDS cli/*.c)
if(MICA_TOOL AND cli_sources)
  if(JANSSON_LIBRARY AND JANSSON_INCLUDE)
    add_executable(mica ${cli_sources})
    target_include_directories(mica SYSTEM PRIVATE ${JANSSON_INCLUDE})
    target_link_libraries(mica PRIVATE mica_flags mica_shared ${JANSSON_LIBRARY} m Threads::Threads)
  else()
    message(WARNING "jansson was not found: the tool `mica` is not built")
  endif()
endif()
