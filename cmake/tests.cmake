# SPDX-License-Identifier: Apache-2.0
# The tests, found by their place. Labels: unit, api, examples, cases, emu, kernels, fuzz, lint, abi,
# docs, install, python, peers, front.

# Tests leave the user's kernel cache alone, threads that wait do not spin against each other, and small
# runs have as many as large ones, whatever else the machine does.
set(test_environment MICA_CACHE_DIR=${PROJECT_BINARY_DIR}/test-cache OMP_WAIT_POLICY=passive
  MICA_WAIT=spin)
# LeakSanitizer ends with a fatal error of its own where oneDNN's threads have been opened at run time:
# with it oneDNN stays closed; problem lines run with oneDNN, and leaks are not looked for there.
set(sanitizer_environment)
if(MICA_SANITIZE MATCHES address)
  set(sanitizer_environment MICA_ONEDNN=none
    "ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1:allocator_may_return_null=1"
    "UBSAN_OPTIONS=print_stacktrace=1")
endif()
if(MICA_SANITIZE MATCHES thread)
  # Archer, which comes with clang's OpenMP runtime, tells ThreadSanitizer what OpenMP's barriers and
  # locks order; without it every parallel loop looks like a race. oneDNN is not instrumented, so it
  # stays closed.
  find_file(ARCHER libarcher.so HINTS ${OpenMP_omp_LIBRARY}/.. PATHS /usr/lib/llvm-14/lib REQUIRED)
  set(sanitizer_environment MICA_ONEDNN=none "OMP_TOOL_LIBRARIES=${ARCHER}" OMP_NUM_THREADS=4
    "TSAN_OPTIONS=ignore_noninstrumented_modules=1:second_deadlock_stack=1:allocator_may_return_null=1")
endif()
list(APPEND test_environment ${sanitizer_environment})

# With MICA_TEST_PART=K tests that take long have turns, as problem lines have: one in so many, others with each K, and
# all of what changed, or whose subject did, since tests/full.txt was written (tests/shares touched). In a plain build
# these are the longest; in an instrumented one all that are not a file's lines, and so with MICA_TEST_TURNS, which asks
# not what changed.
set(long_tests docs/adding-an-op lint/kernels-index emu/graphs emu/04_transformer_block abi/headers
  unit/test_guest_stack unit/test_cuda_faults self/sanitize self/edges-planted self/busy self/options soak/short)
set(always "^(install|python|planted|cases|fuzz|api|abi)/|^lint/(shares|bare-root)-self$")
set(turns 4)
if(MICA_TEST_TURNS)
  set(turns ${MICA_TEST_TURNS})
endif()
set(touched)
if(NOT MICA_TEST_PART STREQUAL "" AND NOT MICA_TEST_TURNS)
  execute_process(COMMAND ${PROJECT_SOURCE_DIR}/tests/shares touched OUTPUT_VARIABLE touched OUTPUT_STRIP_TRAILING_WHITESPACE
    COMMAND_ERROR_IS_FATAL ANY)
  string(REPLACE "\n" ";" touched "${touched}")
endif()
# mica_turn(NAME VARIABLE [SOURCE]): whether the test has its turn now. Tests that start threads always run under
# ThreadSanitizer; not those about stacks and floating-point modes, which are slow.
function(mica_turn name variable)
  set(${variable} TRUE PARENT_SCOPE)
  if(MICA_TEST_PART STREQUAL "" OR are_lines)
    return()
  endif()
  if(MICA_SANITIZE OR MICA_TEST_TURNS)
    if(name MATCHES "${always}" OR MICA_FUZZ)
      return()
    endif()
  elseif(NOT name IN_LIST long_tests)
    return()
  endif()
  string(REGEX REPLACE "^[^/]*/(played_)?(test_)?" "" subject ${name})
  string(REPLACE "-" "_" subject ${subject})
  string(REGEX REPLACE "_.*" "" first ${subject})
  string(REGEX REPLACE "/.*" "" folder ${name})
  if("*" IN_LIST touched OR subject IN_LIST touched OR first IN_LIST touched OR folder IN_LIST touched)
    return()
  endif()
  if(MICA_SANITIZE MATCHES thread AND NOT subject MATCHES "^guest_(stack|floating)$")
    if(subject MATCHES "^(short|contention|load)$")
      return()
    endif()
    if(ARGC GREATER 2)
      file(STRINGS ${ARGV2} threads REGEX "pthread_create|thrd_create" LIMIT_COUNT 1)
      if(threads)
        return()
      endif()
    endif()
  endif()
  string(MD5 number ${name})
  string(SUBSTRING ${number} 0 6 number)
  math(EXPR number "(0x${number} + ${MICA_TEST_PART}) % ${turns}")
  if(number)
    set(${variable} FALSE PARENT_SCOPE)
  endif()
endfunction()

# mica_test(NAME LABEL COMMAND...). A test that lacks something on this machine (NVRTC) says so and
# ends with 77; not the fuzz targets, where libFuzzer uses that number for a finding.
function(mica_test name label)
  add_test(NAME ${name} COMMAND ${ARGN} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set(environment ${test_environment})
  if(MICA_SANITIZE MATCHES address AND "${name}" MATCHES "^(cases/|self/onednn)")
    list(REMOVE_ITEM environment MICA_ONEDNN=none)
    list(TRANSFORM environment REPLACE "^ASAN_OPTIONS=" "ASAN_OPTIONS=detect_leaks=0:")
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "${label}" TIMEOUT 900
    ENVIRONMENT "${environment}")
  if(NOT label STREQUAL fuzz)
    set_tests_properties(${name} PROPERTIES SKIP_RETURN_CODE 77)
  endif()
  if(name IN_LIST long_tests) # they start first
    set_tests_properties(${name} PROPERTIES COST 20)
  endif()
  mica_turn(${name} turn ${source})
  if(NOT turn)
    set_tests_properties(${name} PROPERTIES DISABLED TRUE)
  endif()
endfunction()

# mica_test_program(FOLDER LABEL LIBRARY SOURCE): one program of one source, one test. Whose turn it is not is not
# built where few have theirs; but clang's warnings are wanted of every source.
function(mica_test_program folder label library source)
  cmake_path(GET source STEM name)
  set(target test_${folder}_${name})
  mica_turn(${folder}/${name} turn ${source})
  if(turn OR NOT (MICA_SANITIZE OR (MICA_TEST_TURNS AND label STREQUAL unit)))
    add_executable(${target} ${source})
  elseif(CMAKE_C_COMPILER_ID MATCHES Clang)
    add_library(${target} OBJECT ${source})
  else()
    add_executable(${target} EXCLUDE_FROM_ALL ${source})
  endif()
  set_target_properties(${target} PROPERTIES OUTPUT_NAME ${name}
    RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests/${folder})
  target_link_libraries(${target} PRIVATE mica_flags ${library} OpenMP::OpenMP_C Threads::Threads m)
  if(label STREQUAL unit)
    target_include_directories(${target} PRIVATE src)
  endif()
  if(name MATCHES "^test_(cli|guest)_")
    target_link_libraries(${target} PRIVATE mica_cli ${library})
  endif()
  if(NOT label STREQUAL examples)
    target_include_directories(${target} PRIVATE tests)
    target_include_directories(${target} SYSTEM PRIVATE ${CMOCKA_INCLUDE})
    target_link_libraries(${target} PRIVATE ${CMOCKA_LIBRARY})
  endif()
  mica_test(${folder}/${name} ${label} ${target} ${arguments_${name}})
endfunction()

# Fuzz targets. With clang's libFuzzer (the preset fuzz) they search for a while; in every other build they
# replay the seeds and the problem lines.
file(GLOB fuzz_targets CONFIGURE_DEPENDS tests/fuzz/fuzz_*.c)
foreach(source ${fuzz_targets})
  cmake_path(GET source STEM name)
  if(MICA_FUZZ)
    set(mode search)
    add_executable(${name} ${source})
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  else()
    set(mode replay)
    add_executable(${name} ${source} tests/fuzz/replay.c)
  endif()
  mica_test(fuzz/${name} fuzz ${PROJECT_SOURCE_DIR}/tests/fuzz/run.sh ${mode} $<TARGET_FILE:${name}>
    ${PROJECT_BINARY_DIR}/fuzz/${name})
  target_include_directories(${name} PRIVATE src)
  target_link_libraries(${name} PRIVATE mica_flags mica_inside)
endforeach()

if(MICA_FUZZ)
  return()
endif()

# A driver and a compiler that stand in for NVIDIA's.
if(EXISTS ${PROJECT_SOURCE_DIR}/tests/fake/CMakeLists.txt)
  add_subdirectory(tests/fake)
  if(NOT MICA_SANITIZE MATCHES address) # nothing runs on it there
    add_subdirectory(tests/emu)
  endif()
endif()

# unit and self look inside; api and the examples see what users see.
set(arguments_test_guest_exit onednn) # the library that has static objects
foreach(row "unit;unit;mica_inside" "self;unit;mica_inside" "api;api;mica_shared")
  list(POP_FRONT row folder label library)
  file(GLOB programs CONFIGURE_DEPENDS tests/${folder}/*.c)
  foreach(source ${programs})
    mica_test_program(${folder} ${label} ${library} ${source})
  endforeach()
endforeach()
set(times 40) # of the hundreds that a change of this code asks for
if(MICA_SANITIZE)
  set(times 5)
endif()
set_property(TEST unit/test_guest_exit unit/test_guest_fork APPEND PROPERTY ENVIRONMENT "GUEST_TIMES=${times}")
if(MICA_SANITIZE) # resident memory and malloc are the sanitizer's; oneDNN stays closed; libomp ends under its threads
  set_tests_properties(unit/test_guest_cache unit/test_guest_exit unit/test_guest_run PROPERTIES DISABLED TRUE)
endif()
if(MICA_SANITIZE MATCHES address) # a forked child may find the locks of its allocator held, for ever
  set_tests_properties(unit/test_guest_fork PROPERTIES DISABLED TRUE)
endif()
# Everything at once for some seconds; tests/soak/run does so for ten minutes.
add_executable(soak tests/soak/soak.c)
target_include_directories(soak PRIVATE src)
target_link_libraries(soak PRIVATE mica_flags mica_cli mica_inside)
mica_test(soak/short unit ${PROJECT_SOURCE_DIR}/tests/soak/run $<TARGET_FILE:soak> 5 1)
set_property(TEST soak/short APPEND PROPERTY ENVIRONMENT OMP_NUM_THREADS=2)
if(MICA_SANITIZE) # a smaller batch and fewer steps: minutes otherwise
  set(arguments_03_resnet50 cpu f32 2 32 2)
endif()
set(arguments_05_generate ${PROJECT_SOURCE_DIR}/examples/05_generate.bin)
file(GLOB examples CONFIGURE_DEPENDS examples/*.c)
foreach(source ${examples})
  mica_test_program(examples examples mica_shared ${source})
endforeach()
# A training step as a graph beside the one that is written by hand.
if(NOT MICA_SANITIZE)
  mica_test(examples/by_hand examples tests/by_hand.sh $<TARGET_FILE:test_examples_03_resnet50>
    $<TARGET_FILE:test_examples_08_training>)
endif()

# Problem lines: everything, or with MICA_TEST_PART=K of each family what MICA_TEST_SECONDS hold, another
# part for each K, and all of those that changed (tests/shares). Those past 2^31 elements that are few
# and far apart (*-large.txt) are as cheap as others; those that are all there (huge.txt) take up to 13 GB.
file(GLOB case_files CONFIGURE_DEPENDS tests/cases/*.txt)
file(GLOB graph_files CONFIGURE_DEPENDS tests/cases/graphs/*.graph)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${case_files} tests/full.txt)
# mica_line_tests(KIND PREFIX LABEL VARIABLE OPTION...): tests PREFIX..., whose names go to VARIABLE.
function(mica_line_tests kind prefix label variable)
  set(part)
  if(NOT MICA_TEST_PART STREQUAL "")
    set(part --part ${MICA_TEST_PART} --seconds ${MICA_TEST_SECONDS} --one-in ${MICA_TEST_ONE_IN} ${lines_turn})
    if(NOT MICA_TEST_CHANGED)
      list(APPEND part --changed-too)
    endif()
  endif()
  execute_process(COMMAND ${PROJECT_SOURCE_DIR}/tests/shares list ${kind} ${PROJECT_BINARY_DIR}/lines/${kind} ${part}
    OUTPUT_VARIABLE rows OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  string(REPLACE "\n" ";" rows "${rows}")
  set(names)
  set(are_lines TRUE)
  foreach(row ${rows})
    string(REPLACE "|" ";" row "${row}")
    list(GET row 0 name)
    list(GET row 1 family)
    list(GET row 2 seconds)
    list(GET row 3 options)
    list(GET row 4 files)
    separate_arguments(options)
    separate_arguments(files)
    mica_test(${prefix}${name} "${label};${family}" mica check ${ARGN} ${options} ${files})
    set_tests_properties(${prefix}${name} PROPERTIES COST ${seconds})
    list(APPEND names ${prefix}${name})
  endforeach()
  set(${variable} ${names} PARENT_SCOPE)
endfunction()
if(TARGET mica)
  set(kind cases)
  if(MICA_SANITIZE MATCHES thread)
    set(kind tsan)
  elseif(MICA_SANITIZE)
    set(kind asan)
  endif()
  mica_line_tests(${kind} cases/ cases names --device cpu)
  if(MICA_LARGE_TESTS)
    mica_test(cases/huge cases mica check --device cpu ${PROJECT_SOURCE_DIR}/tests/cases/huge.txt)
  endif()
  # Graphs: fused, unfused and node by node.
  mica_test(cases/graphs "cases;graph" mica check --device cpu --fill=exact,random,range,same_sign ${graph_files})
  # Loops that are there for two widths of vectors, by the other one where the CPU has both.
  mica_test(cases/narrow cases mica check --device cpu --engine cpu --fill=exact,random
    "gemm a=f32:37x150 b=f32:150x70" "gemm a=f64:37x150 b=f64:150x70" "gemm a=e4m3:37x150 b=e4m3:150x70:t c=f32"
    "grouped_gemm a=bf16:137x19 b=bf16:4x19x70"
    "conv pass={fwd,dgrad,wgrad} x=f32:2x19x9x7:nhwc w=f32:70x19x3x3:nhwc pad=1x1"
    "conv pass={fwd,dgrad,wgrad} x=f64:2x19x9x7:nhwc w=f64:70x19x3x3:nhwc pad=1x1"
    "conv x=s8:2x19x9x7:nhwc w=s8:70x19x3x3:nhwc pad=1x1"
    "conv pass={fwd,dgrad} x=f32:2x75x9x7:nhwc w=f32:75x1x3x3:nhwc pad=1x1 groups=75"
    "attention pass={fwd,bwd} q=f32:1x4x45x40 k=f32:1x2x75x40 causal=none,bottom_right"
    "attention q=f32:3x4x1x40 k=f32:3x2x75x40")
  set_tests_properties(cases/narrow PROPERTIES ENVIRONMENT "${test_environment};MICA_VECTORS=narrow")
  # What oneDNN does where it is, by our own engines: as on a machine without it.
  mica_test(cases/without-onednn cases mica check --device cpu --allow-refusals --fill=exact,random
    "gemm a=f32:37x150 b=f32:150x70 epilogue=bias,relu" "gemm a=u8:37x150 b=s8:150x70 c=s32"
    "conv pass={fwd,dgrad,wgrad} x=f32:2x19x9x7 w=f32:70x19x3x3 pad=1x1"
    "conv pass={fwd,dgrad,wgrad} x=bf16:2x16x9x7:nhwc w=bf16:32x16x3x3:nhwc pad=1x1"
    "conv x=f32:1x2x40000 w=f32:3x2x5 pad=2" "mha q=f32:2x5x32 heads=4")
  set_tests_properties(cases/without-onednn PROPERTIES ENVIRONMENT "${test_environment};MICA_ONEDNN=none")
  # The same random lines each time; other seeds are for those who look for mistakes.
  if(NOT MICA_SANITIZE)
    mica_test(cases/random_problems cases ${PROJECT_SOURCE_DIR}/tests/random_problems --check $<TARGET_FILE:mica> 1 30)
  endif()
  # Kernels, on a GPU played by the CPU, as the planner would run them on a small one.
  if(TARGET emu_cuda AND NOT MICA_SANITIZE)
    set(played ${PROJECT_BINARY_DIR}/emu)
    set(played_environment
      "MICA_CUDA_DRIVER=${played}/libcuda.so.1;MICA_NVRTC=${played}/libnvrtc.so.13;MICA_CACHE_DIR=${played}/cache;FAKE_SMS=4")
    mica_line_tests(emu emu/ emu names --device cuda:0)
    mica_test(emu/graphs "emu;graph" mica check --device cuda:0 --fill=exact ${graph_files})
    # Blocks that wait for one another, in a CUDA graph whose nodes are changed.
    mica_test(emu/graphs-persistent "emu;graph" mica check --device cuda:0 --engine persistent --fill=exact,random
      tests/cases/graphs/rnn.graph)
    list(APPEND names emu/graphs emu/graphs-persistent)
    set_tests_properties(${names} PROPERTIES TIMEOUT 1200 ENVIRONMENT "${played_environment}")
    # Warps that fall behind others: threads run backwards, then shuffled.
    foreach(order 1 2)
      mica_test(emu/order-${order} emu mica check --device cuda:0 --engine sm90_im2col --fill=exact
        "conv pass=dgrad x=bf16:512x16x14x14:nhwc w=bf16:24x16x1x1:nhwc stride=2x2"
        "conv x=bf16:3x8x90x91:nhwc w=bf16:72x8x1x1:nhwc")
      mica_test(emu/order-gemm-${order} emu mica check --device cuda:0 --engine sm90 --fill=exact
        "gemm a=bf16:520x72 b=bf16:72x520:t")
      set_tests_properties(emu/order-${order} emu/order-gemm-${order} PROPERTIES ENVIRONMENT
        "${played_environment};EMU_ORDER=${order}")
    endforeach()
    # Copies that arrive in another order than they were asked for, where warpgroups take tiles in turns.
    mica_test(emu/shuffled emu mica check --device cuda:0 --engine sm90_im2col --fill=exact
      "conv x=bf16:1x256x90x91:nhwc w=bf16:128x256x1x1:nhwc")
    mica_test(emu/shuffled-slab emu mica check --device cuda:0 --engine sm90_slab --fill=exact
      "conv x=bf16:4x64x30x31:nhwc w=bf16:64x64x1x1:nhwc"
      "conv x=bf16:4x64x17x31:nhwc w=bf16:64x64x1x1:nhwc epilogue=residual")
    mica_test(emu/shuffled-gemm emu mica check --device cuda:0 --engine sm90 --fill=exact
      "gemm a=bf16:520x72 b=bf16:72x520:t")
    mica_test(emu/shuffled-stream emu mica check --device cuda:0 --engine sm90_stream --fill=exact
      "conv x=bf16:2x72x33x31:nhwc w=bf16:136x72x1x3:nhwc pad=0x1")
    set_tests_properties(emu/shuffled emu/shuffled-slab emu/shuffled-stream emu/shuffled-gemm PROPERTIES ENVIRONMENT
      "${played_environment};EMU_LOADS=shuffled")
    # One multiprocessor: all tiles of a problem pass through one block, by every config.
    mica_test(emu/one-unit-slab emu mica check --device cuda:0 --engine sm90_slab --fill=exact
      "conv pass={fwd,dgrad,wgrad} x=bf16:1x8x32x40:nhwc w=bf16:64x8x3x3:nhwc pad=1x1"
      "conv pass={fwd,dgrad,wgrad} x=bf16:17x8x37:nwc w=bf16:24x8x3:nwc pad=2 dilation=2"
      "conv pass={fwd,wgrad} x=bf16:1x8x32x40:nhwc w=bf16:64x8x3x3:nhwc pad=1x1 stride=2x2"
      "conv pass={fwd,wgrad} x=bf16:1x32x32x40:nhwc w=bf16:32x16x3x2:nhwc pad=1x1 groups=2"
      "conv x=bf16:1x8x32x40:nhwc w=bf16:64x8x3x3:nhwc pad=1x1 epilogue=bias,residual,relu")
    mica_test(emu/one-unit-stream emu mica check --device cuda:0 --engine sm90_stream --fill=exact
      "conv pass={fwd,dgrad} x=bf16:1x72x3x17x19:ndhwc w=bf16:72x72x3x2x2:ndhwc pad=1x1x0"
      "conv x=bf16:1x24x3x17x19:ndhwc w=bf16:72x24x3x2x2:ndhwc pad=1x1x0 epilogue=residual")
    mica_test(emu/one-unit-volume emu mica check --device cuda:0 --engine sm90_volume --fill=exact
      "conv pass={fwd,dgrad,wgrad} x=bf16:1x8x3x17x18:ndhwc w=bf16:16x8x3x3x3:ndhwc pad=1x1x1"
      "conv x=bf16:1x8x3x17x18:ndhwc w=bf16:16x8x3x3x3:ndhwc pad=1x1x1 epilogue=residual")
    mica_test(emu/one-unit-im2col emu mica check --device cuda:0 --engine sm90_im2col --fill=exact
      "conv pass={fwd,dgrad,wgrad} x=bf16:1x72x17x19:nhwc w=bf16:136x72x3x1:nhwc pad=1x0")
    mica_test(emu/one-unit-gemm emu mica check --device cuda:0 --engine sm90 --fill=exact
      "gemm a=bf16:300x200 b=bf16:200x330:t")
    set_tests_properties(emu/one-unit-slab emu/one-unit-stream emu/one-unit-volume emu/one-unit-im2col emu/one-unit-gemm
      PROPERTIES ENVIRONMENT "${played_environment};FAKE_SMS=1")
    # An engine without a kernel, whose mistakes would be those of strides: each of its configs.
    mica_test(emu/disjoint emu mica check --device cuda:0 --engine disjoint --fill=exact
      "conv transposed=1 x=bf16:2x32x2x3x20:ndhwc w=bf16:32x16x2x2x2:ndhwc stride=2x2x2 epilogue=bias,residual,relu"
      "conv pass=dgrad x=f32:2x4x4x6x9:1200x1x290x48x5 w=f32:6x4x2x2x3 y=f32:2x6x2x3x3:ndhwc stride=2x2x3"
      "conv flip=1 transposed=1 x=bf16:2x24x5x6:nhwc w=bf16:24x8x2x2:nhwc stride=2x2")
    set_tests_properties(emu/disjoint PROPERTIES ENVIRONMENT "${played_environment}")
    mica_test(emu/04_transformer_block emu test_examples_04_transformer_block cuda:0 bf16 1 37 4 2 64 72 1)
    mica_test(emu/08_training emu test_examples_08_training transformer cuda:0 f32 1 9 4 2 16 24 2)
    set_tests_properties(emu/04_transformer_block emu/08_training PROPERTIES ENVIRONMENT
      "${played_environment}")
    add_executable(test_values_in_keys tests/emu/values_in_keys.c)
    target_link_libraries(test_values_in_keys PRIVATE mica_flags mica_shared m)
    mica_test(emu/values_in_keys emu test_values_in_keys)
    add_executable(test_emu_prompt tests/emu/prompt.c)
    target_link_libraries(test_emu_prompt PRIVATE mica_flags mica_shared m)
    mica_test(emu/prompt emu test_emu_prompt)
    set_tests_properties(emu/values_in_keys emu/prompt PROPERTIES ENVIRONMENT
      "${played_environment}")
    # Fill edges by the planner's choice, with another seed for each commit.
    set(edges_part 1)
    if(NOT MICA_TEST_PART STREQUAL "")
      set(edges_part ${MICA_TEST_PART})
    endif()
    mica_test(emu/edges emu mica check --quiet --device cuda:0 --pick --fill edges --seed ${edges_part} --part ${edges_part}
      --seconds 8 ${PROJECT_SOURCE_DIR}/tests/edges.txt)
    set_tests_properties(emu/edges PROPERTIES ENVIRONMENT "${played_environment}")
    mica_test(self/edges-planted emu ${PROJECT_SOURCE_DIR}/tests/self/edges_planted.sh $<TARGET_FILE:mica> ${played}
      ${PROJECT_SOURCE_DIR}/src)
    mica_test(self/emu unit ${PROJECT_SOURCE_DIR}/tests/self/emu.sh $<TARGET_FILE:mica> ${played}
      ${PROJECT_SOURCE_DIR}/src)
  endif()
  mica_test(self/check unit ${PROJECT_SOURCE_DIR}/tests/self/check.sh $<TARGET_FILE:mica>)
  mica_test(self/onednn unit ${PROJECT_SOURCE_DIR}/tests/self/onednn.sh $<TARGET_FILE:mica>
    ${PROJECT_BINARY_DIR}/fake)
  mica_test(self/tune unit ${PROJECT_SOURCE_DIR}/tests/self/tune.sh $<TARGET_FILE:mica>)
  mica_test(self/options unit ${PROJECT_SOURCE_DIR}/tests/self/options.sh $<TARGET_FILE:mica>)
  mica_test(self/busy unit ${PROJECT_SOURCE_DIR}/tests/self/busy.sh $<TARGET_FILE:mica>)
  mica_test(self/sanitize unit ${PROJECT_SOURCE_DIR}/tests/self/sanitize.sh $<TARGET_FILE:mica>)
  mica_test(self/cache unit ${PROJECT_SOURCE_DIR}/tests/self/cache.sh $<TARGET_FILE:mica>)
  mica_test(self/random unit ${PROJECT_SOURCE_DIR}/tests/self/random.sh $<TARGET_FILE:mica>)
  mica_test(self/list unit ${PROJECT_SOURCE_DIR}/tests/self/list.sh $<TARGET_FILE:mica>)
  mica_test(self/messages unit ${PROJECT_SOURCE_DIR}/tests/self/messages.sh $<TARGET_FILE:mica>)
  mica_test(self/full-disk unit ${PROJECT_SOURCE_DIR}/tests/self/full_disk.sh $<TARGET_FILE:mica>)
  if(MICA_SANITIZE MATCHES thread) # writes a file of its own at start, which meets the bound
    set_tests_properties(self/full-disk PROPERTIES DISABLED TRUE)
  endif()
  if(TARGET fake_comma AND NOT MICA_SANITIZE) # whose libraries must come first
    mica_test(self/locale unit ${PROJECT_SOURCE_DIR}/tests/self/locale.sh $<TARGET_FILE:mica> $<TARGET_FILE:fake_comma>)
  endif()
  mica_test(self/edges cases ${PROJECT_SOURCE_DIR}/tests/self/edges.sh $<TARGET_FILE:mica>)
  mica_test(self/demo unit ${PROJECT_SOURCE_DIR}/tests/self/demo.sh $<TARGET_FILE:mica>)
  if(TARGET fake_cuda)
    mica_test(self/clocks unit ${PROJECT_SOURCE_DIR}/tests/self/clocks.sh $<TARGET_FILE:mica>
      ${PROJECT_BINARY_DIR}/fake)
    mica_test(self/kernels unit ${PROJECT_SOURCE_DIR}/tests/self/kernels.sh $<TARGET_FILE:mica>
      ${PROJECT_BINARY_DIR}/fake)
  endif()
endif()

# The Python package. An instrumented library cannot be loaded into a Python that is not.
if(NOT MICA_SANITIZE AND TARGET mica)
  file(GLOB python_tests CONFIGURE_DEPENDS python/tests/test_*.py)
  foreach(source ${python_tests})
    cmake_path(GET source STEM name)
    string(REGEX REPLACE "^test_" "" name ${name})
    mica_test(python/${name} python ${PYTHON3_NUMPY} -B ${source})
    set_tests_properties(python/${name} PROPERTIES ENVIRONMENT
      "${test_environment};PYTHONPATH=${PROJECT_BINARY_DIR}/python;MICA_LIBRARY=$<TARGET_FILE:mica_shared>;MICA_BUILD=${PROJECT_BINARY_DIR}")
  endforeach()
endif()

# Beside PyTorch and JAX, where `tools/setup python-peers` has put them; of PyTorch's own samples a share.
find_program(MICA_PEERS_PYTHON python PATHS $ENV{MICA_PEERS}/bin $ENV{HOME}/.cache/mica/python-peers/bin NO_DEFAULT_PATH)
if(NOT MICA_SANITIZE AND TARGET mica AND MICA_PEERS_PYTHON)
  set(share 0)
  if(NOT MICA_TEST_PART STREQUAL "")
    math(EXPR share "${MICA_TEST_PART} % 20")
  endif()
  file(GLOB peer_tests CONFIGURE_DEPENDS python/tests/peers/test_*.py)
  foreach(source ${peer_tests})
    cmake_path(GET source STEM name)
    string(REGEX REPLACE "^test_" "" name ${name})
    mica_test(peers/${name} peers ${MICA_PEERS_PYTHON} -B ${source})
  endforeach()
  mica_test(peers/bench peers ${MICA_PEERS_PYTHON} -B bench/peers/torch_peer_test.py $<TARGET_FILE:mica_shared>)
  mica_test(peers/graphs peers ${MICA_PEERS_PYTHON} -B bench/peers/torch_graphs_test.py $<TARGET_FILE:mica_shared>)
  mica_test(peers/opinfo peers ${MICA_PEERS_PYTHON} -B python/tests/peers/opinfo.py --share ${share}/20)
  list(TRANSFORM peer_tests REPLACE ".*/test_(.*)\\.py" "peers/\\1")
  set_tests_properties(${peer_tests} peers/opinfo PROPERTIES ENVIRONMENT
    "${test_environment};PYTHONPATH=${PROJECT_BINARY_DIR}/python;MICA_LIBRARY=$<TARGET_FILE:mica_shared>;MICA_BUILD=${PROJECT_BINARY_DIR}")
  # Of what takes long beside the samples, one commit has the one half, the next perhaps the other.
  if(NOT MICA_TEST_PART STREQUAL "")
    math(EXPR turn "${MICA_TEST_PART} % 2")
    set(halves peers/jax peers/distributed)
    list(GET halves ${turn} later)
    set_tests_properties(${later} PROPERTIES DISABLED ON)
  endif()
elseif(NOT MICA_SANITIZE)
  message(STATUS "No PyTorch in MICA_PEERS: the tests beside it (label peers) are left out; tools/setup python-peers")
endif()

# Cases with their right values: infinities, NaN, extremes, and what was reported elsewhere; with the pages made of them.
if(NOT MICA_SANITIZE AND TARGET mica)
  set(judge_share 0)
  if(NOT MICA_TEST_PART STREQUAL "")
    math(EXPR judge_share "${MICA_TEST_PART} % 12")
  endif()
  set(judge_environment "${test_environment};OMP_NUM_THREADS=1;PYTHONPATH=${PROJECT_BINARY_DIR}/python;MICA_LIBRARY=$<TARGET_FILE:mica_shared>")
  foreach(name extremes reports)
    mica_test(docs/${name} docs ${PYTHON3_NUMPY} -B tests/judges/extremes.py tests/${name}.txt --compare docs/${name}.md)
    set_tests_properties(docs/${name} PROPERTIES ENVIRONMENT "${judge_environment}")
    if(TARGET emu_cuda)
      mica_test(emu/${name} emu ${PYTHON3_NUMPY} -B tests/judges/extremes.py tests/${name}.txt --device cuda:0
        --engines 0/0 --share ${judge_share}/12)
      set_tests_properties(emu/${name} PROPERTIES ENVIRONMENT "${judge_environment};${played_environment}")
    endif()
  endforeach()
endif()

# ONNX's own node tests, where `tools/setup onnx` has put the package: by the planner's choice all of them, by every
# engine and on the played GPU a share; make test-onnx runs everything.
find_program(MICA_ONNX_PYTHON python PATHS $ENV{MICA_ONNX}/bin $ENV{HOME}/.cache/mica/onnx/bin NO_DEFAULT_PATH)
if(NOT MICA_SANITIZE AND TARGET mica AND MICA_ONNX_PYTHON)
  set(part 0)
  if(NOT MICA_TEST_PART STREQUAL "")
    set(part ${MICA_TEST_PART})
  endif()
  math(EXPR turn "${part} % 10")
  math(EXPR share "${part} % 97")
  set(onnx_environment "${test_environment};OMP_NUM_THREADS=1;PYTHONPATH=${PROJECT_BINARY_DIR}/python;MICA_LIBRARY=$<TARGET_FILE:mica_shared>")
  mica_test(peers/onnx peers ${MICA_ONNX_PYTHON} -B tests/onnx/judge.py --engines ${turn}/10 --compare docs/onnx.md)
  set_tests_properties(peers/onnx PROPERTIES ENVIRONMENT "${onnx_environment}")
  if(TARGET emu_cuda)
    mica_test(peers/onnx-emu peers ${MICA_ONNX_PYTHON} -B tests/onnx/judge.py --device cuda:0 --share ${share}/97 --engines 0/0)
    set_tests_properties(peers/onnx-emu PROPERTIES ENVIRONMENT "${onnx_environment};${played_environment}")
  endif()
elseif(NOT MICA_SANITIZE)
  message(STATUS "No onnx in MICA_ONNX: its node tests are left out; tools/setup onnx")
endif()

# Tests of the played GPU that are not a file's lines are shared out whole, unless their families changed.
if(NOT MICA_TEST_PART STREQUAL "")
  execute_process(COMMAND ${PROJECT_SOURCE_DIR}/tests/shares changed OUTPUT_VARIABLE changed)
  if(NOT MICA_TEST_CHANGED OR NOT changed MATCHES "conv|gemm")
    math(EXPR parts "3 * ${MICA_TEST_ONE_IN}")
    get_property(shared DIRECTORY PROPERTY TESTS)
    list(FILTER shared INCLUDE REGEX "^emu/(order|shuffled|one-unit|disjoint)")
    set(number 0)
    foreach(name ${shared})
      math(EXPR part "(${number} + ${MICA_TEST_PART}) % ${parts}")
      if(part)
        set_tests_properties(${name} PROPERTIES DISABLED TRUE)
      endif()
      math(EXPR number "${number} + 1")
    endforeach()
  endif()
endif()

# The drop-in libcudnn.so.9.
if(TARGET cudnn_front)
  add_subdirectory(tests/front)
endif()

# compute-sanitizer runs on a GPU, by hand (tests/sanitize/run); that its lines reach every engine is
# known without one, and a list with a line less must not. Nobody looks at the code: the stand-in for
# NVRTC will do.
if(TARGET mica AND TARGET fake_nvrtc)
  mica_test(lint/sanitize lint
    ${PROJECT_SOURCE_DIR}/tests/sanitize/run --covered --mica $<TARGET_FILE:mica>)
  mica_test(lint/sanitize-self lint
    ${PROJECT_SOURCE_DIR}/tests/self/sanitize_covered.sh $<TARGET_FILE:mica>)
  set_tests_properties(lint/sanitize lint/sanitize-self PROPERTIES ENVIRONMENT
    "${test_environment};MICA_NVRTC=$<TARGET_FILE:fake_nvrtc>")
endif()

# clangd's index of kernels, where there is a clang to judge it.
find_program(MICA_CLANG NAMES clang clang-14)
if(TARGET mica AND TARGET fake_nvrtc AND MICA_CLANG AND NOT MICA_SANITIZE)
  mica_test(lint/kernels-index lint ${PROJECT_SOURCE_DIR}/tests/self/kernels_index.sh
    ${PROJECT_SOURCE_DIR}/tools/kernels $<TARGET_FILE:mica> $<TARGET_FILE:fake_nvrtc> ${MICA_CLANG})
endif()

# Kernels that are wrong on purpose: their list holds (everywhere), they compile (with NVRTC); that
# `mica check` catches them is shown on a GPU, by hand (tests/mutants/run check).
mica_test(lint/mutants lint ${PROJECT_SOURCE_DIR}/tests/mutants/run text)
mica_test(lint/mutants-self lint ${PROJECT_SOURCE_DIR}/tests/self/mutants.sh)

# Every kernel configuration that the problem lines lead to, compiled for sm_80, sm_89 and sm_90a: none
# spills but those that tests/kernels/ARCH.txt names. One to three hours of two cores; with
# MICA_TEST_PART a part that rotates with the commit, and whoever changes kernels runs the whole. A heap
# that does not give its memory back after each kernel saves 7 per cent.
if(MICA_KERNEL_TESTS AND TARGET mica)
  set(heap "MALLOC_TRIM_THRESHOLD_=2000000000" "MALLOC_TOP_PAD_=67108864"
    "MALLOC_MMAP_THRESHOLD_=1000000000")
  set(share)
  if(NOT MICA_TEST_PART STREQUAL "")
    math(EXPR part "${MICA_TEST_PART} % 32")
    set(share --share=${part}/32)
  endif()
  mica_test(kernels/mutants kernels
    ${PROJECT_SOURCE_DIR}/tests/mutants/run compile ${share} --mica $<TARGET_FILE:mica>)
  set(families ${MICA_TEST_ONE_IN})
  set(MICA_TEST_ONE_IN 6) # each commit half of the families, each for one of the three architectures
  set(turn 0)
  foreach(arch sm_80 sm_89 sm_90a)
    math(EXPR turn "${turn} + 1")
    set(lines_turn --turn ${turn})
    mica_line_tests(kernels kernels/${arch}- kernels names --compile-only --device ${arch}
      --table ${PROJECT_SOURCE_DIR}/tests/kernels/${arch}.txt)
    if(names)
      set_tests_properties(${names} PROPERTIES TIMEOUT 3000 ENVIRONMENT "${test_environment};${heap}")
    endif()
  endforeach()
  set(MICA_TEST_ONE_IN ${families})
  set(lines_turn)
endif()
# How many configurations there are is known without a compiler: the stand-in for NVRTC will do.
if(TARGET mica AND TARGET fake_nvrtc)
  foreach(arch sm_80 sm_89 sm_90a)
    mica_line_tests(counts lint/kernels-${arch}- lint names --compile-only --device ${arch}
      --table ${PROJECT_SOURCE_DIR}/tests/kernels/${arch}.txt)
    if(names)
      set_tests_properties(${names} PROPERTIES ENVIRONMENT
        "${test_environment};MICA_NVRTC=$<TARGET_FILE:fake_nvrtc>;FAKE_NVRTC_SPILLS=0;FAKE_NVRTC_SMEM=0;MICA_CACHE_BYTES=0")
    endif()
  endforeach()
endif()

mica_test(lint/format-self lint ${PROJECT_SOURCE_DIR}/tests/self/lint.sh)
mica_test(lint/layering lint ${PROJECT_SOURCE_DIR}/tools/layering)
mica_test(lint/layering-self lint ${PROJECT_SOURCE_DIR}/tests/self/layering.sh)
mica_test(lint/locale lint ${PROJECT_SOURCE_DIR}/tests/self/locale.py)
mica_test(lint/shares-self lint ${PROJECT_SOURCE_DIR}/tests/self/shares.py ${PROJECT_SOURCE_DIR})
mica_test(lint/bare-root-self lint ${PROJECT_SOURCE_DIR}/tests/self/bare_root.sh)
mica_test(abi/headers abi ${PROJECT_SOURCE_DIR}/tests/abi/headers.sh)

# Sanitizers that would not notice anything prove nothing.
# planted(PROGRAM ARGUMENT EXPECTED...): a planted mistake, and the report that it has to cause.
function(planted program argument)
  mica_test(planted/${program}-${argument} unit planted_${program} ${argument})
  set_tests_properties(planted/${program}-${argument} PROPERTIES PASS_REGULAR_EXPRESSION "${ARGN}")
endfunction()
if(MICA_SANITIZE)
  foreach(program race memory)
    add_executable(planted_${program} tests/self/planted/${program}.c)
    target_link_libraries(planted_${program} PRIVATE mica_flags OpenMP::OpenMP_C Threads::Threads)
  endforeach()
  mica_test(planted/race-none unit planted_race)
endif()
if(MICA_SANITIZE MATCHES thread)
  planted(race planted "data race")
endif()
if(MICA_SANITIZE MATCHES address)
  planted(memory overflow "heap-buffer-overflow")
endif()
if(MICA_SANITIZE MATCHES undefined)
  planted(memory shift "shift exponent 32 is too large")
endif()

# What is shipped: not the instrumented builds.
if(NOT MICA_SANITIZE AND NOT MICA_FUZZ)
  mica_test(abi/symbols abi ${PROJECT_SOURCE_DIR}/tests/abi/symbols.sh $<TARGET_FILE:mica_shared>)
  mica_test(abi/imports abi ${PROJECT_SOURCE_DIR}/tests/abi/imports.sh $<TARGET_FILE:mica_shared>
    $<TARGET_FILE:mica_inside>)
  if(MICA_CLOSED_ARCHIVE)
    mica_test(abi/archive abi ${PROJECT_SOURCE_DIR}/tests/abi/archive.sh $<TARGET_FILE:mica_static>
      $<TARGET_FILE:mica_inside> ${PROJECT_BINARY_DIR}/mica.pc ${CMAKE_C_COMPILER})
  endif()
  file(GENERATE OUTPUT ${PROJECT_BINARY_DIR}/objects.txt
    CONTENT "$<JOIN:$<TARGET_OBJECTS:mica_objects>,\n>\n")
  if(MICA_CLOSED_ARCHIVE) # objects with code
    mica_test(lint/links lint ${PROJECT_SOURCE_DIR}/tools/layering --links ${PROJECT_BINARY_DIR}/objects.txt)
  endif()
  if(CMAKE_C_COMPILER_ID STREQUAL GNU) # whose objects the table is about
    mica_test(abi/sizes abi ${PROJECT_SOURCE_DIR}/tests/abi/sizes.sh ${PROJECT_BINARY_DIR}
      ${PROJECT_BINARY_DIR}/objects.txt)
  endif()
  mica_test(abi/size abi ${PROJECT_SOURCE_DIR}/tests/abi/size.sh ${PROJECT_BINARY_DIR})
  file(GLOB pages CONFIGURE_DEPENDS tests/docs/*.sh)
  foreach(page ${pages})
    cmake_path(GET page STEM name)
    mica_test(docs/${name} docs ${page} ${PROJECT_BINARY_DIR})
  endforeach()
  mica_test(install/without-cmocka install ${PROJECT_SOURCE_DIR}/tests/install/without_cmocka.sh
    ${PROJECT_BINARY_DIR})
  if(MICA_CLOSED_ARCHIVE)
    mica_test(install/copies install ${PROJECT_SOURCE_DIR}/tests/install/copies.sh ${PROJECT_BINARY_DIR}
      $<TARGET_FILE:mica_inside>)
  endif()
  mica_test(install/consumers install ${PROJECT_SOURCE_DIR}/tests/install/run.sh
    ${PROJECT_BINARY_DIR})
endif()
