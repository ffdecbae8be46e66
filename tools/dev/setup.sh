# shellcheck shell=bash disable=SC2154,SC2034 # variables of dev and of the files that it reads first
# ./dev setup: installs Debian packages and LibTorch.

torch_version=2.11.0
cache=$(from "$caller" "${LATHE_CACHE:-$HOME/.cache/lathe}")
own_libtorch=$(from "$caller" "${LIBTORCH:-}")
libtorch=${own_libtorch:-$cache/libtorch-$torch_version/torch}
# Package names of Debian 12. Ubuntu 24.04 has packages of the same names, but this is untested.
packages=(g++ cmake ninja-build ccache python3 python3-pip ca-certificates libspdlog-dev libfmt-dev libcxxopts-dev catch2
  libtomlplusplus-dev nlohmann-json3-dev libxxhash-dev libhwy-dev libpcre2-dev libutf8proc-dev libsimdjson-dev libzstd-dev
  zlib1g-dev libjs-dygraphs libcpp-httplib-dev libpng-dev libjpeg-dev)

root() { # COMMAND...: runs it as root; returns 127 if that is impossible
  if [ "$(id -u)" = 0 ]; then "$@"
  elif command -v sudo >/dev/null; then sudo "$@"
  else return 127; fi
}

packages_status() { printf 'installing: %s, %s' "$(clock "$1")" "$(tail -n1 "$log" | cut -c1-80)"; }

install_packages() { # NAME...: installs the Debian packages that are missing
  [ "${LATHE_PACKAGES:-}" != skip ] || return 0
  local have missing=() p
  [ -r /etc/os-release ] || die "this is not Debian 12; install the equivalents of: ${packages[*]}, then set LATHE_PACKAGES=skip"
  local os
  os=$(. /etc/os-release && printf '%s %s' "${ID:-}" "${VERSION_ID:-}")
  case $os in
    'debian 12' | 'ubuntu 24.04') ;;
    *) die "setup supports Debian 12 (and Ubuntu 24.04), not $os; install the equivalents of: ${packages[*]}, then set LATHE_PACKAGES=skip" ;;
  esac
  have=$(dpkg-query -W -f='${db:Status-Status} ${Package}\n' "$@" 2>/dev/null || true)
  for p in "$@"; do
    case $'\n'"$have"$'\n' in *$'\n'"installed $p"$'\n'*) ;; *) missing+=("$p") ;; esac
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  if [ "$(id -u)" != 0 ] && ! { command -v sudo >/dev/null && sudo -v; }; then
    die "these Debian packages are missing and need root; ask an administrator to run: apt-get install --no-install-recommends ${missing[*]}"
  fi
  say "installing Debian packages: ${missing[*]}"
  local log
  log=$(mktemp)
  run_shown "$log" packages_status root apt-get -q -o APT::Update::Error-Mode=any update ||
    die "apt-get update failed; is there a network? ($(grep -m1 '^E:' "$log" || tail -n1 "$log"))"
  run_shown "$log" packages_status root env DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends "${missing[@]}" ||
    die "the packages could not be installed ($(grep -m1 '^E:' "$log" || tail -n1 "$log")); the log is $log"
  rm -f "$log"
}

need_space() { # GB FOLDER
  local free
  free=$(($(df --output=avail -B1G "$2" | tail -n1)))
  [ "$free" -ge "$1" ] || die "$2 has $free GB free and $1 GB are needed; free some, or set LATHE_CACHE to a folder on a larger disk"
}

fetch_status() {
  local have
  have=$(du -sm "$temporary" 2>/dev/null | cut -f1)
  printf 'fetching LibTorch: %s of about %s MB, %s' "${have:-0}" "$room_mb" "$(share_done "${have:-0}" "$room_mb" "$1")"
}

install_libtorch() { # [--cuda]
  if [ -n "$own_libtorch" ]; then
    [ -e "$own_libtorch/lib/libtorch_cpu.so" ] || die "LIBTORCH=$own_libtorch has no lib/libtorch_cpu.so; name the folder that holds include/ and lib/"
    return 0
  fi
  local target=$cache/libtorch-$torch_version
  local wheels=(--no-deps "torch==$torch_version" nvidia-cuda-runtime==13.0.96 nvidia-cuda-cupti==13.0.85) room=4 room_mb=1700
  if [ "${1:-}" = --cuda ]; then
    [ ! -e "$target/cuda-complete" ] || return 0
    wheels=("torch==$torch_version") room=12 room_mb=8000
  else
    [ ! -e "$target/torch/lib/libtorch_cpu.so" ] || return 0
  fi
  mkdir -p "$cache" 2>/dev/null || die "cannot create $cache; set LATHE_CACHE to a folder that can be written"
  need_space "$room" "$cache"
  say "fetching LibTorch $torch_version into $cache"
  local log temporary
  log=$(mktemp) temporary=$(mktemp -d "$cache/libtorch.XXXXXX")
  trap 'rm -rf "$temporary"' EXIT
  mkdir "$temporary/tmp" # pip downloads into it, so that fetch_status counts the downloads
  TMPDIR=$temporary/tmp run_shown "$log" fetch_status \
    python3 -m pip install -q --disable-pip-version-check --no-compile --target "$temporary/all" "${wheels[@]}" || {
    die "LibTorch could not be fetched; is there a network? ($(grep -m1 ERROR "$log" || tail -n1 "$log"))"
  }
  [ "${1:-}" != --cuda ] || touch "$temporary/all/cuda-complete"
  rm -rf "$target"
  mv "$temporary/all" "$target"
  rm -rf "$temporary"
  trap - EXIT
  rm -f "$log"
}

setup() {
  install_packages "${packages[@]}"
  local version
  version=$(${CXX:-g++} -dumpversion 2>/dev/null || true)
  case ${CXX:-g++} in
    *clang*) ;;
    *) [ "${version%%.*}" -ge 12 ] 2>/dev/null || die "g++ 12 or newer is needed, but ${CXX:-g++} is ${version:-missing}" ;;
  esac
  install_libtorch "$@"
}
