# SPDX-License-Identifier: Apache-2.0
# How everything here is compiled. Targets take it by linking mica_flags.
set(CMAKE_C_STANDARD 17)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS ON)
set(CMAKE_C_VISIBILITY_PRESET hidden)

add_library(mica_flags INTERFACE)
target_compile_options(mica_flags INTERFACE -Wall -Wextra -Wpedantic -Wconversion)
# Where clang alone warns. Zero means default here, so tables leave fields out on purpose, and rows may
# mix positions and names; C23 lets a macro do without variable arguments; a loop that "omp simd"
# could not vectorise in some build is no mistake.
if(CMAKE_C_COMPILER_ID MATCHES Clang)
  target_compile_options(mica_flags INTERFACE -Wno-missing-field-initializers
    -Wno-gnu-zero-variadic-macro-arguments -Wno-pass-failed)
endif()
if(MICA_WERROR)
  target_compile_options(mica_flags INTERFACE -Werror)
endif()
# Nobody reads errno after sqrt() or the floating-point exception flags: without these two, loops
# with sqrt or a comparison are not vectorised.
target_compile_options(mica_flags INTERFACE -fno-math-errno -fno-trapping-math)

if(MICA_FUZZ)
  list(APPEND sanitize_options -fsanitize=fuzzer-no-link)
endif()
if(MICA_SANITIZE)
  list(APPEND sanitize_options -fsanitize=${MICA_SANITIZE} -fno-sanitize-recover=all
    -fno-omit-frame-pointer -g1)
  if(MICA_SANITIZE MATCHES undefined)
    list(APPEND sanitize_options -fsanitize=float-cast-overflow)
  endif()
endif()
target_compile_options(mica_flags INTERFACE ${sanitize_options})
target_link_options(mica_flags INTERFACE ${sanitize_options})
