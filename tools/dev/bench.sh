# shellcheck shell=bash disable=SC2154 # variables of dev and of the files that it reads first
# ./dev bench: measures ops and training steps; with --peer, also measures the same in PyTorch.
#
# ./dev bench tokenizers: compares the speed of tokenizers.

bench_status() { printf 'making the environment: %s, %s MB' "$(clock "$1")" "$(du -sm "$prefix.new" 2>/dev/null | cut -f1)"; }

# make_environment FOLDER GB WHAT PACKAGE...: creates a Python environment with these packages in
# FOLDER, unless that folder exists. GB and WHAT are only for messages: the size of the environment,
# and what it is for.
make_environment() {
  local prefix=$1 gb=$2 what=$3 log
  shift 3
  [ ! -e "$prefix/bin/python" ] || return 0
  say "making $what environment in $prefix: $gb GB"
  install_packages python3-venv
  mkdir -p "$cache"
  need_space $((2 * gb + 1)) "$cache"
  rm -rf "$prefix.new"
  python3 -m venv "$prefix.new"
  log=$(mktemp)
  run_shown "$log" bench_status "$prefix.new/bin/python" -m pip install -q --disable-pip-version-check "$@" ||
    die "the Python packages could not be fetched; is there a network? ($(grep -m1 ERROR "$log" || tail -n1 "$log"))"
  rm -f "$log"
  mv "$prefix.new" "$prefix"
}

setup
compile_lathe

if [ "${1:-}" = tokenizers ]; then
  [ $# -ge 3 ] || die "bench tokenizers needs a folder with GPT-2's vocab.json and merges.txt, and a text: ./dev bench tokenizers VOCABULARY TEXT"
  vocabulary=$(from "$caller" "$2") text=$(from "$caller" "$3")
  shift 3
  prefix=$cache/tokenizers-0.23
  make_environment "$prefix" 1 "the tokenizers'" tokenizers==0.23.3 tiktoken==0.14.0
  "$prefix/bin/python" -B tests/oracles/tokenizers/speed.py "$build/lathe" "$vocabulary" "$text" "$@"
  exit 0
fi

data=data/bench peer=()
if [ "${1:-}" = --peer ]; then
  shift
  prefix=$cache/peer-$torch_version
  peer=(--peer "$prefix/bin/python")
  make_environment "$prefix" 4 "PyTorch's" "torch==$torch_version" numpy
fi
[ -e $data/manifest.json ] || "$build/lathe" prepare "$libtorch/include/c10" --out $data --tokenizer char >/dev/null
python3 tests/bench/performance.py --lathe "$build/lathe" --data $data "${peer[@]}" "$@"
