#!/usr/bin/env python3
"""Simulates power cuts on real file systems. While a run trains in a loop-mounted image, the image
is cloned. Then the clone is mounted, and the run resumes in the clone.

A clone is a snapshot of the block device. It has exactly the writes that the file system issued
before the clone. This is the state of a disk that writes its cache when the power fails;
tests/train/store/crash_test.cc simulates disks that lose or reorder their cache. The image is a
file in a separate XFS file system, because clones (reflinks) are atomic and copies are not. In one
run, strace skips every fsync. The checks of this run must fail.

usage: power_cut.py LATHE ext4|xfs [CUTS [SEED]]
"""
import contextlib
import os
import random
import re
import shutil
import subprocess
import sys
import threading
import time

from tiny import Tiny, check, checkpoints, control, difference, need, skip, unfinished, resumed_from


def root(*words):
    return subprocess.run([str(w) for w in words], capture_output=True, text=True)


def make_image(path, kind, mb):
    with open(path, "wb") as f:
        f.truncate(mb << 20)
    done = root(f"mkfs.{kind}", "-q", path)
    check(done.returncode == 0, f"mkfs.{kind}: {done.stderr}")


@contextlib.contextmanager
def mounted(image, at, options="loop"):
    at.mkdir(exist_ok=True)
    done = root("mount", "-o", options, image, at)
    if done.returncode != 0:
        skip(f"mount is refused here: {done.stderr.strip()}")
    try:
        yield at
    finally:
        root("umount", at)


def cut(tiny, kind, outer, disk, at, number, under=()):
    """Cuts the power `at` seconds after the start of a run, or at its end. Returns the step that
    the run resumed from."""
    run = disk / f"run{number}"
    process = subprocess.Popen([*under, *tiny.command(run)], cwd=tiny.folder, stdout=subprocess.PIPE, text=True)
    said = []
    reader = threading.Thread(target=lambda: said.extend(iter(process.stdout.readline, "")))
    reader.start()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(at)
    saved = [int(m[1]) for m in (re.match(r"saved .*step-(\d+)$", line) for line in list(said)) if m]
    clone = outer / "clone.img"
    done = root("cp", "--reflink=always", outer / "disk.img", clone)
    process.kill()
    process.wait()
    reader.join()
    if done.returncode != 0:
        skip(f"the file system cannot clone a file: {done.stderr.strip()}")
    with mounted(clone, tiny.folder / "after", "loop,nouuid" if kind == "xfs" else "loop") as after:
        again = after / f"run{number}"
        there = checkpoints(again)
        check(not saved or (there and there[-1] >= saved[-1]), f"step {saved[-1:]} was saved and {there} is there")
        output = tiny.train(again).stdout
        check(resumed_from(output) == (there[-1] if there else 0), f"resumed from {resumed_from(output)}, not {there}")
        check(difference(tiny.reference, again) == "", f"{difference(tiny.reference, again)}, cut after {at:.3f} s")
        check(unfinished(again) == [], f"{unfinished(again)} is left")
    clone.unlink()
    return there[-1] if there else 0


def main():
    lathe, kind = sys.argv[1:3]
    cuts = int(sys.argv[3]) if len(sys.argv) > 3 else 12
    seed = int(sys.argv[4]) if len(sys.argv) > 4 else random.randrange(1 << 31)
    need("mkfs.xfs", f"mkfs.{kind}")
    if os.geteuid() != 0:
        skip("mounting needs root")
    print(f"{kind}, seed {seed}", flush=True)
    tiny = Tiny(lathe, steps=60, interval=3)
    begin = time.monotonic()
    tiny.train(tiny.folder / "timed")
    seconds = time.monotonic() - begin
    make_image(tiny.folder / "outer.img", "xfs", 1400)
    with mounted(tiny.folder / "outer.img", tiny.folder / "outer") as outer:
        make_image(outer / "disk.img", kind, 320)
        with mounted(outer / "disk.img", tiny.folder / "disk") as disk:
            draw = random.Random(seed)
            steps = [cut(tiny, kind, outer, disk, draw.uniform(0.2, 1.2) * seconds, i) for i in range(cuts)]
            if shutil.which("strace"):
                no_sync = ["strace", "-f", "-o", "/dev/null", "-e", "trace=fsync", "-e", "inject=fsync:retval=0"]
                control("without fsync", lambda: cut(tiny, kind, outer, disk, 60, cuts, no_sync))
            else:
                print("no control without fsync: this machine has no strace")
    print(f"{cuts} power cuts on {kind}; the runs resumed from steps {steps} with the same bits")


main()
