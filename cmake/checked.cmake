# lathe_tests_checked: the tests over a library under the address and undefined-behaviour sanitizers. train/, the tests
# themselves and the commands that they run are the ordinary build's, which more than halves the time that this takes
# (docs/design.md, "Building and testing"). Built when asked for: ./dev asan --part.
set(checks -O1 -g1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all)
add_library(lathe_lib_checked SHARED EXCLUDE_FROM_ALL)
foreach(part io kernels core autograd nn optim amp prepare data)
  get_target_property(sources lathe_${part} SOURCES)
  get_target_property(libraries lathe_${part} LINK_LIBRARIES)
  add_library(lathe_${part}_checked OBJECT EXCLUDE_FROM_ALL ${sources})
  target_include_directories(lathe_${part}_checked PUBLIC "${PROJECT_SOURCE_DIR}")
  if(libraries)
    target_link_libraries(lathe_${part}_checked PUBLIC ${libraries})
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
target_sources(lathe_lib_checked PRIVATE $<TARGET_OBJECTS:lathe_train>)
# One instruction set beside the baseline: the kernels' text is the same for AVX-512, and takes as long again to compile.
target_compile_definitions(lathe_kernels_checked PRIVATE HWY_DISABLED_TARGETS=\(HWY_SSSE3|HWY_SSE4|HWY_AVX3|HWY_AVX3_DL\))
target_link_libraries(lathe_lib_checked PUBLIC LibTorch::cpu hwy::hwy ${CMAKE_DL_LIBS} spdlog::spdlog Threads::Threads
  "${XXHASH}" ${text_libraries})
target_link_options(lathe_lib_checked PUBLIC -fsanitize=address,undefined)

add_executable(lathe_tests_checked EXCLUDE_FROM_ALL $<TARGET_OBJECTS:lathe_tests> $<TARGET_OBJECTS:lathe_cuda_tests>)
target_link_libraries(lathe_tests_checked PRIVATE lathe_lib_checked Catch2::Catch2WithMain)
