#!/usr/bin/env python3
"""Writes tests/oracles/einops/cases.txt, which has random patterns, and for each pattern the result
of the package einops or of torch.einsum. Run this script with a Python that has torch and einops,
and pass the path of cases.txt.

The fields of a line are: function|pattern|shapes of the operands|sizes by name|reduction|
shape of the result|first sum of the result|second sum of the result.
The sums weight each element by its position, so that the same values in another order give other
sums. Element i of operand k is ((37 i + 11 k) mod 101) / 50 - 1.
"""

import random
import sys

import einops
import torch


def operand(k, shape):
    n = 1
    for s in shape:
        n *= s
    return (((torch.arange(n) * 37 + 11 * k) % 101).double() / 50 - 1).reshape(shape)


def sums(y):
    flat = y.reshape(-1)
    i = torch.arange(flat.numel()).double()
    return float((flat * torch.cos(i + 1)).sum()), float((flat * ((i * 7) % 13 - 6)).sum())


def grouped(rng, names, ones):
    """Returns the names as one side of a pattern, grouped at random, with `ones` dims of size 1."""
    groups, at = [], 0
    while at < len(names):
        n = rng.choice([1, 1, 1, 2, 3])
        groups.append(names[at : at + n])
        at += n
    for _ in range(ones):
        groups.insert(rng.randrange(len(groups) + 1), [])
    return groups


def text_of(groups):
    return " ".join(g[0] if len(g) == 1 else "(" + " ".join(g) + ")" if g else "1" for g in groups)


def size_of(group, sizes):
    n = 1
    for name in group:
        n *= sizes[name]
    return n


def rearranging(rng, function):
    names = rng.sample(["b", "h", "w", "c", "time", "k_2", "x1", "head"], rng.randint(1, 5))
    sizes = {n: rng.choice([1, 2, 2, 3, 4]) for n in names}
    shape_more = [rng.choice([1, 2, 3]) for _ in range(rng.randint(0, 2))]
    spread = rng.random() < 0.35
    added, gone = [], []
    if function == "repeat":
        added = ["r%d" % i for i in range(rng.randint(1, 2))]
        sizes.update({n: rng.choice([1, 2, 3]) for n in added})
    if function == "reduce":
        gone = rng.sample(names, rng.randint(0, len(names)))
    left = grouped(rng, names, rng.choice([0, 0, 1]))
    kept = [n for n in names if n not in gone] + added
    numbers = {n: str(sizes[n]) for n in gone + added if sizes[n] > 1 and rng.random() < 0.3}
    rng.shuffle(kept)
    right = grouped(rng, kept, rng.choice([0, 0, 1]))
    shown = lambda groups: [text_of([[numbers.get(n, n) for n in g]]) for g in groups]
    left_text, right_text = shown(left), shown(right)
    shape = [[size_of(g, sizes)] for g in left]
    if spread:
        at = rng.randrange(len(left) + 1)
        left_text.insert(at, "...")
        shape.insert(at, shape_more)
        if not (function == "reduce" and rng.random() < 0.2):
            right_text.insert(rng.randrange(len(right_text) + 1), rng.choice(["...", "...", "(...)"]))
    shape = [s for part in shape for s in part]
    given = {n: sizes[n] for n in added}
    for g in left:
        open_names = [n for n in g if n not in numbers]
        unknown = rng.choice(open_names) if open_names and rng.random() < 0.8 else None
        for n in g:
            if n != unknown and (len(g) > 1 or rng.random() < 0.2):
                given[n] = sizes[n]
    given = {n: size for n, size in given.items() if n not in numbers}
    pattern = " ".join(left_text) + " -> " + " ".join(right_text)
    x = operand(0, shape)
    reduction = ""
    if function == "rearrange":
        y = einops.rearrange(x, pattern, **given)
    elif function == "repeat":
        y = einops.repeat(x, pattern, **given)
    else:
        reduction = rng.choice(["sum", "mean", "max", "min", "prod"])
        y = einops.reduce(x, pattern, reduction, **given)
    return pattern, [shape], given, reduction, y


def summing(rng, named):
    names = ["i", "j", "k", "l", "m", "n"] if not named else ["i", "time", "head_1", "chan", "k", "out"]
    sizes = {n: rng.choice([1, 2, 3, 4]) for n in names}
    spread = not named and rng.random() < 0.3
    wide = [rng.choice([1, 2, 3]) for _ in range(2)]
    operands, shapes, seen = [], [], []
    for _ in range(rng.choice([1, 2, 2, 3, 3, 4])):
        labels = [rng.choice(names) for _ in range(rng.randint(1, 4))]
        if not named and rng.random() < 0.8 or named:
            labels = list(dict.fromkeys(labels))
        shape = [1 if not named and rng.random() < 0.08 and labels.count(n) == 1 else sizes[n] for n in labels]
        seen += labels
        if spread and rng.random() < 0.7:
            at = rng.randrange(len(labels) + 1)
            part = [s if rng.random() < 0.8 else 1 for s in wide[rng.randint(0, 2) :]]
            labels.insert(at, "...")
            shape[at:at] = part
        operands.append(labels)
        shapes.append(shape)
    spread = any("..." in o for o in operands)
    separator = " " if named else ""
    equation = ("," if rng.random() < 0.5 else ", ").join(separator.join(o) for o in operands)
    if named or rng.random() < 0.8:
        out = [n for n in dict.fromkeys(seen) if rng.random() < 0.5]
        rng.shuffle(out)
        if spread:
            out.insert(rng.randrange(len(out) + 1), "...")
        equation += rng.choice(["->", " -> "]) + separator.join(out)
    xs = [operand(k, s) for k, s in enumerate(shapes)]
    return equation, shapes, {}, "", einops.einsum(*xs, equation) if named else torch.einsum(equation, *xs)


def main():
    rng = random.Random(7)
    lines, seen = [], set()
    wanted = {"rearrange": 110, "reduce": 110, "repeat": 90, "einsum": 130, "einsum_named": 40}
    for function, n in wanted.items():
        count = 0
        while count < n:
            try:
                made = summing(rng, function == "einsum_named") if function.startswith("einsum") else rearranging(rng, function)
            except (einops.EinopsError, RuntimeError) as e:
                print("refused, so another pattern is drawn:", str(e).split("\n")[0][:100])
                continue
            pattern, shapes, given, reduction, y = made
            shape_text = ";".join(",".join(map(str, s)) for s in shapes)
            key = (function, pattern, shape_text, reduction)
            if key in seen or y.numel() > 3000:
                continue
            seen.add(key)
            count += 1
            a, b = sums(y)
            lines.append("|".join([function, pattern, shape_text, ",".join("%s=%d" % kv for kv in given.items()), reduction,
                                   ",".join(map(str, y.shape)), "%.12g" % a, "%.12g" % b]))
    with open(sys.argv[1], "w") as f:
        f.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
