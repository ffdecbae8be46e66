#!/usr/bin/env python3
"""Finds retired words and phrases in changed text: tools/prose.py BASE, or tools/prose.py --self-test

Checks the lines that were added since the commit BASE, committed or not: Markdown without its code, and the comments and
strings of sources. Prints "file:line: phrase -> suggestion" for each finding; findings are advice, not errors. A line that needs such
a word, for example to match an older message, is skipped if it contains "prose: ok". CONTRIBUTING.md explains the rules.
"""
import re
import subprocess
import sys
from pathlib import Path

# Each phrase is a regular expression between word boundaries. Upper and lower case are the same, except in (?-i:...).
RETIRED = [
    (r"anew", "again, or another verb: rebuild, restart"),
    (r"slopes?", "gradient or derivative"),
    (r"(?<!model )cards?", "GPU"),
    (r"(?:go|goes|going|gone|went) on", "resume or continue"),
    (r"told|tells?|telling", "report, print, show, or given to"),
    (r"says?|said", "report, print, or state"),
    (r"look(?:s|ed|ing)? (?:at|on)", "read or inspect"),
    (r"hangs? on", "depends on"),
    (r"under way", "in progress"),
    (r"of before", "previous"),
    (r"at once", "immediately, synchronously, or at the same time"),
    (r"(?:is|are|be|was|were|stays?) whole", "intact or complete"),
    (r"(?<!there )(?:is|was) no (?!longer|more\b|\w+er\b)\w+", "is not a ..."),
    (r"without work", "idle"),
    (r"the most that", "the peak or the largest"),
    (r"few bits", "quantized"),
    (r"figures?", "number, metric or statistics"),
    (r"as it comes", "by default"),
    (r"a rest|rests", "remaining or unused"),
    (r"(?:a|the) (?-i:llama)|(?-i:llamas|llama's)", "Llama"),
    (r"(?<![/\w`])(?-i:verbs?)(?![/_(`])", "command"),
    (r"(?:initial|optim|quant|normal|summar|serial|synchron|recogn|organ|parallel|token|general|real|special|util|vector"
     r"|random|categor|minim|maxim|penal|regular)is(?:e|es|ed|ing|ation|ations|er|ers)", "American spelling: -ize"),
    (r"colours?|centres?|centred|behaviours?|favours?|neighbours?|modelling|labelled|analyse[sd]?|grey",
     "American spelling"),
]
PATTERNS = [(re.compile(rf"\b(?:{phrase})\b", re.IGNORECASE), suggestion) for phrase, suggestion in RETIRED]

# Patterns that match comments and strings, by a file's extension. None: Markdown.
C_TEXT = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:[^"\\\n]|\\.)*"', re.DOTALL)
SCRIPT_TEXT = re.compile(r'""".*?"""|"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'|(?<![$\w{])#[^\n]*', re.DOTALL)
TEXT = {**dict.fromkeys((".h", ".cc", ".cu", ".cuh"), C_TEXT), ".md": None,
        **dict.fromkeys((".py", ".sh", ".toml", ".txt", ".cmake", ".sbatch", ""), SCRIPT_TEXT)}
# These files contain the phrases on purpose, or are generated from strings in the sources.
LEFT_OUT = {"CONTRIBUTING.md", "tools/prose.py", "docs/reference/cli.md", "docs/reference/config.md"}


def text_lines(name, content):
    """Return the lines of a file without code: documentation, comments and strings remain."""
    if name.endswith(".md"):
        content = re.sub(r"^```.*?^```|^    [^\n]*", lambda m: "\n" * m[0].count("\n"), content,
                         flags=re.DOTALL | re.MULTILINE)
        return [re.sub(r"`[^`]*`|\]\([^)]*\)", " ` ", line) for line in content.split("\n")]
    lines = [""] * (content.count("\n") + 1)
    for found in TEXT[Path(name).suffix].finditer(content):
        first = content.count("\n", 0, found.start())
        for i, part in enumerate(found[0].split("\n")):
            lines[first + i] += part + " "
    return lines


def findings(name, content, numbers):
    """Return the retired phrases in these lines of a file; `numbers` has line numbers from 1."""
    lines, found = content.split("\n"), []
    for number, text in enumerate(text_lines(name, content), 1):
        line = lines[number - 1]
        if number not in numbers or "prose: ok" in line or line.startswith("#include"):
            continue
        for pattern, suggestion in PATTERNS:
            found += [f"{name}:{number}: {match[0]} -> {suggestion}" for match in pattern.finditer(text)]
    return found


def git(*words):
    return subprocess.run(["git", *words], capture_output=True, text=True, errors="replace", check=True).stdout


def added_lines(base):
    """Return the numbers of the lines that were added since a commit, by file."""
    added, name = {}, None
    for line in git("diff", "-U0", "--no-color", "--no-ext-diff", "--src-prefix=a/", "--dst-prefix=b/", base).split("\n"):
        if line.startswith("+++ "):
            name = line[6:] if line.startswith("+++ b/") else None
        elif name and (hunk := re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line)):
            first, count = int(hunk[1]), int(hunk[2] or 1)
            added.setdefault(name, set()).update(range(first, first + count))
    for name in git("ls-files", "--others", "--exclude-standard").split("\n"):
        if name and Path(name).suffix in TEXT:
            added[name] = range(1, 1 << 30)
    return added


def self_test():
    def found(name, content):
        return [line.split(": ", 1)[1].split(" ->")[0] for line in findings(name, content, range(1, 100))]

    for name, content, expected in [
        ("a.md", "It begins anew on a card.", ["anew", "card"]),
        ("a.md", "It starts again on a GPU; `anew` is code.\n\n    lathe anew\n\n```\nanew\n```\n", []),
        ("a.md", "```\ncode\n```\nThe run goes on from step 3.", ["goes on"]),
        ("a.md", "Wildcards and a slopeless line. There is no file. It is no longer so.", []),
        ("a.cc", 'int slope = 1;  // the slope of x\nfail("no card");', ["slope", "card"]),
        ("a.cc", '#include "tests/card.h"\nint told_memory = 0;  // the peak', []),
        ("a.cc", '/* a\ntold */ int card;', ["told"]),
        ("a.cc", 'check("told");  // prose: ok', []),
        ("a.py", '"""Does\nanew what was done."""\ncard = 1\n', ["anew"]),
        ("dev", 'say "begin anew" # under way', ["anew", "under way"]),
        ("a.md", "Initialise the colour of a llama; llama.cpp is a program.", ["a llama", "Initialise", "colour"]),
    ]:
        assert found(name, content) == expected, (name, content, found(name, content))
    assert findings("a.md", "anew\nanew", {2}) == ["a.md:2: anew -> again, or another verb: rebuild, restart"]
    print("prose: the self-test passed")


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    found = []
    for name, numbers in sorted(added_lines(sys.argv[1]).items()):
        if Path(name).suffix in TEXT and name not in LEFT_OUT and Path(name).is_file():
            found += findings(name, Path(name).read_text(errors="replace"), numbers)
    print("\n".join([*found, f"prose: {len(found)} retired phrases in changed lines"]))


main()
