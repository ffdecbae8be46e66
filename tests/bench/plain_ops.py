#!/usr/bin/env python3
"""Compares a GPT that is written in plain ops with the built-in GPT: plain_ops.py BUILD LIBTORCH
[--rounds N]

Builds plain_gpt.cc against the build folder BUILD. Trains models of two sizes in turn. Each is
trained as kind "gpt", and as kind "plain" with and without train.fuse. Prints the time of a step
(the median of the medians of the rounds), its ratio to the time of "gpt", and the peak memory of
tensors.
"""
import argparse
import shutil
import statistics
import subprocess
import tempfile
from pathlib import Path

from small_model import prepare, train, write_config

SIZES = [dict(layers=4, heads=4, width=128, tokens=64, batch=12, steps=100),
         dict(layers=4, heads=6, width=384, tokens=256, batch=4, steps=16)]
CMAKE = """cmake_minimum_required(VERSION 3.25)
project(plain_gpt LANGUAGES CXX)
find_package(Lathe REQUIRED)
add_executable(plain_gpt plain_gpt.cc)
target_link_libraries(plain_gpt PRIVATE Lathe::lathe)
"""


def built(build, libtorch, folder):
    """Installs Lathe's package into `folder`, builds plain_gpt with it, and returns the program."""
    source = folder / "source"
    source.mkdir()
    (source / "CMakeLists.txt").write_text(CMAKE)
    shutil.copy(Path(__file__).with_name("plain_gpt.cc"), source)
    prefix = folder / "prefix"
    for command in [["cmake", "--install", build, "--prefix", prefix],
                    ["cmake", "-S", source, "-B", folder / "build", "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
                     f"-DCMAKE_PREFIX_PATH={prefix}", f"-DLIBTORCH={libtorch}"],
                    ["cmake", "--build", folder / "build"]]:
        subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL)
    return str(folder / "build/plain_gpt")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("build")
    p.add_argument("libtorch")
    p.add_argument("--rounds", type=int, default=5)
    a = p.parse_args()
    build = Path(a.build).resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = built(build, Path(a.libtorch).resolve(), folder)
        prepare(program, folder)
        plain = "--model.kind=plain"
        arms = {"gpt": [], "plain, train.fuse = auto": [plain], "plain, train.fuse = off": [plain, "--train.fuse=off"]}
        print("| channels, tokens | dtype | model | ms per step | of gpt | MB of tensors |\n|---|---|---|---|---|---|")
        for sizes in SIZES:
            for dtype in ("fp32", "bf16"):
                write_config(folder, kind="gpt", dtype=dtype, **sizes)
                times, memory = {arm: [] for arm in arms}, {}
                for _ in range(a.rounds):
                    for arm, flags in arms.items():
                        steps = train(program, folder, *flags)
                        times[arm].append(statistics.median(line["step_ms"] for line in steps[3:]))
                        memory[arm] = max(line["memory_bytes"] for line in steps) / 1e6
                for arm in arms:
                    ms, least = statistics.median(times[arm]), statistics.median(times["gpt"])
                    print(f"| {sizes['width']}, {sizes['batch']} x {sizes['tokens']} | {dtype} | {arm} | {ms:.1f} "
                          f"| {ms / least:.2f} | {memory[arm]:.1f} |", flush=True)


main()
