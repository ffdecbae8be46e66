# Builds liblathe_cuda.so, with all code that needs a CUDA toolkit. core/device.cc loads it at run
# time; nothing links to it.
if(LATHE_CUDA STREQUAL "OFF")
  return()
endif()
include(CheckLanguage)
set(CMAKE_CUDA_ARCHITECTURES OFF)  # the flag -gencode below lists the architectures
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER OR NOT TARGET LibTorch::cuda)
  if(LATHE_CUDA STREQUAL "ON")
    message(FATAL_ERROR "LATHE_CUDA is ON, but nvcc or LibTorch's libtorch_cuda.so is missing")
  endif()
  message(STATUS "CUDA: no nvcc or no libtorch_cuda.so, building for CPUs only")
  return()
endif()
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)
if(CUDAToolkit_VERSION VERSION_LESS 13)
  message(STATUS "CUDA: toolkit ${CUDAToolkit_VERSION} is older than 13, building for CPUs only")
  return()
endif()
if(NOT TARGET CUDA::cublasLt)
  message(STATUS "CUDA: the toolkit has no cuBLAS, building for CPUs only")
  return()
endif()

file(GLOB cuda_sources CONFIGURE_DEPENDS core/kernels/*.cu core/cuda/*.cc)
add_library(lathe_cuda SHARED ${cuda_sources})
set_target_properties(lathe_cuda PROPERTIES CUDA_STANDARD 17 UNITY_BUILD OFF)
# No kernel uses instructions of one specific architecture, so one pass of the compiler's front end
# serves all architectures.
target_compile_options(lathe_cuda PRIVATE
  $<$<COMPILE_LANGUAGE:CUDA>:-gencode=arch=compute_80,code=[sm_80,sm_90,sm_100,compute_80]>)
target_include_directories(lathe_cuda PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
target_link_libraries(lathe_cuda PRIVATE lathe_lib LibTorch::cuda CUDA::cudart CUDA::cublasLt)
