# shellcheck shell=bash disable=SC2154 # variables of dev and of the files that it reads first
# ./dev fuzz [NAME ...] [--runs N]: runs the named fuzz targets of tests/fuzz, or all targets, each
# on N inputs.

runs=1000000 names=()
while [ $# -gt 0 ]; do
  case $1 in
    --runs | --runs=*)
      if [ "$1" = --runs ]; then shift; fi
      runs=${1:-}
      runs=${runs#--runs=}
      case $runs in '' | *[!0-9]*) die "--runs needs a whole number" ;; esac
      ;;
    -*) die "fuzz accepts only --runs N, not $1" ;;
    *)
      [ -e "tests/fuzz/$1.cc" ] || die "there is no target $1; there are: $(cd tests/fuzz && printf '%s ' *.cc | sed 's/\.cc//g')"
      names+=("$1")
      ;;
  esac
  shift
done
if [ ${#names[@]} -eq 0 ]; then for name in tests/fuzz/*.cc; do names+=("$(basename "$name" .cc)"); done; fi

install_packages cmake ninja-build clang libclang-rt-14-dev nlohmann-json3-dev libtomlplusplus-dev libxxhash-dev \
  libpcre2-dev libutf8proc-dev libsimdjson-dev libzstd-dev zlib1g-dev libpng-dev libjpeg-dev
cmake -S tests/fuzz -B build-fuzz -G Ninja -DCMAKE_CXX_COMPILER=clang++ >/dev/null || die "the fuzz targets could not be configured"
ninja -C build-fuzz "${names[@]}" || die "the fuzz targets could not be built; the compiler's output is above"

for name in "${names[@]}"; do
  mkdir -p "build-fuzz/corpus/$name"
  say "$name: $runs inputs"
  nice -n 10 "build-fuzz/$name" -runs="$runs" -max_len=4096 -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
    -verbosity=0 -artifact_prefix="build-fuzz/$name-" "build-fuzz/corpus/$name" ||
    die "$name: an input breaks it; the file is named above; run build-fuzz/$name FILE to reproduce this"
done
