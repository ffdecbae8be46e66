#!/usr/bin/env python3
"""Measures the peak memory of loading and saving: loading.py LATHE [--width N] [--layers N]

Runs each command that loads or saves a model, first on a tiny model and then on a model of about
100 MB. Prints three numbers per command. The first is the difference between the two peaks of
resident memory. The second is the memory that the command must keep while it runs: the weights
(except in verify, export and import), and in training also the gradients and the optimizer state
(unless it is offloaded). The third is the first minus the second. It should be at most the size of
one tensor plus 64 MiB.
"""
import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from peak import resident

CONFIG = """[model]
kind = "llama"
n_layer = {layers}
n_head = 4
n_kv_head = 4
n_embd = {width}
block_size = 16
tie_weights = false
[data]
dir = "../data"
[train]
steps = 2
batch_size = 1
grad_accum = 1
eval_interval = 0
threads = 1
device = "cpu"
[checkpoint]
interval = 0
"""


def weight_bytes(folder):
    return (folder / "run/checkpoints/step-00000002/model.safetensors").stat().st_size


def peaks_of(lathe, folder, layers, width):
    """Returns the peak MiB of each command on a model of this size, and the bytes of the model's
    weights."""
    folder.mkdir()
    (folder / "model.toml").write_text(CONFIG.format(layers=layers, width=width))

    def peak(*words):
        return resident([lathe, *words], folder)[1]

    train = ["train", "model.toml", "--force", "true"]
    peaks = {"train": peak(*train, "--train.out_dir=run")}
    weights = weight_bytes(folder)
    peaks["train, init_from"] = peak(*train, "--train.out_dir=second", "--train.init_from=run")
    peaks["resume"] = peak(*train, "--train.out_dir=run", "--train.steps=4")
    peaks["resume, offload"] = peak(*train, "--train.out_dir=run", "--train.steps=6", "--memory.offload=optimizer")
    peaks["eval"] = peak("eval", "run")
    peaks["generate"] = peak("generate", "run", "--prompt", "the lathe", "--tokens", "4")
    peaks["verify"] = peak("verify", "run")
    peaks["export"] = peak("export", "run", "--out", "exported")
    peaks["export, gguf in q8_0"] = peak("export", "run", "--out", "gguf", "--format", "gguf", "--dtype", "q8_0")
    peaks["import"] = peak("import", "exported", "--out", "imported", "--tokenizer", "none")
    return peaks, weights


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("lathe")
    p.add_argument("--width", type=int, default=1024)
    p.add_argument("--layers", type=int, default=2)
    a = p.parse_args()
    lathe = str(Path(a.lathe).resolve())
    # Memory that stays allocated while a command runs, in multiples of the weights.
    kept = {"train": 4, "train, init_from": 4, "resume": 4, "resume, offload": 2, "eval": 1, "generate": 1, "verify": 0,
            "export": 0, "export, gguf in q8_0": 0, "import": 0}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = "the lathe turns wood and a tool cuts what turns slowly under it " * 200
        (folder / "text.txt").write_text(text)
        subprocess.run([lathe, "prepare", "text.txt", "--out", "data", "--tokenizer", "char"], cwd=folder, check=True,
                       capture_output=True)
        tiny, _ = peaks_of(lathe, folder / "tiny", 1, 16)
        large, weights = peaks_of(lathe, folder / "large", a.layers, a.width)
    inner = 8 * a.width // 3
    print(f"weights {weights / 2**20:.0f} MiB, largest tensor about {4 * a.width * inner / 2**20:.0f} MiB")
    print("| command | peak above a tiny model's, MiB | kept, MiB | above that, MiB |\n|---|---|---|---|")
    for command, times in kept.items():
        above, state = large[command] - tiny[command], times * weights / 2**20
        print(f"| {command} | {above:.0f} | {state:.0f} | {above - state:.0f} |")


main()
