#!/usr/bin/env python3
"""Trains with two processes in two network namespaces, each with its own address: two_networks.py
LATHE

The run must be bitwise equal to a run on one process. When the link between the processes goes
down, both processes must end with exit code 7 at most 4 s after dist.timeout. The run must resume
once the link is up again. The test is skipped if namespaces can't be created.
"""
import os
import subprocess
import sys
import time

from networks import ADDRESSES, NAMES, Networks
from tiny import Tiny, check, checkpoints, control, difference, need

STEPS, TIMEOUT, PORT = 30, 4, 29544


def start(tiny, run, *words):
    processes = []
    for rank, name in enumerate(NAMES):
        environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": ADDRESSES[0],
                       "MASTER_PORT": str(PORT)}
        processes.append(subprocess.Popen(["ip", "netns", "exec", name, *tiny.command(run), *words], cwd=tiny.folder,
                                          env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    return processes


def end(processes, codes):
    for process in processes:
        out, _ = process.communicate(timeout=60)
        check(process.returncode in codes, f"code {process.returncode}, not one of {codes}: {out[-1500:]}")


def main():
    need("ip")
    tiny = Tiny(sys.argv[1], steps=STEPS, interval=5, words=["--train.grad_accum=2", f"--dist.timeout={TIMEOUT}"])
    with Networks() as networks:
        run = tiny.folder / "whole"
        end(start(tiny, run), [0])
        check(difference(tiny.reference, run) == "", difference(tiny.reference, run))

        cut = tiny.folder / "cut"
        processes = start(tiny, cut, "--train.steps=1000000")
        while not (cut / "checkpoints").is_dir() or not checkpoints(cut):
            check(all(p.poll() is None for p in processes), "a process ended by itself")
            time.sleep(0.02)
        networks.cut()
        begin = time.monotonic()
        end(processes, [7])
        seconds = time.monotonic() - begin
        check(seconds < TIMEOUT + 4, f"the processes took {seconds:.1f} s to notice")
        check(checkpoints(cut) != [], "the checkpoints are gone")

        networks.mend()
        end(start(tiny, cut, f"--train.steps={checkpoints(cut)[-1] + 5}"), [0])

    def compare():
        check(difference(tiny.reference, cut) == "", "a run with more steps differs")

    control("a run of more steps", compare)
    print(f"the run on two networks has the bits of one process; a cut link was noticed after {seconds:.1f} s")


main()
