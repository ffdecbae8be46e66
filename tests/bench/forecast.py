#!/usr/bin/env python3
"""Compares the forecasts of `lathe plan` with the measurements of `lathe bench step`.

usage: forecast.py [--lathe build/lathe] [--text FILE] [--csv FILE] [--only N ...] [--write]

--text: any text, for token models. --csv: a file with 64 numbers and a class per line, for the
other models. If a file is not given, it is generated. The printed table has the errors (forecast -
measured) / measured of the peak resident memory and of the time of a step. With --write, the table
is also written into docs/benchmarks/README.md. Exits with 1 if a config's memory is off by more
than 5% or its time by more than 15%.
"""
import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile

from page import write_table

PAGE = pathlib.Path("docs/benchmarks/README.md")
CONFIGS = pathlib.Path(__file__).resolve().parents[2] / "configs"


def gpt(layers, heads, width, context, batch, vocab=0, **more):
    return ("shakespeare_char_cpu.toml", "text",
            {"model.n_layer": layers, "model.n_head": heads, "model.n_embd": width, "model.block_size": context,
             "train.batch_size": batch, "model.vocab_size": vocab, **more})


def keys(**given):
    return {k.replace("__", "."): v for k, v in given.items()}


ROWS = {
    "gpt, as the recipe": gpt(4, 4, 128, 64, 12),
    "deep": gpt(24, 4, 128, 64, 12),
    "wide": gpt(2, 8, 768, 64, 12),
    "narrow": gpt(4, 2, 32, 64, 12),
    "context 512": gpt(4, 4, 128, 512, 4),
    "context 1024": gpt(2, 4, 256, 1024, 2),
    "batch 64": gpt(4, 4, 128, 64, 64),
    "batch 256": gpt(4, 4, 128, 64, 256),
    "vocabulary 50304": gpt(4, 4, 256, 128, 8, 50304),
    "GPT-2 124M, one sequence of 128": gpt(12, 12, 768, 128, 1, 50304),
    "bf16": gpt(6, 6, 384, 128, 8, **keys(amp__dtype="bf16")),
    "bf16, no copies": gpt(6, 6, 384, 128, 8, **keys(amp__dtype="bf16", amp__working_copies="false")),
    "fp16": gpt(6, 6, 384, 128, 8, **keys(amp__dtype="fp16")),
    "accumulation of 4": gpt(6, 6, 384, 128, 4, **keys(train__grad_accum=4)),
    "bf16, accumulation of 4": gpt(6, 6, 384, 128, 4, **keys(train__grad_accum=4, amp__dtype="bf16")),
    "recompute blocks": gpt(12, 4, 256, 128, 16, **keys(memory__recompute="blocks")),
    "recompute sqrt": gpt(16, 4, 256, 128, 16, **keys(memory__recompute="sqrt")),
    "sgd": gpt(6, 6, 384, 128, 8, **keys(optim__kind="sgd", optim__lr=0.1)),
    "adamw8bit": gpt(6, 6, 384, 128, 8, **keys(optim__kind="adamw8bit")),
    "adafactor": gpt(6, 6, 384, 128, 8, **keys(optim__kind="adafactor")),
    "muon": gpt(6, 6, 384, 128, 8, **keys(optim__kind="muon")),
    "lion, dropout": gpt(6, 6, 384, 128, 8, **keys(optim__kind="lion", model__dropout=0.1)),
    "one thread": gpt(6, 6, 384, 128, 8, **keys(train__threads=1)),
    "lstm": ("names_lstm.toml", "text", {}),
    "lstm, wide": ("names_lstm.toml", "text", {"model.n_embd": 256}),
    "mlp": ("digits_mlp.toml", "csv", {}),
    "mlp, wide": ("digits_mlp.toml", "csv", {"model.n_hidden": 2048}),
    "convnet": ("digits_convnet.toml", "csv", {}),
}


class Bench:
    def __init__(self, args):
        self.lathe = pathlib.Path(args.lathe).resolve()
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="lathe-forecast-"))
        drawn = random.Random(1)
        text, csv = args.text, args.csv
        if not text:
            text = self.folder / "words.txt"
            text.write_text(" ".join("".join(drawn.choices("etaoinshrdlu", k=5)) for _ in range(100000)))
        if not csv:
            csv = self.folder / "numbers.csv"
            csv.write_text("\n".join(",".join(str(drawn.randrange(17)) for _ in range(64)) + f",{i % 10}"
                                     for i in range(1500)))
        self.call("prepare", pathlib.Path(text).resolve(), "--out", "text", "--tokenizer", "char")
        self.call("prepare", pathlib.Path(csv).resolve(), "--out", "csv", "--target", "last", "--task",
                  "classification", "--shape", "1,8,8")

    def call(self, *words):
        done = subprocess.run([self.lathe, *map(str, words)], cwd=self.folder, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"lathe {' '.join(map(str, words))} ended with {done.returncode}: {done.stderr}")
        return done.stdout

    def row(self, config, data, more):
        words = [CONFIGS / config, f"--data.dir={data}", *(f"--{k}={v}" for k, v in more.items())]
        plan = json.loads(self.call("plan", *words, "--json"))
        steps = max(6, min(200, int(2000 / plan["ms_per_step"])))
        bench = json.loads(self.call("bench", "step", *words, f"--train.steps={steps}",
                                     "--schedule.warmup_steps=0").splitlines()[-1])
        return plan, bench


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lathe", default="build/lathe")
    parser.add_argument("--text")
    parser.add_argument("--csv")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--write", action="store_true", help="put the table into docs/benchmarks/README.md")
    args = parser.parse_args()
    bench = Bench(args)
    table = ["| config | memory: forecast | measured | off by | a step: forecast | measured | off by |",
             "|---|---|---|---|---|---|---|"]
    worst_memory = worst_time = 0
    for name, row in ROWS.items():
        if args.only and name not in args.only:
            continue
        plan, run = bench.row(*row)
        memory = plan["peak_rss_mb"] / run["peak_rss_mb"] - 1
        time = plan["ms_per_step"] / run["ms_median"] - 1
        worst_memory, worst_time = max(worst_memory, abs(memory)), max(worst_time, abs(time))
        table.append(f"| {name} | {plan['peak_rss_mb']:.0f} MiB | {run['peak_rss_mb']:.0f} | {memory:+.1%} "
                     f"| {plan['ms_per_step']:.1f} ms | {run['ms_median']:.1f} | {time:+.1%} |")
        print(table[-1], "" if plan["measured"] else "(forecast from measurements of a smaller model)", flush=True)
    print(f"memory within {worst_memory:.1%}, time within {worst_time:.1%}")
    if args.write:
        write_table(PAGE, "forecast", table)
    return worst_memory > 0.05 or worst_time > 0.15


if __name__ == "__main__":
    sys.exit(main())
