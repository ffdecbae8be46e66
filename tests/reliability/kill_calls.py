#!/usr/bin/env python3
"""Kills a run at each system call on files and folders (CALLS) that its first thread makes in a
save. strace sends SIGKILL when the call begins. The run must resume from the newest complete
checkpoint and end bitwise equal to an uninterrupted run.

usage: kill_calls.py LATHE
"""
import collections
import re
import shutil
import subprocess
import sys

from tiny import Tiny, check, checkpoints, difference, need, skip, unfinished, resumed_from

CALLS = ("openat,write,fsync,close,ftruncate,flock,?rename,?renameat,?renameat2,?mkdir,?mkdirat,?unlink,?unlinkat,"
         "?rmdir")
STEPS = 6


def traced(tiny, run, log, *inject):
    words = ["strace", "-f", "-y", "-o", log, "-e", f"trace={CALLS}", *inject, *tiny.command(run)]
    return subprocess.run(words, cwd=tiny.folder, capture_output=True, text=True, timeout=300)


def calls_of(log):
    """Returns the system calls of the first thread in order. Each has its name and the text after
    "("."""
    found, first = [], None
    for line in log.read_text(errors="replace").splitlines():
        match = re.match(r"(\d+) +(\w+)\((.*)", line)
        if match:
            first = first or match[1]
            if match[1] == first:
                found.append((match[2], match[3]))
    return found


def main():
    need("strace")
    if subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True).returncode != 0:
        skip("strace is not permitted to trace processes here")
    tiny = Tiny(sys.argv[1], steps=STEPS, interval=2)
    run, log = tiny.folder / "run", tiny.folder / "trace"
    check(traced(tiny, run, log).returncode == 0, "the run under strace ended with an error")
    calls = calls_of(log)
    # Kill the save of step 6, which follows the saves of steps 2 and 4 and deletes checkpoint 2.
    first = next(i for i, (_, words) in enumerate(calls) if ".unfinished-step-00000006" in words)
    last = max(i for i, (_, words) in enumerate(calls) if ".unfinished-step-00000002" in words)
    seen, trials = collections.Counter(), 0
    for i, (name, words) in enumerate(calls[:last + 1]):
        seen[name] += 1
        if i < first:
            continue
        shutil.rmtree(run)
        done = traced(tiny, run, log, "-e", f"inject={name}:signal=KILL:when={seen[name]}")
        what = f"{name}({words[:100]}"
        check(done.returncode != 0, f"no kill at {what}")
        struck = calls_of(log)
        check(len(struck) == i + 1 and struck[-1][0] == name, f"killed at call {len(struck)}, not {i + 1}, {what}")
        there = checkpoints(run)
        check(there in ([2, 4], [2, 4, 6], [4, 6]),
              f"the checkpoints {there} remain after a kill at {what}")
        tiny.run("verify", str(run))
        output = tiny.train(run).stdout
        check(resumed_from(output) == there[-1], f"resumed from {resumed_from(output)}, not {there[-1]}, after {what}")
        check(difference(tiny.reference, run) == "", f"{difference(tiny.reference, run)} after a kill at {what}")
        check(unfinished(run) == [], f"{unfinished(run)} is left after a kill at {what}")
        trials += 1
    check(trials > 40, f"only {trials} calls were seen in a save")
    print(f"{trials} kills, one at each call on files in a save; all resumed with the same bits")


main()
