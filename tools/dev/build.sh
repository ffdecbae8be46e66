# shellcheck shell=bash disable=SC2154 # variables of dev and of the files that it reads first
# ./dev build: configures with CMake, and compiles with Ninja.

build=$(from "$PWD" "${LATHE_BUILD:-build}")

configure() { # BUILD_FOLDER [CMAKE_OPTION...]
  local folder=$1 log
  shift
  log=$(mktemp)
  # CMake remembers the folder of the test data, so if LATHE_TEST_DATA is not set, the build keeps
  # the previous folder.
  [ -z "${LATHE_TEST_DATA:-}" ] || set -- -DLATHE_TEST_DATA="$(from "$caller" "$LATHE_TEST_DATA")" "$@"
  cmake -S . -B "$folder" -G Ninja -DLIBTORCH="$libtorch" -DLATHE_WERROR=ON "$@" >"$log" 2>&1 || {
    cat "$log" >&2
    die "cmake could not configure the build; its output is above"
  }
  rm -f "$log"
}

build_status() {
  local at
  at=$(tail -c 4000 "$log" | grep -oE '^\[[0-9]+/[0-9]+' | tail -n1 | tr -d '[')
  [ -n "$at" ] || { printf 'compiling: %s' "$(clock "$1")"; return; }
  printf 'compiling: %s files, %s' "$at" "$(share_done "${at%/*}" "${at#*/}" "$1")"
}

compile() { # BUILD_FOLDER TARGETS [CMAKE_OPTION...]: TARGETS in one word, "all" for everything
  local folder=$1 targets=$2 begin=$SECONDS log
  shift 2
  configure "$folder" "$@"
  log=$(mktemp)
  # shellcheck disable=SC2086
  if ! run_shown "$log" build_status ninja -C "$folder" $targets; then
    grep -vE '^\[[0-9]+/[0-9]+\] (Building|Linking)' "$log" >&2
    die "the build failed; the compiler's output is above"
  fi
  if grep -q 'no work to do' "$log"; then :; else took "built in" "$begin"; fi
  rm -f "$log"
}

# Builds the binary. With a GPU driver, builds everything, which includes liblathe_cuda.so.
compile_lathe() {
  local targets=lathe
  if ldconfig -p 2>/dev/null | grep -q 'libcuda\.so\.1'; then targets=all; fi
  compile "$build" "$targets"
}
