# SPDX-License-Identifier: Apache-2.0
# What is outside: OpenMP, xxHash's header and xz are needed; jansson, scdoc and python3 each switch on
# the part that uses them; cmocka and NumPy are the tests'. Nothing of oneDNN's or NVIDIA's is needed to
# build: they are opened at run time.
find_package(Threads REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS C)
find_path(XXHASH_INCLUDE xxhash.h REQUIRED)
find_program(XZ xz REQUIRED) # packs the kernel sources

find_library(JANSSON_LIBRARY jansson)
find_path(JANSSON_INCLUDE jansson.h)
find_path(ARGP_INCLUDE argp.h)   # of glibc, or of argp-standalone
find_library(ARGP_LIBRARY argp)  # of the latter
set(argp)
if(ARGP_LIBRARY)
  set(argp ${ARGP_LIBRARY})
endif()
find_library(CMOCKA_LIBRARY cmocka)
find_path(CMOCKA_INCLUDE cmocka.h)
find_program(SCDOC scdoc)
find_program(PYTHON3 python3)

# The same for people who link the static library: names only, so that what is installed does not
# depend on where this machine keeps its files.
set(mica_private_libraries ${OpenMP_C_LIB_NAMES} m dl)
list(REMOVE_DUPLICATES mica_private_libraries)
