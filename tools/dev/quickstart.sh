# shellcheck shell=bash disable=SC2154 # variables of dev and of the files that it reads first
# prepare_quickstart ARGUMENT...: takes the arguments of ./dev train. If their config reads
# data/quickstart and that folder is missing, prepares it from LibTorch's operator headers.
prepare_quickstart() {
  local word config=() text=$libtorch/include/ATen/ops
  while [ $# -gt 0 ]; do
    word=$1
    shift
    case $word in
      --*=*) [[ $word != --*.*=* ]] || config+=("$word") ;;
      --*.*) config+=("$word"); [ $# -eq 0 ] || { config+=("$1"); shift; } ;;
      --*) [ $# -eq 0 ] || shift ;;
      *) config+=("$word") ;;
    esac
  done
  # Errors in the config are ignored here, because the training reports them.
  if [ ! -e data/quickstart/manifest.json ] &&
    "$build/lathe" config show "${config[@]}" 2>/dev/null | grep '^dir = "data/quickstart" ' >/dev/null; then
    "$build/lathe" prepare "$text" --out data/quickstart --tokenizer char
  fi
}
