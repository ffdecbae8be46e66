# shellcheck shell=bash disable=SC2154 # variables of dev and of the files that it reads first
# ./dev fmt [--check]: formats the sources with clang-format, or with --check names the files that
# are not formatted.

sources() { git ls-files --cached --others --exclude-standard '*.h' '*.cc' '*.cu' '*.cuh'; }

install_packages clang-format-19
if [ "${1:-}" != --check ]; then
  sources | xargs clang-format-19 -i
elif ! found=$(sources | xargs clang-format-19 --dry-run -Werror 2>&1); then
  printf '%s\n' "$found" | grep -E 'error:' | cut -d: -f1 | sort -u | sed 's/$/ is not formatted; run .\/dev fmt/' >&2
  exit 1
fi
