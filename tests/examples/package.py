#!/usr/bin/env python3
"""Installs Lathe into a temporary folder, builds each folder of examples/ against the installed
package, outside of the source tree, and runs the programs: package.py BUILD_FOLDER LIBTORCH
[EXAMPLE ...]. Without the installed package, CMake must fail to configure the examples."""
import csv
import json
import math
import random
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]


def run(*words, cwd=None, fails=False):
    done = subprocess.run(list(map(str, words)), cwd=cwd, capture_output=True, text=True)
    if (done.returncode != 0) != fails:
        sys.exit(f"FAILED: {' '.join(map(str, words))} ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def blobs(path):
    """Writes examples of three classes, whose features scatter around a different point for each
    class."""
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
    assert "time of the run" in run(binary, "plan", config, *keys, cwd=folder)
    # This model is too large to be measured here, and its model kind does not define how to scale
    # it down.
    large = ["--model.n_hidden=99991", "--model.n_piece=97", "--train.batch_size=4096"]
    assert "from a smaller version that was measured" in run(binary, "plan", config, *keys, *large, cwd=folder)
    train = [binary, "train", config, *keys, "--schedule.kind=constant"]
    run(*train, "--train.out_dir=whole", "--train.steps=200", cwd=folder)
    last = json.loads(run(binary, "eval", "whole", cwd=folder).splitlines()[-1])
    assert last["accuracy"] > 0.9, last
    for steps in [90, 200]:  # a run in two parts must be bitwise equal to a run in one part
        run(*train, "--train.out_dir=parts", f"--train.steps={steps}", cwd=folder)
    model = "checkpoints/step-00000200/model.safetensors"
    assert (folder / "whole" / model).read_bytes() == (folder / "parts" / model).read_bytes()
    run(*train, "--train.out_dir=other", "--train.steps=200", "--train.seed=2", cwd=folder)
    # Another seed must give other weights.
    assert (folder / "whole" / model).read_bytes() != (folder / "other" / model).read_bytes()
    # A run on 4 processes with sharded parameters that resumes on 1 must be bitwise equal to a run
    # on 1.
    four = ["--train.grad_accum=4", "--train.batch_size=16", "--memory.recompute=blocks"]
    run(*train, *four, "--train.out_dir=alone", "--train.steps=60", cwd=folder)
    shared = [*train, *four, "--train.out_dir=shared", "--dist.timeout=60"]
    run(binary, "launch", "-n", "4", "--", *shared[1:], "--train.steps=30", "--dist.shard=parameters", cwd=folder)
    run(*shared, "--train.steps=60", cwd=folder)
    model = "checkpoints/step-00000060/model.safetensors"
    assert (folder / "alone" / model).read_bytes() == (folder / "shared" / model).read_bytes()
    run(binary, "train", config, *keys, "--train.out_dir=low", "--train.steps=20", "--amp.dtype=bf16", cwd=folder)


def try_own_task(binary, folder):
    draw = random.Random(1)
    (folder / "load.txt").write_text("\n".join(
        f"{math.sin(i / 4) + draw.gauss(0, 0.1):.4f}" for i in range(2000)))
    run(binary, "series", "load.txt", "--out", "load", "--window", "16", cwd=folder)
    run(binary, "verify", "load", cwd=folder)
    config = SOURCE / "examples/own_task/series.toml"
    train = [binary, "train", config, "--data.dir=load", "--train.eval_interval=0", "--train.threads=1"]
    run(*train, "--train.out_dir=series", cwd=folder)
    last = json.loads(run(binary, "eval", "series", cwd=folder).splitlines()[-1])
    # The 10% and 90% quantiles of the noise are -0.128 and 0.128. The pinball losses of these two
    # quantiles and of the median add up to 0.1 (0.1755 + 0.3989 + 0.1755) = 0.075.
    assert 0.07 < last["pinball"] < 0.1 and 0.65 < last["within_80"] < 0.92, last
    for steps in [150, 400]:  # a run in two parts must be bitwise equal to a run in one part
        run(*train, "--train.out_dir=series-parts", f"--train.steps={steps}", "--schedule.kind=constant", cwd=folder)
    model = "checkpoints/step-00000400/model.safetensors"
    run(*train, "--train.out_dir=series-whole", "--schedule.kind=constant", cwd=folder)
    assert (folder / "series-parts" / model).read_bytes() == (folder / "series-whole" / model).read_bytes()
    # A run of the task on 4 processes that resumes on 2 must be bitwise equal to a run on 1.
    four = ["--train.grad_accum=4", "--train.batch_size=16", "--schedule.kind=constant"]
    run(*train, *four, "--train.out_dir=series-alone", "--train.steps=60", cwd=folder)
    shared = [*train[1:], *four, "--train.out_dir=series-shared", "--dist.shard=gradients", "--dist.timeout=60"]
    run(binary, "launch", "-n", "4", "--", *shared, "--train.steps=30", cwd=folder)
    run(binary, "launch", "-n", "2", "--", *shared, "--train.steps=60", cwd=folder)
    model = "checkpoints/step-00000060/model.safetensors"
    run(binary, "merge", "series-shared", "--out", "series-joined", cwd=folder)
    assert (folder / "series-alone" / model).read_bytes() == (folder / "series-joined" / model).read_bytes()
    run(*train, *four, "--train.out_dir=series-other", "--train.steps=60", "--train.seed=2", cwd=folder)
    # Another seed must give other weights.
    assert (folder / "series-alone" / model).read_bytes() != (folder / "series-other" / model).read_bytes()
    # The example's transform sets the parameters that start.zero matches to zero. A head of zeros
    # predicts zero, so the loss of the first run depends only on the series. The second run starts
    # from random values.
    for name, zero in [("zero", "head.*"), ("random", "")]:
        run(*train, f"--train.out_dir={name}", "--train.steps=1", "--optim.lr=1e-9", f"--start.zero={zero}", cwd=folder)
    losses = [json.loads(run(binary, "eval", name, cwd=folder).splitlines()[-1])["pinball"] for name in ["zero", "random"]]
    assert abs(losses[0] - 0.96) < 0.1 and abs(losses[0] - losses[1]) > 0.01, losses


def check_shipped_files(prefix, folder):
    """Checks the installed man page, completions, configs and docs. The help and the errors must
    name the installed configs by their paths."""
    share = prefix / "share"
    assert "\n.B lathe train" in (share / "man/man1/lathe.1").read_text()
    for file in ["bash-completion/completions/lathe", "zsh/site-functions/_lathe", "fish/vendor_completions.d/lathe.fish"]:
        assert "replay" in (share / file).read_text(), file
    config = share / "lathe/configs/quickstart.toml"
    assert config.read_bytes() == (SOURCE / "configs/quickstart.toml").read_bytes()
    assert (share / "doc/lathe/guide/gpu.md").exists()

    lathe = prefix / "bin/lathe"
    done = subprocess.run([lathe, "train", "nowhere.toml"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 2 and f" {config} " in done.stderr, done.stderr
    for words in [["--help"], ["train", "--help"]]:
        assert f"lathe train {config}" in run(lathe, *words, cwd=folder)
        # In the source folder, the help has a relative path.
        assert "lathe train configs/quickstart.toml" in run(lathe, *words, cwd=SOURCE)


def main():
    build, libtorch = map(Path, sys.argv[1:3])
    with tempfile.TemporaryDirectory(prefix="lathe-examples-") as temporary:
        folder = Path(temporary)
        prefix = folder / "prefix"
        run("cmake", "--install", build, "--prefix", prefix)
        assert run(prefix / "bin/lathe", "--version").startswith("lathe ")
        check_shipped_files(prefix, folder)
        named = [SOURCE / "examples" / name for name in sys.argv[3:]]
        for example in named or sorted(p for p in (SOURCE / "examples").iterdir() if p.is_dir()):
            binary_folder = folder / "build" / example.name
            configure = ["cmake", "-S", example, "-B", binary_folder, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release"]
            run(*configure, fails=True)
            run(*configure, f"-DCMAKE_PREFIX_PATH={prefix}", f"-DLIBTORCH={libtorch}")
            run("cmake", "--build", binary_folder)
            binary = binary_folder / example.name
            if example.name == "own_model":
                try_own_model(binary, folder)
            elif example.name == "own_task":
                try_own_task(binary, folder)
            else:
                run(binary, cwd=folder)
            print(f"{example.name}: built from the installed package, and runs", flush=True)


main()
