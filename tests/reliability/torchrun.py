#!/usr/bin/env python3
"""Trains a tiny run on two processes that torchrun starts.

With dist.shard "none" and "parameters", the results must be bitwise equal to those of a run on one
process. When a rank is killed, torchrun restarts all ranks. The results must then be the same.

usage: torchrun.py LATHE

LATHE is the path of the binary. LATHE_TORCHRUN may be set to the path of torchrun. If it is not
set, and torchrun is neither in PATH nor in the virtual environment that `./dev bench --peer`
creates, the test is skipped.
"""
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from tiny import Tiny, check, checkpoints, control, difference, skip

STEPS = 40
WORDS = ["--train.grad_accum=4", "--memory.recompute=blocks", "--dist.timeout=10"]


def find_torchrun():
    cache = Path(os.environ.get("LATHE_CACHE", Path.home() / ".cache/lathe"))
    peers = sorted(cache.glob("peer-*/bin/torchrun"))
    found = os.environ.get("LATHE_TORCHRUN") or shutil.which("torchrun") or (peers and str(peers[-1]))
    return found or skip("there is no torchrun")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def start(torchrun, tiny, run, ranks, *words, restarts=0):
    launch = [torchrun, "--nnodes", "1", "--nproc-per-node", str(ranks), "--rdzv-backend", "c10d", "--rdzv-endpoint",
              f"127.0.0.1:{free_port()}", "--max-restarts", str(restarts), "--monitor-interval", "0.2", "--no-python"]
    return subprocess.Popen([*launch, tiny.lathe, *tiny.command(run)[1:], *words], cwd=tiny.folder,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)


def end(process):
    out, _ = process.communicate(timeout=120)
    check(process.returncode == 0, f"code {process.returncode}: {out[-3000:]}")


def rank_processes(lathe, run):
    """Returns the ids of the processes of the binary `lathe` that train in the folder `run`."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
            if words and words[0].decode() == lathe and f"--train.out_dir={run}".encode() in words:
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def main():
    torchrun = find_torchrun()
    tiny = Tiny(sys.argv[1], steps=STEPS, interval=5, words=WORDS)
    for shard in ("none", "parameters"):
        run = tiny.folder / shard
        end(start(torchrun, tiny, run, 2, f"--dist.shard={shard}"))
        check(difference(tiny.reference, run) == "", f"{shard}: {difference(tiny.reference, run)}")

    run = tiny.folder / "killed"
    process = start(torchrun, tiny, run, 2, "--dist.shard=gradients", restarts=3)
    deadline = time.time() + 60
    while time.time() < deadline and not (run / "checkpoints").is_dir():
        time.sleep(0.02)
    ranks = rank_processes(tiny.lathe, run)
    check(len(ranks) == 2, f"{len(ranks)} ranks run")
    os.kill(ranks[1], signal.SIGKILL)
    end(process)
    check(checkpoints(run)[-1] == STEPS and difference(tiny.reference, run) == "", difference(tiny.reference, run))

    # The comparison must notice a run with another seed.
    other = Tiny(sys.argv[1], steps=STEPS, interval=5, words=[*WORDS, "--train.seed=7"])
    control("a run of another seed",
            lambda: check(difference(tiny.reference, other.reference) == "", "another seed has other bits"))
    print("runs under torchrun have the bits of one process, even if a rank is killed")


main()
