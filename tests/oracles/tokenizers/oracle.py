#!/usr/bin/env python3
"""Compares Lathe's BPE with the packages `tokenizers` (by Hugging Face) and `tiktoken`, which use
the same vocabularies.

  tests/oracles/tokenizers/oracle.py LATHE VOCABULARY [--strings 100000] [--train FILE ...]

VOCABULARY is a folder with GPT-2's vocab.json and merges.txt. On each FILE, both Lathe and the
package `tokenizers` train vocabularies of two sizes. The first FILE is also used for tokenizers in
SentencePiece's form. Exits with 77 and prints the reason if a Python package or the vocabulary is
missing.
"""
import argparse
import json
import os
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
    """Yields texts of every kind on which tokenizers may differ. Random texts come from a fixed
    seed."""
    draw = random.Random(1)
    spaces = " \t\n\r\v\f\u00a0\u1680\u180e\u2000\u2003\u2009\u200b\u2028\u2029\u202f\u205f\u3000\ufeff\u0085"
    words = "the of and to in I'm don't we'll they're you've he'd IT'S x1 42 1234567 3.14 naïve façade Straße ſs".split()
    code_points = [c for c in range(1, 0x110000) if not 0xD800 <= c <= 0xDFFF]
    # Yield the characters of each block in order, and each after an ASCII character.
    for begin in range(0, 0x110000, 128):
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
    """Returns Lathe's token ids of each text."""
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


def sentencepiece_forms(text):
    """Yields names and tokenizers in SentencePiece's form, like the tokenizers of Llama 2, Mistral
    and Gemma, with vocabularies trained on `text`."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
    mark = "\u2581"
    prepend = normalizers.Sequence([normalizers.Prepend(mark), normalizers.Replace(" ", mark)])
    replace = normalizers.Replace(" ", mark)

    def vocabulary(words):
        """Trains a vocabulary. `words`: whether merges stay within words. Appends runs of spaces to
        the lines, so that merges of spaces are learned too."""
        t = Tokenizer(models.BPE())
        t.normalizer = replace
        if words:
            t.pre_tokenizer = pre_tokenizers.Split(tokenizers_regex(mark + "*[^" + mark + "]+"), "isolated")
        lines = [line + " " * (i % 7) + "x" for i, line in enumerate(text.split("\n"))]
        t.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=3000, show_progress=False))
        model = json.loads(t.to_str())["model"]
        special = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
        vocab = {token: i for i, token in enumerate(special + sorted(model["vocab"], key=model["vocab"].get))}
        return vocab, [tuple(m.split(" ")) if isinstance(m, str) else tuple(m) for m in model["merges"]]

    def tokenizers_regex(pattern):
        from tokenizers import Regex
        return Regex(pattern)

    steps = [decoders.Replace(mark, " "), decoders.ByteFallback(), decoders.Fuse()]
    for name, normalizer, pre, words in [
            ("llama 2", prepend, None, True), ("merges past spaces", prepend, None, False),
            ("metaspace first", None, pre_tokenizers.Metaspace(mark, "first", split=False), True),
            ("metaspace always, split", None, pre_tokenizers.Metaspace(mark, "always", split=True), True),
            ("gemma", replace, None, True)]:
        vocab, merges = vocabulary(words)
        t = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
        if normalizer is not None:
            t.normalizer = normalizer
        if pre is not None:
            t.pre_tokenizer = pre
        t.decoder = decoders.Sequence(steps + ([decoders.Strip(" ", 1, 0)] if name != "gemma" else []))
        t.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in ("<unk>", "<s>", "</s>")])
        yield name, t


def sentencepiece(lathe, file, count, work):
    """Compares the ids of texts, decoded texts, the ids that `lathe prepare` writes for `file`, and
    the tokenizer that it writes to manifest.json."""
    import tokenizers
    texts = list(strings(count)) + ["<s>a b", "a </s> b", "</s></s>", " a", "  a", "\u2581a", "a\u2581 \u2581b", "<0x41>"]
    failed = 0
    for name, theirs in sentencepiece_forms(file.read_text()):
        path = work / (name.replace(" ", "_").replace(",", "") + ".json")
        theirs.save(str(path))
        wanted = [e.ids for e in theirs.encode_batch(texts)]
        ours = lathe_ids(lathe, path, texts)
        failed += compare(f"{name}, tokenizers", texts, ours, wanted)
        data = work / path.stem
        subprocess.run([lathe, "prepare", file, "--out", data, "--tokenizer", path], check=True, capture_output=True)
        written = b"".join((data / f"{split}.bin").read_bytes() for split in ("train", "val"))
        failed += compare(f"{name}, prepared", [file.name], [[*memoryview(written).cast("H")]],
                          [theirs.encode(file.read_text()).ids + [theirs.token_to_id("</s>")]])
        again = tokenizers.Tokenizer.from_str(json.dumps(json.loads((data / "manifest.json").read_text())["bpe"]))
        failed += compare(f"{name}, as it is written", texts, [e.ids for e in again.encode_batch(texts)], wanted)
        for ids in wanted[::997]:
            given = " ".join(map(str, ids)).encode()
            done = subprocess.run([lathe, "tokenizer", "decode", "--tokenizer", path], input=given, capture_output=True)
            said = theirs.decode(ids, skip_special_tokens=False)
            failed += again.decode(ids, skip_special_tokens=False) != said
            if done.returncode != 0 or done.stdout.decode() != said:
                failed += 1
                print(f"{name}: {ids[:20]} is {done.stdout!r} instead of {said!r}")
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
            print(f"{file.name}, {size} tokens: {len(merges[0])} merges, {'the same' if same else 'DIFFERENT'}", flush=True)
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
        other = os.environ.pop("LATHE_HF_PYTHON", None)
        if other and Path(other).exists():
            sys.exit(subprocess.call([other, *sys.argv]))
        print(f"skipped: {e}; install tokenizers and tiktoken, or name a Python that has them in LATHE_HF_PYTHON")
        sys.exit(77)
    with tempfile.TemporaryDirectory(prefix="lathe-tokenizers-") as work:
        failed = encoding(a.lathe, a.vocabulary, a.strings, Path(work)) + training(a.lathe, a.train, Path(work))
        if a.train:
            failed += sentencepiece(a.lathe, a.train[0], a.strings, Path(work))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
