#!/usr/bin/env python3
"""Starts two trainers on one folder, the second at a random moment after the first. One must train,
and the other must end with exit code 8 and a message. The run must be bitwise equal to a run
without a second trainer. If the first trainer ends before the second starts, the race does not
count. Half of the races use a new folder, and half use a stopped run.

In addition, the lock file is deleted while the first trainer is paused. Both then train, which the
checks must notice.

usage: two_trainers.py LATHE [RACES [SEED]]
"""
import collections
import random
import re
import shutil
import signal
import sys
import time

from tiny import Tiny, check, checkpoints, control, difference, unfinished

STEPS = 30


def judge(tiny, run, ended):
    """Checks how two processes ended (code, output, errors). Returns whether both ran at the same
    time, so that one was refused."""
    what = "".join(f"\ncode {code}: {out[-300:]}{err}" for code, out, err in ended)
    trained = [i for i, (_, out, _) in enumerate(ended) if re.search("^run       ", out, re.M)]
    check(len(trained) == 1, f"{len(trained)} processes trained:{what}")
    code, out, err = ended[1 - trained[0]]
    check(ended[trained[0]][0] == 0, what)
    check(code in (0, 8), what)
    if code == 8:
        check(re.fullmatch(r"error: (the run folder \S+ is in use by another lathe process; wait for it, stop it, or give "
                           r"another --train.out_dir|another process has trained in \S+ meanwhile; run the same command "
                           r"again to resume from there)\n", err), what)
    else:
        check("nothing to do: the run ended with " in out, what)
    check(checkpoints(run)[-1] == STEPS and unfinished(run) == [], f"{checkpoints(run)} {unfinished(run)}")
    check(difference(tiny.reference, run) == "", f"{difference(tiny.reference, run)}:{what}")
    return code == 8


def finish(process, said=""):
    out, err = process.communicate(timeout=300)
    return process.returncode, said + out, err


def race(tiny, run, after):
    first = tiny.start(run)
    time.sleep(after)
    second = tiny.start(run)
    return judge(tiny, run, [finish(first), finish(second)])


def read_until(process, begin):
    said = ""
    for line in process.stdout:
        said += line
        if line.startswith(begin):
            return said
    sys.exit(f"FAILED: no line begins with {begin}: {said}{process.stderr.read()}")


def race_without_lock(tiny, run):
    first = tiny.start(run)
    said = read_until(first, "step 3/")
    first.send_signal(signal.SIGSTOP)
    (run / "lock").unlink()
    second = finish(tiny.start(run))
    first.send_signal(signal.SIGCONT)
    judge(tiny, run, [finish(first, said), second])


def main():
    races = int(sys.argv[2]) if len(sys.argv) > 2 else 100
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else random.randrange(1 << 31)
    print(f"seed {seed}", flush=True)
    draw = random.Random(seed)
    tiny = Tiny(sys.argv[1], steps=STEPS, interval=3)
    run, stopped = tiny.folder / "run", tiny.folder / "stopped"
    begin = time.monotonic()
    process = tiny.start(run)
    read_until(process, "step 10/")
    seconds = time.monotonic() - begin
    process.send_signal(signal.SIGTERM)
    check(finish(process)[0] == 75, "the run to resume was not stopped")
    run.rename(stopped)

    met, trials = collections.Counter(), 0
    while met.total() < races:
        kind = draw.choice(["new", "stopped"])
        if kind == "stopped":
            shutil.copytree(stopped, run)
        met[kind] += race(tiny, run, draw.choice([draw.uniform(0, 0.02), draw.uniform(0, seconds)]))
        shutil.rmtree(run)
        trials += 1
        check(trials < 3 * races + 10, "the trainers do not meet")
    control("two processes train in one folder", lambda: race_without_lock(tiny, run))
    print(f"in {met.total()} of {trials} races ({dict(met)}), both trainers ran at the same time and one was refused; "
          "all runs ended with the same bits")


main()
