#!/usr/bin/env python3
"""Reads a run's tensorboard/ with the package tensorboard: events.py LATHE. Exits with 77 if the
package is not installed.

The run is killed and resumed. The scalars must equal the values in metrics.jsonl, with each step
once. Samples and histograms must exist. After one byte of the file is changed, TensorBoard must
read fewer steps.
"""
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util import tensor_util
except ImportError as e:
    print(f"skipped: the tensorboard package is not there ({e})")
    sys.exit(77)

LATHE = str(Path(sys.argv[1]).resolve())
CONFIG = """
[model]
n_layer = 2
n_head = 2
n_embd = 16
block_size = 16
[data]
dir = "data"
[train]
steps = 30
batch_size = 3
eval_interval = 10
log_interval = 1
sample_interval = 10
threads = 1
[checkpoint]
interval = 7
[log]
tensorboard = true
histograms = 10
layers = 5
"""


def lathe(folder, *words, environment=None, code=0, binary=LATHE):
    done = subprocess.run([binary, *words], cwd=folder, capture_output=True, text=True,
                          env={**os.environ, **(environment or {})})
    assert done.returncode == code, f"{words}: exit {done.returncode}\n{done.stdout}{done.stderr}"


def load(folder):
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0, "histograms": 0})
    accumulator.Reload()
    return accumulator


def scalars(accumulator, tag):
    """Returns (step, value) pairs. TensorBoard may store them as scalars or as tensors."""
    if tag in accumulator.Tags()["scalars"]:
        return [(e.step, e.value) for e in accumulator.Scalars(tag)]
    return [(e.step, float(tensor_util.make_ndarray(e.tensor_proto))) for e in accumulator.Tensors(tag)]


def check_scalars(accumulator, lines, tag, key):
    wanted = [(line["step"], line[key]) for line in lines if line.get(key) is not None]
    got = scalars(accumulator, tag)
    assert [s for s, _ in got] == [s for s, _ in wanted], f"{tag}: steps {got} instead of {wanted}"
    for (step, value), (_, exact) in zip(got, wanted):
        assert abs(value - exact) <= 1e-6 * abs(exact), f"{tag} at step {step}: {value} instead of {exact}"


with tempfile.TemporaryDirectory() as temporary:
    folder = Path(temporary)
    (folder / "text.txt").write_text("the lathe turns wood and a tool cuts what turns slowly under it.\n" * 300)
    (folder / "tiny.toml").write_text(CONFIG)
    lathe(folder, "prepare", "text.txt", "--out", "data", "--tokenizer", "char")
    faults = str(Path(LATHE).parent / "lathe_faults")
    lathe(folder, "train", "tiny.toml", "--train.out_dir=run", environment={"LATHE_TEST_KILL": "step 18"}, code=-9,
          binary=faults)
    lathe(folder, "train", "tiny.toml", "--train.out_dir=run")

    lines = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    accumulator = load(folder / "run/tensorboard")
    steps = [line for line in lines if "loss" in line]
    for tag, key in [("train/loss", "loss"), ("train/lr", "lr"), ("train/grad_norm", "grad_norm"),
                     ("train/tokens", "tokens"), ("speed/memory_bytes", "memory_bytes")]:
        check_scalars(accumulator, steps, tag, key)
    check_scalars(accumulator, lines, "evaluation/val_loss", "val_loss")
    layer = "blocks.0.attn.qkv"
    norms = [(line["step"], line["layers"][layer]["weight_norm"]) for line in steps if "layers" in line]
    assert [s for s, _ in norms] == [5, 10, 15, 20, 25, 30], norms
    got = scalars(accumulator, f"layers/weight_norm/{layer}")
    assert [s for s, _ in got] == [s for s, _ in norms], got

    tags = accumulator.Tags()
    samples = accumulator.Tensors("sample")
    assert [e.step for e in samples] == [10, 20, 30], samples
    assert accumulator.SummaryMetadata("sample").plugin_data.plugin_name == "text"
    assert len(tensor_util.make_ndarray(samples[0].tensor_proto).item()) > 100
    sizes = {f"weights/{layer}.weight": 16 * 48, f"gradients/{layer}.weight": 16 * 48, "activations/blocks.0.attn": 3 * 16 * 16}
    for tag, size in sizes.items():
        if tag in tags["histograms"]:
            found = [(e.step, e.histogram_value.num) for e in accumulator.Histograms(tag)]
        else:
            found = [(e.step, tensor_util.make_ndarray(e.tensor_proto)[:, 2].sum()) for e in accumulator.Tensors(tag)]
        assert found == [(s, size) for s in (10, 20, 30)], (tag, found)

    # TensorBoard verifies the file's checksums, so it must notice a changed byte.
    path = next((folder / "run/tensorboard").glob("*tfevents*"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    damaged = scalars(load(folder / "run/tensorboard"), "train/loss")
    assert len(damaged) < len(steps), f"a changed byte went unnoticed: {len(damaged)} steps"
print(f"TensorBoard reads {len(steps)} steps, 3 samples and 9 histograms as they were written")
