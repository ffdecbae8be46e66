# Defines LibTorch's libraries as imported targets. LibTorch's own TorchConfig.cmake is not used,
# because it requires a CUDA toolkit even for a CPU build.
# In:  LIBTORCH, the folder that holds include/ and lib/ (a LibTorch archive, or the `torch` folder of a PyPI wheel).
# Out: LibTorch::cpu (libtorch_cpu, libc10); LibTorch::cuda (its CUDA libraries too), if LIBTORCH has them.
find_path(LIBTORCH_INCLUDE ATen/core/Tensor.h PATHS "${LIBTORCH}/include" NO_DEFAULT_PATH NO_CACHE)
find_library(LIBTORCH_CPU torch_cpu PATHS "${LIBTORCH}/lib" NO_DEFAULT_PATH NO_CACHE)
find_library(LIBTORCH_C10 c10 PATHS "${LIBTORCH}/lib" NO_DEFAULT_PATH NO_CACHE)
find_library(LIBTORCH_CUDA torch_cuda PATHS "${LIBTORCH}/lib" NO_DEFAULT_PATH NO_CACHE)
find_library(LIBTORCH_C10_CUDA c10_cuda PATHS "${LIBTORCH}/lib" NO_DEFAULT_PATH NO_CACHE)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch REQUIRED_VARS LIBTORCH_INCLUDE LIBTORCH_CPU LIBTORCH_C10
  REASON_FAILURE_MESSAGE "pass -DLIBTORCH=FOLDER with include/ and lib/ in it, or run ./dev setup")

if(LibTorch_FOUND AND NOT TARGET LibTorch::cpu)
  add_library(LibTorch::cpu INTERFACE IMPORTED)
  target_include_directories(LibTorch::cpu SYSTEM INTERFACE
    "${LIBTORCH_INCLUDE}" "${LIBTORCH_INCLUDE}/torch/csrc/api/include")
  target_link_libraries(LibTorch::cpu INTERFACE "${LIBTORCH_CPU}" "${LIBTORCH_C10}")
  target_link_options(LibTorch::cpu INTERFACE "LINKER:-rpath,${LIBTORCH}/lib")
  if(LIBTORCH_CUDA AND LIBTORCH_C10_CUDA)
    add_library(LibTorch::cuda INTERFACE IMPORTED)
    target_link_libraries(LibTorch::cuda INTERFACE LibTorch::cpu)
    # The nvidia wheels that libtorch_cuda needs are present only at run time, hence
    # --allow-shlib-undefined. libtorch_cuda must be loaded because its static initializers register
    # the CUDA operators; without --no-as-needed the linker would drop it.
    target_link_options(LibTorch::cuda INTERFACE
      "LINKER:--no-as-needed,${LIBTORCH_CUDA},${LIBTORCH_C10_CUDA},--as-needed" "LINKER:--allow-shlib-undefined")
  endif()
endif()
