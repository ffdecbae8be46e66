# lathe_tests_checked: the tests, linked to a library that is compiled with the address and
# undefined-behavior sanitizers. The objects of dist/, train/ and the tests, and the commands that
# the tests run, come from the ordinary build without sanitizers. This more than halves the time of
# a check (docs/internals/testing.md). Only ./dev asan --part builds this target.
set(checks -O1 -g1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all)
add_library(lathe_lib_checked SHARED EXCLUDE_FROM_ALL)
foreach(part io kernels core autograd nn optim amp prepare data)
  get_target_property(sources lathe_${part} SOURCES)
  get_target_property(libraries lathe_${part} LINK_LIBRARIES)
  add_library(lathe_${part}_checked OBJECT EXCLUDE_FROM_ALL ${sources})
  target_include_directories(lathe_${part}_checked PUBLIC "${PROJECT_SOURCE_DIR}")
  if(libraries)
    target_link_libraries(lathe_${part}_checked PUBLIC ${libraries})
    target_link_libraries(lathe_lib_checked PUBLIC ${libraries})
  endif()
  target_compile_options(lathe_${part}_checked PRIVATE ${checks})
  target_compile_definitions(lathe_${part}_checked PRIVATE LATHE_ASAN)
  target_sources(lathe_lib_checked PRIVATE $<TARGET_OBJECTS:lathe_${part}_checked>)
  if(part STREQUAL core)
    target_precompile_headers(lathe_core_checked PRIVATE "${PROJECT_SOURCE_DIR}/cmake/precompiled.h")
  elseif(part MATCHES "^(io|kernels|prepare)$")
    set_target_properties(lathe_${part}_checked PROPERTIES UNITY_BUILD OFF)
  else()
    target_precompile_headers(lathe_${part}_checked REUSE_FROM lathe_core_checked)
  endif()
endforeach()
target_sources(lathe_lib_checked PRIVATE $<TARGET_OBJECTS:lathe_dist> $<TARGET_OBJECTS:lathe_train>)
# Besides the baseline, compile only AVX2. AVX-512 has the same source and would double the compile
# time.
target_compile_definitions(lathe_kernels_checked PRIVATE HWY_DISABLED_TARGETS=\(HWY_SSSE3|HWY_SSE4|HWY_AVX3|HWY_AVX3_DL\))
target_link_libraries(lathe_lib_checked PUBLIC ${text_libraries})
target_link_options(lathe_lib_checked PUBLIC -fsanitize=address,undefined)

add_executable(lathe_tests_checked EXCLUDE_FROM_ALL $<TARGET_OBJECTS:lathe_tests> $<TARGET_OBJECTS:lathe_cuda_tests>)
target_link_libraries(lathe_tests_checked PRIVATE lathe_lib_checked Catch2::Catch2WithMain)
