# SPDX-License-Identifier: Apache-2.0
# libmica: compiled once, position independent, and linked twice. Kernel sources are embedded.
file(GLOB_RECURSE kernels RELATIVE ${PROJECT_SOURCE_DIR}/src CONFIGURE_DEPENDS
  src/ops/*.cu src/ops/*.cuh src/ops/*_args.h src/ops/*_body.h src/kernels/*)
list(TRANSFORM kernels PREPEND ${PROJECT_SOURCE_DIR}/src/ OUTPUT_VARIABLE kernel_paths)
add_executable(mica_embed tools/embed.c)
target_link_libraries(mica_embed PRIVATE mica_flags)
# lc, lp and pb are those that src/base/lzma.c reads.
add_custom_command(OUTPUT kernels.c
  COMMAND mica_embed ${PROJECT_SOURCE_DIR}/src kernels.txt ${kernels}
  COMMAND ${XZ} --format=lzma --lzma1=preset=9e,lc=3,lp=0,pb=0 --stdout kernels.txt > kernels.lzma
  COMMAND mica_embed --packed kernels.txt kernels.lzma kernels.c
  DEPENDS mica_embed ${kernel_paths} VERBATIM COMMENT "Embedding the kernel sources")
add_custom_command(OUTPUT records.c
  COMMAND mica_embed --text mica_shipped_records ${PROJECT_SOURCE_DIR}/data/records.txt records.c
  DEPENDS mica_embed data/records.txt VERBATIM COMMENT "Embedding the records")

file(GLOB_RECURSE sources CONFIGURE_DEPENDS src/*.c)
# Sources called *_real.c are compiled twice, for float and for double, by way of two that include them.
file(GLOB_RECURSE reals RELATIVE ${PROJECT_SOURCE_DIR} CONFIGURE_DEPENDS src/*_real.c)
foreach(real ${reals})
  list(REMOVE_ITEM sources ${PROJECT_SOURCE_DIR}/${real})
  string(REGEX REPLACE "^src/" "" included ${real})
  foreach(is_f64 0 1)
    math(EXPR bits "32 + 32 * ${is_f64}")
    string(REGEX REPLACE "_real\\.c$" "_f${bits}.c" twin ${PROJECT_BINARY_DIR}/${real})
    file(CONFIGURE OUTPUT ${twin} CONTENT "#define REAL_F64 ${is_f64}\n#include \"${included}\"\n")
    list(APPEND sources ${twin})
  endforeach()
endforeach()
# Where vectors of 512 bits are, gcc's loops would use half of one; these compute all the time.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set_source_files_properties(src/ops/attention/cpu/attention_cpu_kernels.c PROPERTIES
    COMPILE_OPTIONS -mprefer-vector-width=512)
endif()
# -O3 is for what computes on a CPU: the folders named cpu. What plans and checks would only grow by
# it, by a twentieth of the library. So would loops of f64 (*_f64.c), which few want, conversions,
# rotations and what surrounds oneDNN: vectors are all that these need. And of gemm's packing it would
# make copies for strides of 1. Operations and graphs plan with -O1: they are half of all sources, run
# once a plan but for the calls that launch, and take a quarter less time to compile.
set(planning ${sources})
list(FILTER planning EXCLUDE REGEX "/src/(.*/)?cpu/")
set(lean_loops ${sources})
list(FILTER lean_loops INCLUDE REGEX "/cpu/.*_f64\\.c$|/ops/rope/cpu/|/ops/softmax/variants/cpu/|/ops/quantize_blocks/cpu/|/ops/convert/cpu/convert\\.c$|/pointwise/cpu/functions_f32\\.c$|_onednn\\.c$")
set_source_files_properties(${planning} PROPERTIES COMPILE_OPTIONS $<$<CONFIG:Release>:-O2>)
set(planned_once ${planning})
list(FILTER planned_once INCLUDE REGEX "/src/(ops|graph)/")
list(FILTER planned_once EXCLUDE REGEX "_ref\\.c$")
set_source_files_properties(${planned_once} PROPERTIES COMPILE_OPTIONS $<$<CONFIG:Release>:-O1>)
set_source_files_properties(${lean_loops} PROPERTIES
  COMPILE_OPTIONS "$<$<CONFIG:Release>:-O2;-ftree-vectorize>")
set_source_files_properties(src/ops/gemm/cpu/gemm_cpu.c PROPERTIES
  COMPILE_OPTIONS $<$<C_COMPILER_ID:GNU>:-fno-version-loops-for-strides>)
# Bits that are those of the kernel: each product and sum is rounded by itself.
set(rounded ${sources})
list(FILTER rounded INCLUDE REGEX "/ops/random/|/ops/sample/|/ops/speculate/|/ops/softmax/variants/|/ops/quantize_blocks/|/ops/moe_route/|/ops/grid_sample/|/ops/roi_align/|/ops/nms/|/ops/deform_conv/")
set_property(SOURCE ${rounded} APPEND PROPERTY COMPILE_OPTIONS -ffp-contract=off)
# Fuzz targets plan and run nothing: what computes need not be fast there, and takes half of the build.
if(MICA_FUZZ)
  set(idle ${sources})
  list(FILTER idle INCLUDE REGEX "/cpu/|_ref\\.c$")
  set_property(SOURCE ${idle} APPEND PROPERTY COMPILE_OPTIONS -O0)
endif()
add_library(mica_objects OBJECT ${sources} kernels.c records.c)
set_target_properties(mica_objects PROPERTIES POSITION_INDEPENDENT_CODE ON)
target_include_directories(mica_objects PRIVATE include src)
target_include_directories(mica_objects SYSTEM PRIVATE ${XXHASH_INCLUDE})
target_link_libraries(mica_objects PRIVATE mica_flags OpenMP::OpenMP_C Threads::Threads)
# Callers' threads, and OpenMP's, may have small stacks: runs take what is large from src/cpu/scratch.h.
# Plans are built where there is room (src/base/system/thread.h). Other compilers and sanitizers, which spread
# variables out, keep other frames.
if(CMAKE_C_COMPILER_ID STREQUAL GNU AND NOT MICA_SANITIZE AND NOT MICA_FUZZ)
  set(runs ${sources})
  list(FILTER runs INCLUDE REGEX "/cpu/|_ref\\.c$")
  target_compile_options(mica_objects PRIVATE $<$<CONFIG:Release>:-Wframe-larger-than=28672>)
  set_property(SOURCE ${runs} APPEND PROPERTY COMPILE_OPTIONS $<$<CONFIG:Release>:-Wframe-larger-than=16384>)
endif()
# C throws nothing: tables to unwind the stack would be a twentieth of the library.
target_compile_options(mica_objects PRIVATE $<$<CONFIG:Release>:-fno-asynchronous-unwind-tables>)

set(link_libraries OpenMP::OpenMP_C Threads::Threads m ${CMAKE_DL_LIBS})

# Exported is what the headers declare with MICA_API, by name: hidden visibility alone lets through
# the resolvers that gcc makes for target_clones. tests/abi/symbols.txt is the accepted list.
file(GLOB headers CONFIGURE_DEPENDS include/mica/*.h)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${headers})
set(exported)
foreach(header ${headers})
  file(STRINGS ${header} declarations REGEX "^MICA_API [^(]*mica_[a-z0-9_]*\\(")
  foreach(declaration ${declarations})
    string(REGEX MATCH "mica_[a-z0-9_]*\\(" name "${declaration}")
    string(REPLACE "(" "" name "${name}")
    list(APPEND exported ${name})
  endforeach()
endforeach()
list(JOIN exported ";\n    " exported_names)
file(CONFIGURE OUTPUT mica.map CONTENT "MICA_0.1 {\nglobal:\n    ${exported_names};\nlocal:\n    *;\n};\n" @ONLY)
set(version_script ${PROJECT_BINARY_DIR}/mica.map)
list(JOIN exported "\n" exported_names)
file(CONFIGURE OUTPUT mica.exported CONTENT "${exported_names}\n" @ONLY)

add_library(mica_shared SHARED $<TARGET_OBJECTS:mica_objects>)
add_library(mica::mica ALIAS mica_shared)
set_target_properties(mica_shared PROPERTIES OUTPUT_NAME mica EXPORT_NAME mica
  VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}
  LINK_DEPENDS ${version_script})
target_link_libraries(mica_shared PRIVATE mica_flags ${link_libraries})
# nodelete: OpenMP's threads and thread-exit handlers outlive a dlclose.
target_link_options(mica_shared PRIVATE -Wl,--version-script=${version_script}
  -Wl,-Bsymbolic -Wl,-z,relro -Wl,-z,now -Wl,-z,nodelete)
if(NOT MICA_SANITIZE AND NOT MICA_FUZZ)
  target_link_options(mica_shared PRIVATE -Wl,--no-undefined)
endif()

# Tables full of addresses: packed, their relocations are a fiftieth of the library less. The loader has
# to know it, that of glibc 2.36 and later; for older ones: -DMICA_PACKED_RELOCATIONS=OFF.
include(CheckCSourceCompiles)
set(CMAKE_REQUIRED_LINK_OPTIONS -Wl,-z,pack-relative-relocs -Wl,--fatal-warnings)
check_c_source_compiles("#include <features.h>
  #if !__GLIBC_PREREQ(2, 36)
  #error
  #endif
  int main(void) { return 0; }" MICA_PACKED_RELOCATIONS)
unset(CMAKE_REQUIRED_LINK_OPTIONS)
if(MICA_PACKED_RELOCATIONS)
  target_link_options(mica_shared PRIVATE -Wl,-z,pack-relative-relocs)
endif()

# For what looks inside: the unit tests.
add_library(mica_inside STATIC EXCLUDE_FROM_ALL $<TARGET_OBJECTS:mica_objects>)
target_link_libraries(mica_inside PRIVATE mica_flags PUBLIC ${link_libraries})
target_include_directories(mica_inside PUBLIC include)

add_library(mica_static STATIC $<TARGET_OBJECTS:mica_objects>)
add_library(mica::static ALIAS mica_static)
set_target_properties(mica_static PROPERTIES OUTPUT_NAME mica EXPORT_NAME static)
target_link_libraries(mica_static
  PRIVATE $<BUILD_INTERFACE:mica_flags>
  INTERFACE "$<BUILD_INTERFACE:${link_libraries}>" "$<INSTALL_INTERFACE:${mica_private_libraries}>")

# The archive that is installed has one member, in which everything is local but what the shared library
# exports: a program's own `geometry` or `walk` cannot meet ours. Sanitizers keep books by object, and
# objects for optimisation at link time (-flto) have no code yet: those are left as they are.
set(MICA_CLOSED_ARCHIVE ON)
if(MICA_SANITIZE OR MICA_FUZZ OR CMAKE_INTERPROCEDURAL_OPTIMIZATION OR CMAKE_C_FLAGS MATCHES "-flto")
  set(MICA_CLOSED_ARCHIVE OFF)
endif()
if(MICA_CLOSED_ARCHIVE)
  set(one ${PROJECT_BINARY_DIR}/mica.o)
  add_custom_command(TARGET mica_static POST_BUILD
    COMMAND ${CMAKE_C_COMPILER} -r -nostdlib -Wl,--force-group-allocation -o ${one}
      -Wl,--whole-archive $<TARGET_FILE:mica_static> -Wl,--no-whole-archive
    COMMAND ${CMAKE_OBJCOPY} --keep-global-symbols=${PROJECT_BINARY_DIR}/mica.exported ${one}
    COMMAND ${CMAKE_COMMAND} -E rm $<TARGET_FILE:mica_static>
    COMMAND ${CMAKE_AR} qcs $<TARGET_FILE:mica_static> ${one}
    COMMAND ${CMAKE_COMMAND} -E rm ${one}
    VERBATIM COMMENT "Closing the static library")
  set_property(TARGET mica_static APPEND PROPERTY LINK_DEPENDS ${PROJECT_BINARY_DIR}/mica.exported)
endif()

foreach(library mica_shared mica_static)
  target_include_directories(${library} INTERFACE
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
endforeach()
