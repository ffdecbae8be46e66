# shellcheck shell=bash disable=SC2154 # variables of dev and of the files that it reads first
# ./dev lint [--changed | FILE...]: reports phrases to avoid (CONTRIBUTING.md) in changed lines,
# public declarations without a contract, and what clang-tidy finds. clang-tidy checks the named
# files; with --changed, the changed sources; by default, all sources.

# Prints the commit with which changes are compared: the one where this branch left main, or, on
# main, the previous commit.
lint_base() {
  local base
  base=$(git merge-base HEAD origin/main 2>/dev/null || git merge-base HEAD main 2>/dev/null || true)
  if [ -z "$base" ] || [ "$base" = "$(git rev-parse HEAD)" ]; then base=$(git rev-parse -q --verify HEAD~1 || true); fi
  printf '%s' "$base"
}

# Prints a source, read from standard input, without its comments, string contents and spaces.
without_comments() { "${CXX:-c++}" -fpreprocessed -dD -E -P -x c++ - 2>/dev/null | sed -E "s/'\"'//g"'; /^ *#/!s/"([^"\\]|\\.)*"/""/g' | tr -d '[:space:]"'; }

# Succeeds if the code of file $1 differs from its code in the commit $base. A changed comment
# counts only if clang-tidy reads it: NOLINT, and argument names in /* */.
code_differs() {
  local now
  # Without a compiler that has these options, assume a difference.
  now=$(without_comments <"$1") && [ -n "$now" ] || return 0
  [ -n "$(git diff -U0 "$base" -- "$1" | grep -E '^[+-].*(NOLINT|/\*)')" ] ||
    [ "$(git show "$base:$1" 2>/dev/null | without_comments)" != "$now" ]
}

# Prints the sources that clang-tidy should check.
lint_files() {
  local file files
  if [ "${1:-}" = --changed ]; then
    files=$(git diff --name-only --diff-filter=d "$base" -- '*.cc' '*.h' | while read -r file; do
      ! code_differs "$file" || printf '%s\n' "${file%.*}.cc"
    done | sort -u)
  else
    files=${*:-$(git ls-files '*.cc')}
    for file in "$@"; do [ -e "$file" ] || die "there is no file $file (named from the top of the repository)"; done
  fi
  for file in $files; do
    case $file in
      core/cuda/* | tests/fuzz/*) ;; # not part of a build for CPUs
      *) [ ! -e "$file" ] || printf '%s\n' "$file" ;;
    esac
  done
}

base=$(lint_base)
[ -z "$base" ] || python3 -B tools/prose.py "$base"
setup
install_packages clang-tidy-19 doxygen
configure build-lint -DCMAKE_UNITY_BUILD=OFF # clang-tidy reads each file with its own flags
.ci/contracts build-lint/api

if [ "${1:-}" = --changed ] && [ -z "$base" ]; then
  say "lint: NOT RUN, because this history has no commit to compare with"
  exit 0
fi
files=$(lint_files "$@")
if [ -z "$files" ]; then
  say "lint: no sources to check"
  exit 0
fi
# shellcheck disable=SC2086
.ci/lint build-lint $files
