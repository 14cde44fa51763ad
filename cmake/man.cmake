# SPDX-License-Identifier: Apache-2.0
# Man pages: docs/man/*.scd, where a line such as @environment@ stands for a list that the headers
# hold. Without scdoc there are none.
if(SCDOC)
  add_executable(mica_man tools/man.c)
  target_include_directories(mica_man PRIVATE include src)
  target_link_libraries(mica_man PRIVATE mica_flags)
  file(GLOB man_sources CONFIGURE_DEPENDS docs/man/*.scd)
  foreach(source ${man_sources})
    cmake_path(GET source STEM LAST_ONLY page) # mica.1.scd -> mica.1
    string(REGEX MATCH "[0-9]$" section ${page})
    add_custom_command(OUTPUT man/${page}
      COMMAND mica_man ${source} man/${page}.scd
      COMMAND ${SCDOC} < man/${page}.scd > man/${page}
      DEPENDS mica_man ${source} VERBATIM COMMENT "Writing man page ${page}")
    list(APPEND man_pages ${PROJECT_BINARY_DIR}/man/${page})
    install(FILES ${PROJECT_BINARY_DIR}/man/${page} DESTINATION ${CMAKE_INSTALL_MANDIR}/man${section})
  endforeach()
  file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/man)
  add_custom_target(mica_man_pages ALL DEPENDS ${man_pages})
endif()
