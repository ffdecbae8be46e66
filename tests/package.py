#!/usr/bin/env python3
"""Installs Lathe into a temporary folder, builds each folder of examples/ against it, outside of the tree, and runs what
was built: package.py BUILD_FOLDER LIBTORCH. A control: without the installed package they can't be configured."""
import csv
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1]


def run(*words, cwd=None, fails=False):
    done = subprocess.run(list(map(str, words)), cwd=cwd, capture_output=True, text=True)
    if (done.returncode != 0) != fails:
        sys.exit(f"FAILED: {' '.join(map(str, words))} ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def blobs(path):
    """Examples of three classes, each around a point of its own."""
    draw = random.Random(1)
    with open(path, "w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["width", "height", "weight", "kind"])
        for i in range(300):
            kind = i % 3
            out.writerow([f"{draw.gauss(3 * (kind == j), 0.7):.3f}" for j in range(3)] + [["red", "green", "blue"][kind]])


def try_own_model(binary, folder):
    blobs(folder / "blobs.csv")
    run(binary, "prepare", "blobs.csv", "--out", "blobs", "--val", "0.2", cwd=folder)
    config = SOURCE / "examples/own_model/digits.toml"
    keys = ["--data.dir=blobs", "--train.eval_interval=0", "--train.threads=1"]
    assert "kind = \"maxout\"" in run(binary, "config", "show", config, *keys, cwd=folder)
    assert "million" in run(binary, "plan", config, *keys, cwd=folder)
    train = [binary, "train", config, *keys, "--schedule.kind=constant"]
    run(*train, "--train.out_dir=whole", "--train.steps=200", cwd=folder)
    last = json.loads(run(binary, "eval", "whole", cwd=folder).splitlines()[-1])
    assert last["accuracy"] > 0.9, last
    for steps in [90, 200]:  # in two parts: the same bits
        run(*train, "--train.out_dir=parts", f"--train.steps={steps}", cwd=folder)
    model = "checkpoints/step-00000200/model.safetensors"
    assert (folder / "whole" / model).read_bytes() == (folder / "parts" / model).read_bytes()
    run(*train, "--train.out_dir=other", "--train.steps=200", "--train.seed=2", cwd=folder)
    assert (folder / "whole" / model).read_bytes() != (folder / "other" / model).read_bytes()  # the control
    run(binary, "train", config, *keys, "--train.out_dir=low", "--train.steps=20", "--amp.dtype=bf16", cwd=folder)


def main():
    build, libtorch = map(Path, sys.argv[1:3])
    with tempfile.TemporaryDirectory(prefix="lathe-examples-") as temporary:
        folder = Path(temporary)
        prefix = folder / "prefix"
        run("cmake", "--install", build, "--prefix", prefix)
        for example in sorted(p for p in (SOURCE / "examples").iterdir() if p.is_dir()):
            binary_folder = folder / "build" / example.name
            configure = ["cmake", "-S", example, "-B", binary_folder, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release"]
            run(*configure, fails=True)
            run(*configure, f"-DCMAKE_PREFIX_PATH={prefix}", f"-DLIBTORCH={libtorch}")
            run("cmake", "--build", binary_folder)
            binary = binary_folder / example.name
            if example.name == "own_model":
                try_own_model(binary, folder)
            else:
                run(binary, cwd=folder)
            print(f"{example.name}: built from the installed package, and runs", flush=True)


main()
