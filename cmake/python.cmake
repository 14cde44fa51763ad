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
