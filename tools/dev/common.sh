# shellcheck shell=bash disable=SC2154 # variables of dev and of the files that it reads first
# Functions that print messages, and the progress of long commands.

die() {
  printf 'dev: %s\n' "$*" >&2
  exit 1
}
say() { printf '%s\n' "$*"; }
took() { say "$1: $((SECONDS - $2)) s"; }

# run_shown LOG STATUS COMMAND...: runs a long command, writes its output to LOG, and shows its
# progress. STATUS is a function that gets the elapsed seconds and prints the progress. On a
# terminal, one line is rewritten each second; otherwise a line is printed every 10 seconds.
run_shown() {
  local log=$1 status=$2 begin=$SECONDS shown=$SECONDS pid code=0
  shift 2
  "$@" >"$log" 2>&1 &
  pid=$!
  trap 'kill "$pid" 2>/dev/null; exit 130' INT TERM
  while kill -0 "$pid" 2>/dev/null; do
    sleep 1
    if [ -t 1 ] && [ "${TERM:-dumb}" != dumb ]; then
      printf '\r\033[K%s' "$("$status" $((SECONDS - begin)))"
    elif [ $((SECONDS - shown)) -ge 10 ]; then
      shown=$SECONDS
      say "$("$status" $((SECONDS - begin)))"
    fi
  done
  [ ! -t 1 ] || printf '\r\033[K'
  trap - INT TERM
  wait "$pid" || code=$?
  return "$code"
}

tell_time() { # WHAT: every 10 seconds, prints how much time has passed, until it is killed
  local begin=$SECONDS
  while sleep 10 >/dev/null 2>&1; do say "$1 $(clock $((SECONDS - begin)))"; done
}

clock() { printf '%d:%02d' $(($1 / 60)) $(($1 % 60)); }

# share_done DONE ALL SECONDS: prints, for example, "37%, about 1:20 to go"; prints nothing if DONE
# is 0.
share_done() {
  [ "$1" -gt 0 ] || return 0
  printf '%d%%, about %s to go' $((100 * $1 / $2)) "$(clock $(($3 * ($2 - $1) / $1)))"
}
