#!/usr/bin/env python3
"""Trains on a full disk. A run on a tmpfs that is too small must end with exit code 6 and an error
of one sentence, and must resume once there is space.

usage: full_disk.py LATHE
"""
import os
import subprocess
import sys

from tiny import Tiny, check, checkpoints, difference, skip, unfinished


def main():
    if os.geteuid() != 0:
        skip("mounting needs root")
    tiny = Tiny(sys.argv[1], steps=12, interval=2, width=64)
    one = sum(p.stat().st_size for p in (tiny.reference / "checkpoints/step-00000012").iterdir())
    disk = tiny.folder / "disk"
    disk.mkdir()
    # Two checkpoints fit beside the other files. A save needs space for three checkpoints until it
    # has deleted the oldest one.
    size = 2 * one + 100_000
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(disk)], capture_output=True,
                          text=True)
    if done.returncode != 0:
        skip(f"mount is refused here: {done.stderr.strip()}")
    try:
        run = disk / "run"
        said = tiny.train(run, code=6).stderr
        check("No space left on device" in said and "are free; free space and run the same command again" in said, said)
        check([line.split(":")[0] for line in said.splitlines()] == ["warning", "error"] and "warning: needs" in said,
              f"more than the forecast's warning and a sentence: {said}")
        check(unfinished(run) == [], f"{unfinished(run)} is left")
        there = checkpoints(run)
        check(there, "no checkpoint was saved before the disk was full")
        tiny.run("verify", str(run))
        subprocess.run(["mount", "-o", f"remount,size={size * 4}", str(disk)], check=True)
        tiny.train(run)
        check(difference(tiny.reference, run) == "", difference(tiny.reference, run))
    finally:
        subprocess.run(["umount", str(disk)])
    print(f"the disk was full after step {there[-1]}: exit code 6, and with free space the run resumed with the same bits")


main()
