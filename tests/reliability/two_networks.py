#!/usr/bin/env python3
"""Trains with two processes in network namespaces with addresses of their own: two_networks.py
LATHE

The run must have the bits of a run on one process. When the link between the processes goes down,
both must end with exit code 7 in time, and the run must resume once the link is up. Skipped if
namespaces can't be created.
"""
import os
import subprocess
import sys
import time

from tiny import Tiny, check, checkpoints, control, difference, need, skip

STEPS, TIMEOUT, PORT = 30, 4, 29544
NAMES = [f"lathe{os.getpid()}{side}" for side in "ab"]
ADDRESSES = ["10.213.7.1", "10.213.7.2"]


def ip(*words):
    return subprocess.run(["ip", *words], capture_output=True, text=True)


class Networks:
    """Two namespaces and a link between them."""

    def __enter__(self):
        links = [f"lt{os.getpid() % 100000}{side}" for side in "ab"]
        for name in NAMES:
            made = ip("netns", "add", name)
            if made.returncode != 0:
                self.__exit__()
                skip(f"network namespaces can't be made: {made.stderr.strip()}")
        made = ip("link", "add", links[0], "netns", NAMES[0], "type", "veth", "peer", "name", links[1], "netns", NAMES[1])
        if made.returncode != 0:
            self.__exit__()
            skip(f"a link between namespaces can't be made: {made.stderr.strip()}")
        for name, link, address in zip(NAMES, links, ADDRESSES):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", link)
            ip("-n", name, "link", "set", link, "up")
            ip("-n", name, "link", "set", "lo", "up")
        if ip("netns", "exec", NAMES[1], "true").returncode != 0:
            self.__exit__()
            skip("nothing may run in a network namespace")
        self.links = links
        return self

    def __exit__(self, *_):
        for name in NAMES:
            ip("netns", "del", name)

    def cut(self):
        ip("-n", NAMES[1], "link", "set", self.links[1], "down")

    def mend(self):
        ip("-n", NAMES[1], "link", "set", self.links[1], "up")


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
    print(f"two networks: the bits of one process, and a cut link noticed after {seconds:.1f} s")


main()
