#!/usr/bin/env python3
"""Measures the MB/s of encoding English text on one core with Lathe, Hugging Face's tokenizers and
tiktoken, which run in turn.

  tests/oracles/tokenizers/speed.py LATHE VOCABULARY TEXT [--mb 30] [--rounds 3]

VOCABULARY is a folder with GPT-2's vocab.json and merges.txt. TEXT is repeated until it has about
--mb megabytes. Lathe's time is the time of `lathe prepare --workers 1`, which also reads the text
and writes shards, minus the time of the same command for a tenth of the text. The packages encode
parts of a megabyte from memory. All three must produce the same number of tokens. Exits with 77 and
prints the reason if a Python package or a file is missing.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from oracle import GPT2, bytes_of_letters, hugging_face

os.environ["TOKENIZERS_PARALLELISM"] = "false"


def lathe_encoder(lathe, vocabulary, work):
    def run(name):
        begin = time.perf_counter()
        subprocess.run([lathe, "prepare", work / name, "--out", work / "out", "--tokenizer", vocabulary, "--workers",
                        "1", "--val", "0.01"], check=True, capture_output=True)
        seconds = time.perf_counter() - begin
        manifest = json.loads((work / "out/manifest.json").read_text())
        tokens = sum(shard["tokens"] for split in ("train", "val") for shard in manifest[split])
        for file in (work / "out").iterdir():
            file.unlink()
        return seconds, tokens - 1  # without the <|endoftext|> after the document

    def both():
        whole, tokens = run("text.txt")
        return whole - run("tenth.txt")[0], tokens
    return both


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lathe")
    parser.add_argument("vocabulary", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--mb", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=3)
    a = parser.parse_args()
    try:
        import tiktoken
        import tokenizers
    except ImportError as e:
        print(f"skipped: {e}")
        return 77
    if not (a.vocabulary / "vocab.json").exists() or not a.text.exists():
        print("skipped: the vocabulary or the text is absent")
        return 77
    once = a.text.read_text()
    text = once * max(1, round(a.mb * 1e6 / len(once.encode())))
    size = len(text.encode()) / 1e6
    vocab = json.loads((a.vocabulary / "vocab.json").read_text())
    merges = [tuple(line.split(" ")) for line in (a.vocabulary / "merges.txt").read_text().split("\n")[1:] if line]
    of = bytes_of_letters()
    ranks = {bytes(of[c] for c in token): i for token, i in vocab.items() if token != "<|endoftext|>"}
    fast = tiktoken.Encoding("gpt2", pat_str=GPT2, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 50256})
    theirs = hugging_face(vocab, merges, GPT2)
    # Split after a line break without other white space around it, because GPT-2's pattern ends a
    # piece there.
    parts, begin = [], 0
    while begin < len(text):
        end = begin + 1_000_000
        while end < len(text) and not (text[end - 1] == "\n" and not text[end].isspace() and not text[end - 2].isspace()):
            end += 1
        parts.append(text[begin:end])
        begin = end
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        (work / "text.txt").write_text(text)
        tenth = once * max(1, round(a.mb * 1e5 / len(once.encode())))
        (work / "tenth.txt").write_text(tenth)
        ours = lathe_encoder(a.lathe, a.vocabulary, work)

        def timed(encode):
            begin, tokens = time.perf_counter(), sum(len(encode(part)) for part in parts)
            return time.perf_counter() - begin, tokens
        seconds, counts = {"lathe": [], "tiktoken": [], "tokenizers": []}, {}
        for _ in range(a.rounds):
            for name, run in {"lathe": ours, "tiktoken": lambda: timed(fast.encode_ordinary),
                              "tokenizers": lambda: timed(lambda t: theirs.encode(t).ids)}.items():
                took, counts[name] = run()
                seconds[name].append(took)
    if len(set(counts.values())) != 1:
        sys.exit(f"FAILED: the numbers of tokens differ: {counts}")
    rate = {name: (size - (len(tenth.encode()) / 1e6 if name == "lathe" else 0)) / statistics.median(times)
            for name, times in seconds.items()}
    print(f"{size:.0f} MB of {a.text.name}, {counts['lathe']} tokens, medians of {a.rounds} rounds in turns")
    for name, mb in rate.items():
        print(f"  {name:<11}{mb:8.1f} MB/s" + ("" if name == "lathe" else f", Lathe / {name} {rate['lathe'] / mb:.1f}"))
    print(json.dumps({"mb_per_s": rate}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
