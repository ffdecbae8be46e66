#!/usr/bin/env python3
"""Counts the words of a text that have at least 4 letters, and prints the percentage of them that
occur in a corpus.

usage: lathe generate RUN --tokens 5000 | word_share.py CORPUS_FOLDER
"""
import pathlib
import re
import sys

WORD = re.compile(r"[A-Za-z]{4,}")
corpus = set()
for path in pathlib.Path(sys.argv[1]).rglob("*"):
    if path.is_file():
        corpus.update(WORD.findall(path.read_text(errors="replace")))
# The first and the last word may be incomplete.
words = WORD.findall(sys.stdin.read())[1:-1]
known = sum(w in corpus for w in words)
print(f"{known} of {len(words)} words of 4 or more letters occur in the corpus: {100 * known / max(1, len(words)):.1f}%")
