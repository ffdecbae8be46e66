#!/usr/bin/env python3
"""Compares the tables of layers and options in docs/reference/library.md with the headers of
nn/layers/. Each layer that can be called must be listed with the parameters of its constructor and
their defaults. A layer without a constructor must be listed with its fields and their defaults.

  tests/docs/library_layers.py [--table]

--table prints the entries that the tables must contain. The script also checks that it notices a
page with another default, and a page without a field.
"""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# These structs of options are not in nn/layers/.
OTHER_HEADERS = ["autograd/ops/images.h", "autograd/ops.h"]
OPTIONS = ["TransformerOptions", "RecurrentOptions", "Conv1dOptions", "Conv2dOptions", "AttentionMask", "RotaryScaling"]


def structs(text):
    """Yields the name and the body of each struct and class."""
    text = re.sub(r"//[^\n]*", "", text)
    for found in re.finditer(r"\b(?:struct|class) (\w+)(?: : (\w+))?\s*\{", text):
        depth, at = 1, found.end()
        while depth:
            depth += {"{": 1, "}": -1}.get(text[at], 0)
            at += 1
        yield found[1], text[found.end():at - 1]


def split(text):
    """Splits a text at the commas outside of brackets."""
    parts, depth = [""], 0
    for c in text:
        depth += (c in "<({") - (c in ">)}")
        if c == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += c
    return [" ".join(part.split()) for part in parts if part.strip()]


def named(declaration):
    """Returns name and default: `std::optional<Pair> stride = std::nullopt` -> `stride =
    nullopt`."""
    name, _, default = declaration.partition("=")
    name = re.findall(r"\w+", name)[-1].rstrip("_")
    return f"{name} = {default.strip().replace('std::', '')}" if default else name


def constructor(name, body):
    """Returns the parameters of the constructor, or None if there is no constructor."""
    for found in re.finditer(rf"(?<![\w~:]){name}\(((?:[^()]|\([^()]*\))*)\)\s*[;:{{]", body):
        if found[1].strip():
            return [named(p) for p in split(found[1])]
    return None


def fields(body):
    """Returns the fields of a struct without a constructor."""
    flat = body
    while re.search(r"\{[^{}]*\}", flat):
        flat = re.sub(r"\{[^{}]*\}", lambda m: "" if m[0] == "{}" else ";", flat)
    found = []
    for statement in flat.replace("const;", "const").split(";"):
        statement = " ".join(statement.split())
        if statement and "(" not in statement and not re.match(r"(enum|using|struct|static|private|public)\b", statement):
            found += [named(part) for part in split(statement)]
    return found


def layers():
    """Returns two dicts: the call that the page's first table must list for each layer, and the
    fields of each struct of options."""
    all_structs = {}
    for path in sorted((ROOT / "nn/layers").glob("*.h")):
        all_structs |= dict(structs(path.read_text()))
    others = {}
    for path in OTHER_HEADERS:
        others |= dict(structs((ROOT / path).read_text()))
    calls = {}
    for name, body in all_structs.items():
        if "operator()" not in body:
            continue
        base = re.search(r"using (\w+)::\1;", body)
        parameters = constructor(base[1], all_structs[base[1]]) if base else constructor(name, body)
        has_fields = parameters is None and name != "Sequential"
        calls[name] = f"{name}{{{', '.join(fields(body))}}}" if has_fields else f"{name}({', '.join(parameters or [])})"
    return calls, {name: fields({**others, **all_structs}[name]) for name in OPTIONS}


def problems(page):
    calls, options = layers()
    page = page.split("\n### Layers\n")[1].split("\n### ")[0]
    cells = {code for line in page.splitlines() if line.startswith("|") for code in re.findall(r"`([^`]+)`", line.split("|")[1])}
    found = [f"the page lacks `{call}`" for call in calls.values() if call not in cells]
    for cell in cells:
        name = re.match(r"([A-Z]\w+)[({]", cell)
        if name and name[1] not in calls:
            found.append(f"there is no layer {name[1]}")
    for name, wanted in options.items():
        row = next((line for line in page.splitlines() if line.startswith(f"| `{name}` |")), "")
        listed = re.findall(r"`([^`]+)`", row)[1:]
        listed = [name for name in listed if re.match(r"[a-z_]+( = |$)", name)]
        if listed != wanted:
            found.append(f"{name} has the fields {wanted}, but the page lists {listed}")
    return found


def main():
    calls, options = layers()
    if sys.argv[1:] == ["--table"]:
        print(*calls.values(), *(f"{name}: {', '.join(f)}" for name, f in options.items()), sep="\n")
        return 0
    page = (ROOT / "docs/reference/library.md").read_text()
    found = problems(page)
    for problem in found:
        print("docs/reference/library.md:", problem)
    assert len(calls) > 30, calls
    changed = page.replace("`RMSNorm(channels, eps = 1e-5)`", "`RMSNorm(channels, eps = 1e-6)`")
    assert changed != page and problems(changed) != found, "the control agrees"
    changed = page.replace("`n_inner = 0`, ", "")
    assert changed != page and problems(changed) != found, "the control agrees"
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
