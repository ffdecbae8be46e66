#!/usr/bin/env python3
"""Compares Lathe's byte-level BPE with Hugging Face's tokenizers and with tiktoken, built from the same files.

  tests/tokenizers/oracle.py LATHE VOCABULARY [--strings 100000] [--train FILE ...]

VOCABULARY is a folder with GPT-2's vocab.json and merges.txt. Ends with 77, and a reason, where the Python packages or
the vocabulary are absent.
"""
import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

GPT2 = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
LLAMA3 = (r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"""
          r"""|\s+(?!\S)|\s+""")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


def strings(count):
    """Text of every sort that tokenizers differ on, from a fixed seed."""
    draw = random.Random(1)
    spaces = " \t\n\r\v\f\u00a0\u1680\u180e\u2000\u2003\u2009\u200b\u2028\u2029\u202f\u205f\u3000\ufeff\u0085"
    words = "the of and to in I'm don't we'll they're you've he'd IT'S x1 42 1234567 3.14 naïve façade Straße ſs".split()
    code_points = [c for c in range(1, 0x110000) if not 0xD800 <= c <= 0xDFFF]
    for begin in range(0, 0x110000, 128):  # every block: its characters in order, and each behind a letter or a digit
        block = [chr(c) for c in range(max(begin, 1), begin + 128) if not 0xD800 <= c <= 0xDFFF]
        if block:
            yield "".join(block)
            yield "".join(draw.choice(["a", "1", " ", ".", "'"]) + c for c in block)
    for n in (1, 2, 3, 10, 100, 1000, 20000):
        for c in "aA1 .\n\té中😀'":
            yield c * n
    for text in ("<|endoftext|>", "a<|endoftext|>b", "<|endoftext", "<|endoftext|><|endoftext|> x", " <|endoftext|> "):
        yield text
    made = 17000 + 7 * 11 + 5
    while made < count:
        made += 1
        kind = draw.random()
        n = draw.choice([1, 2, 5, 10, 40])
        if kind < 0.3:
            yield "".join(chr(draw.choice(code_points)) for _ in range(n))
        elif kind < 0.6:
            yield "".join(draw.choice(words) + draw.choice([" ", "  ", "\n", "", ", ", draw.choice(spaces)])
                          for _ in range(n))
        elif kind < 0.8:
            yield "".join(draw.choice(spaces + "ab1.'") for _ in range(n))
        else:
            yield "".join(chr(draw.choice([draw.randrange(32, 127), draw.randrange(160, 0x2FF), draw.randrange(0x370, 0x600),
                                           draw.randrange(0x3040, 0x30FF), draw.randrange(0x4E00, 0x9FFF),
                                           draw.randrange(0x1F300, 0x1FAFF)])) for _ in range(n))


def lathe_ids(lathe, tokenizer, texts):
    """Ids of each text, with the text itself decoded again."""
    given = "\n".join(json.dumps(t) for t in texts) + "\n"
    done = subprocess.run([lathe, "tokenizer", "encode", "--tokenizer", tokenizer, "--json=true"], input=given,
                          capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"FAILED: lathe tokenizer encode ended with {done.returncode}: {done.stderr}")
    return [[int(i) for i in line.split()] for line in done.stdout.split("\n")[:-1]]


def compare(name, texts, ours, theirs):
    wrong = [(t, a, b) for t, a, b in zip(texts, ours, theirs, strict=True) if list(a) != list(b)]
    print(f"{name}: {len(texts)} strings, {len(wrong)} differ", flush=True)
    for text, a, b in wrong[:5]:
        print(f"  {text[:60]!r}: {a[:20]} instead of {b[:20]}")
    return len(wrong)


def hugging_face(vocab, merges, pattern):
    import tokenizers
    t = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=merges))
    split = tokenizers.pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")
    t.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [split, tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = tokenizers.decoders.ByteLevel()
    t.add_special_tokens(["<|endoftext|>"])
    return t


def bytes_of_letters():
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = {b: chr(b) for b in printable}
    others = [b for b in range(256) if b not in letters]
    return {**{c: b for b, c in letters.items()}, **{chr(256 + i): b for i, b in enumerate(others)}}


def encoding(lathe, folder, count, work):
    import tiktoken
    vocab = json.loads((folder / "vocab.json").read_text())
    merges = [tuple(line.split(" ")) for line in (folder / "merges.txt").read_text().split("\n")[1:] if line]
    texts = list(strings(count))
    of = bytes_of_letters()
    ranks = {bytes(of[c] for c in token): i for token, i in vocab.items() if token != "<|endoftext|>"}
    failed = 0
    for name, pattern in {"gpt2": GPT2, "llama3": LLAMA3, "qwen2": QWEN2}.items():
        theirs = hugging_face(vocab, merges, pattern)
        file = work / f"{name}.json"
        theirs.save(str(file))
        ours = lathe_ids(lathe, file, texts)
        failed += compare(f"{name}, tokenizers", texts, ours, [e.ids for e in theirs.encode_batch(texts)])
        fast = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 50256})
        failed += compare(f"{name}, tiktoken", texts, ours, fast.encode_batch(texts, allowed_special="all"))
    failed += compare("vocab.json and merges.txt", texts, lathe_ids(lathe, folder, texts),
                      lathe_ids(lathe, work / "gpt2.json", texts))
    return failed


def training(lathe, files, work):
    import tokenizers
    failed = 0
    for file in files:
        for size in (1000, 4096):
            out = work / f"{file.stem}-{size}"
            subprocess.run([lathe, "tokenizer", "train", file, "--out", out, "--vocab-size", str(size)], check=True,
                           capture_output=True)
            theirs = tokenizers.Tokenizer(tokenizers.models.BPE())
            theirs.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
            theirs.train([str(file)], tokenizers.trainers.BpeTrainer(
                vocab_size=size, min_frequency=2, special_tokens=["<|endoftext|>"], show_progress=False,
                initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()))
            a, b = json.loads((out / "tokenizer.json").read_text())["model"], json.loads(theirs.to_str())["model"]
            merges = [[tuple(m.split(" ")) if isinstance(m, str) else tuple(m) for m in x["merges"]] for x in (a, b)]
            same = merges[0] == merges[1] and a["vocab"] == b["vocab"]
            print(f"{file.name}, {size} tokens: {len(merges[0])} merges, {'the same' if same else 'OTHERS'}", flush=True)
            failed += not same
    return failed


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("lathe")
    parser.add_argument("vocabulary", type=Path)
    parser.add_argument("--strings", type=int, default=100000)
    parser.add_argument("--train", type=Path, nargs="*", default=[])
    a = parser.parse_args()
    if not (a.vocabulary / "vocab.json").exists():
        print(f"skipped: {a.vocabulary} does not hold vocab.json")
        sys.exit(77)
    try:
        import tiktoken  # noqa: F401
        import tokenizers  # noqa: F401
    except ImportError as e:
        print(f"skipped: {e}; pip install tokenizers tiktoken")
        sys.exit(77)
    with tempfile.TemporaryDirectory(prefix="lathe-tokenizers-") as work:
        failed = encoding(a.lathe, a.vocabulary, a.strings, Path(work)) + training(a.lathe, a.train, Path(work))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
