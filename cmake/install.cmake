# `cmake --install`, and what find_package(Lathe) finds: headers under include/lathe, named as in this tree
# ("lathe/nn/module.h"), liblathe.so and its CUDA half, the command, and the package.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(package "${CMAKE_INSTALL_LIBDIR}/cmake/Lathe")

install(TARGETS lathe_lib EXPORT LatheTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS lathe RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
if(TARGET lathe_cuda)
  install(TARGETS lathe_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
foreach(part core autograd nn optim amp data dist train)
  install(DIRECTORY ${part} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/lathe FILES_MATCHING PATTERN "*.h")
endforeach()
install(EXPORT LatheTargets NAMESPACE Lathe:: DESTINATION ${package})
configure_package_config_file(cmake/LatheConfig.cmake.in "${PROJECT_BINARY_DIR}/LatheConfig.cmake"
  INSTALL_DESTINATION ${package})
write_basic_package_version_file("${PROJECT_BINARY_DIR}/LatheConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/LatheConfig.cmake" "${PROJECT_BINARY_DIR}/LatheConfigVersion.cmake"
  cmake/FindLibTorch.cmake DESTINATION ${package})
