# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` puts where: headers, libraries, tool, mica.pc, the CMake package, man pages,
# bash completion and the tuning records.
include(CMakePackageConfigHelpers)

install(DIRECTORY include/mica DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(TARGETS mica_shared mica_static EXPORT mica-targets)
if(TARGET mica)
  # The tool finds the library from where it lies itself: no ldconfig, no LD_LIBRARY_PATH.
  cmake_path(RELATIVE_PATH CMAKE_INSTALL_FULL_LIBDIR BASE_DIRECTORY ${CMAKE_INSTALL_FULL_BINDIR}
    OUTPUT_VARIABLE lib_from_bin)
  set_target_properties(mica PROPERTIES INSTALL_RPATH "$ORIGIN/${lib_from_bin}")
  install(TARGETS mica)
  install(FILES tools/completion/mica.bash RENAME mica
    DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
endif()

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/mica)
install(EXPORT mica-targets NAMESPACE mica:: DESTINATION ${package_dir})
configure_package_config_file(cmake/mica-config.cmake.in mica-config.cmake
  INSTALL_DESTINATION ${package_dir} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(mica-config-version.cmake COMPATIBILITY SameMajorVersion)
install(FILES ${PROJECT_BINARY_DIR}/mica-config.cmake ${PROJECT_BINARY_DIR}/mica-config-version.cmake
  DESTINATION ${package_dir})

# Relative to the file, so that an installed tree can be moved.
cmake_path(ABSOLUTE_PATH CMAKE_INSTALL_LIBDIR BASE_DIRECTORY ${CMAKE_INSTALL_PREFIX}
  OUTPUT_VARIABLE libdir)
cmake_path(RELATIVE_PATH CMAKE_INSTALL_PREFIX BASE_DIRECTORY ${libdir}/pkgconfig
  OUTPUT_VARIABLE prefix_from_pc)
cmake_path(RELATIVE_PATH libdir BASE_DIRECTORY ${CMAKE_INSTALL_PREFIX}
  OUTPUT_VARIABLE libdir_from_prefix)
list(TRANSFORM mica_private_libraries PREPEND -l OUTPUT_VARIABLE private_flags)
list(JOIN private_flags " " private_flags)
configure_file(cmake/mica.pc.in mica.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/mica.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

if(EXISTS ${PROJECT_SOURCE_DIR}/records)
  install(DIRECTORY records/ DESTINATION ${CMAKE_INSTALL_DATADIR}/mica/records)
endif()
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
