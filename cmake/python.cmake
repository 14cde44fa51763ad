# SPDX-License-Identifier: Apache-2.0
# The Python package, laid into build/python: its source, and what is made of the public headers. A program
# that has this folder on PYTHONPATH and the library in MICA_LIBRARY imports mica; `make wheel` packs it.
if(NOT PYTHON3)
  return()
endif()
file(GLOB_RECURSE python_files CONFIGURE_DEPENDS python/mica/*.py python/mica/py.typed)
file(GLOB public_headers CONFIGURE_DEPENDS include/mica/*.h)
set(python_folder ${PROJECT_BINARY_DIR}/python)
set(package ${PROJECT_SOURCE_DIR}/tools/python/package)
add_custom_command(OUTPUT ${python_folder}/package.stamp
  COMMAND ${package} ${PROJECT_SOURCE_DIR} ${python_folder} ${CMAKE_C_COMPILER}
  COMMAND ${CMAKE_COMMAND} -E touch ${python_folder}/package.stamp
  DEPENDS ${python_files} ${public_headers} ${package} ${PROJECT_SOURCE_DIR}/tools/python/abi
  COMMENT "Laying the Python package into python/" VERBATIM)
add_custom_target(python_package ALL DEPENDS ${python_folder}/package.stamp)

# The tests' Python: one that has NumPy, which a python3 of somebody's own need not have.
if(MICA_TESTS AND NOT PYTHON3_NUMPY)
  foreach(program ${PYTHON3} /usr/bin/python3)
    execute_process(COMMAND ${program} -c "import numpy" RESULT_VARIABLE failed OUTPUT_QUIET ERROR_QUIET)
    if(NOT failed)
      set(PYTHON3_NUMPY ${program} CACHE FILEPATH "Python with NumPy, for the tests")
      break()
    endif()
  endforeach()
endif()

# The library and the tool as a wheel has them: linked anew, of the same objects. They find each other from
# where they lie (mica/lib, mica/bin), and their relocations are those that any loader knows.
if(NOT MICA_SANITIZE AND NOT MICA_FUZZ)
  add_library(mica_wheel SHARED EXCLUDE_FROM_ALL $<TARGET_OBJECTS:mica_objects>)
  set_target_properties(mica_wheel PROPERTIES OUTPUT_NAME mica SOVERSION ${PROJECT_VERSION_MAJOR}
    LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/wheel LINK_DEPENDS ${version_script}
    BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "$ORIGIN")
  target_include_directories(mica_wheel INTERFACE include)
  target_link_libraries(mica_wheel PRIVATE mica_flags ${link_libraries})
  target_link_options(mica_wheel PRIVATE -Wl,--version-script=${version_script} -Wl,-Bsymbolic -Wl,-z,relro
    -Wl,-z,now -Wl,-z,nodelete -Wl,--no-undefined)
  if(TARGET mica)
    find_library(JANSSON_ARCHIVE libjansson.a)
    add_executable(mica_wheel_tool EXCLUDE_FROM_ALL cli/main.c)
    set_target_properties(mica_wheel_tool PROPERTIES OUTPUT_NAME mica
      RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/wheel BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "$ORIGIN/../lib")
    target_include_directories(mica_wheel_tool PRIVATE include cli)
    # The archive first: mica_cli brings the shared library, which a wheel would have to bring too.
    target_link_libraries(mica_wheel_tool PRIVATE mica_flags $<TARGET_FILE:mica_cli>)
    if(JANSSON_ARCHIVE)
      target_link_libraries(mica_wheel_tool PRIVATE ${JANSSON_ARCHIVE})
    else()
      target_link_libraries(mica_wheel_tool PRIVATE ${JANSSON_LIBRARY})
    endif()
    target_link_libraries(mica_wheel_tool PRIVATE mica_wheel m Threads::Threads)
    add_dependencies(mica_wheel_tool mica_cli)
  endif()
  add_custom_target(wheel
    COMMAND ${PROJECT_SOURCE_DIR}/tools/python/wheel ${PROJECT_BINARY_DIR} ${PROJECT_BINARY_DIR}/dist
    DEPENDS mica_wheel python_package VERBATIM COMMENT "Packing the wheel")
  if(TARGET mica_wheel_tool)
    add_dependencies(wheel mica_wheel_tool)
  endif()
  # The tests look into a wheel.
  if(MICA_TESTS AND TARGET mica_wheel_tool)
    add_custom_target(tests_wheel ALL DEPENDS mica_wheel mica_wheel_tool)
  endif()
endif()

# What XLA calls for mica.jax, beside the package; plain C on the public headers, which knows XLA's by their layout.
if(NOT MICA_SANITIZE AND NOT MICA_FUZZ)
  foreach(target mica_xla mica_xla_wheel)
    add_library(${target} MODULE python/native/xla.c)
    set_target_properties(${target} PROPERTIES OUTPUT_NAME mica_xla BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "$ORIGIN")
    target_include_directories(${target} PRIVATE include)
    target_link_options(${target} PRIVATE -Wl,-z,relro -Wl,-z,now -Wl,-z,nodelete -Wl,--no-undefined)
  endforeach()
  target_link_libraries(mica_xla PRIVATE mica_flags mica_shared Threads::Threads)
  set_target_properties(mica_xla PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${python_folder}/mica/lib)
  target_link_libraries(mica_xla_wheel PRIVATE mica_flags mica_wheel Threads::Threads)
  set_target_properties(mica_xla_wheel PROPERTIES EXCLUDE_FROM_ALL ON LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/wheel)
  add_dependencies(wheel mica_xla_wheel)
  if(TARGET tests_wheel)
    add_dependencies(tests_wheel mica_xla_wheel)
  endif()
endif()
