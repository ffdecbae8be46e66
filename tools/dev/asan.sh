# shellcheck shell=bash disable=SC2154 # variables of dev and of the files that it reads first
# ./dev asan [--part | ...]: runs the tests that are not slow under the address and
# undefined-behavior sanitizers. --part instruments all code except dist/, train/, the tests and the
# commands that they run. Other arguments go to ctest.

# Runs the quick tests of each tag in a separate process, with as many processes at the same time as
# there are cores. With OMP_WAIT_POLICY=passive, waiting threads sleep and leave their core to other
# threads. Tests that measure the memory of a process are skipped, because the sanitizers use memory
# too. Tests in tests/dist, tests/docs and tests/train are also skipped, because most of their work
# is done by code that is not instrumented: dist/, train/ and other programs.
run_checked() {
  local tag tags=()
  for tag in $(ctest --test-dir "$build" -N -LE slow | sed -n 's/^ *Test *#[0-9]*: //p'); do
    case $(find tests -name "${tag}_test.cc") in
      '' | tests/dist/* | tests/docs/* | tests/train/*) ;;
      *) tags+=("$tag") ;;
    esac
  done
  # shellcheck disable=SC2016
  printf '%s\n' "${tags[@]}" |
    ASAN_OPTIONS=detect_leaks=0 OMP_WAIT_POLICY=passive nice -n 10 xargs -P "$(nproc)" -I TAG sh -c \
      '"$0"/tests/lathe_tests_checked "[TAG]~[process_memory]" >"$0"/checked-TAG.log 2>&1 ||
        { cat "$0"/checked-TAG.log >&2; exit 255; }' "$build" ||
    die "a test failed under the sanitizers; its output is above"
  say "these tests passed under the sanitizers: ${tags[*]}"
}

setup
if [ "${1:-}" = --part ]; then
  compile "$build" "all lathe_tests_checked"
  run_checked
else
  compile build-asan all -DLATHE_ASAN=ON -DCMAKE_BUILD_TYPE=RelWithDebInfo -DLATHE_CUDA=OFF
  ASAN_OPTIONS=detect_leaks=0 ctest --test-dir build-asan --output-on-failure --no-tests=error -LE slow "$@"
fi
