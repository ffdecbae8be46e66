# Defines what `cmake --install` installs: headers under include/lathe, with the paths of this tree
# ("lathe/nn/module.h"), liblathe.so and liblathe_cuda.so, the command, its man page, completions,
# configs and documentation, and the CMake package that find_package(Lathe) reads.
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
# The command prints its own man page and completions.
set(shell_files "${PROJECT_BINARY_DIR}/share")
install(CODE "set(shell_files \"${shell_files}\")")
install(CODE [[
  file(MAKE_DIRECTORY "${shell_files}")
  foreach(words "man" "completion bash" "completion zsh" "completion fish")
    string(REPLACE " " "-" file "${words}")
    separate_arguments(words)
    execute_process(COMMAND "$<TARGET_FILE:lathe>" config ${words} OUTPUT_FILE "${shell_files}/${file}"
      COMMAND_ERROR_IS_FATAL ANY)
  endforeach()]])
install(FILES "${shell_files}/man" DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 RENAME lathe.1)
install(FILES "${shell_files}/completion-bash" DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions
  RENAME lathe)
install(FILES "${shell_files}/completion-zsh" DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions RENAME _lathe)
install(FILES "${shell_files}/completion-fish" DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d
  RENAME lathe.fish)
install(DIRECTORY configs DESTINATION ${CMAKE_INSTALL_DATADIR}/lathe)
install(DIRECTORY docs/ DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/lathe PATTERN api EXCLUDE)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/LatheConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/LatheConfig.cmake" "${PROJECT_BINARY_DIR}/LatheConfigVersion.cmake"
  cmake/FindLibTorch.cmake DESTINATION ${package})
