#!/usr/bin/env python3
"""Converts a header for Doxygen: filter.py HEADER. A // comment directly above declarations becomes
the comment of all these declarations, up to the next empty line. The // comment at the top becomes
the comment of the file. A LATHE_FIELD becomes a member whose comment is the text of the field."""
import re
import sys


def arguments(text, at):
    """Return the arguments of the call that opens at text[at], and the position after the call."""
    out, begin, depth, i, quoted = [], at + 1, 0, at, False
    while True:
        c = text[i]
        if quoted:
            if c == "\\":
                i += 1
            elif c == '"':
                quoted = False
        elif c == '"':
            quoted = True
        elif c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
        if not quoted and ((c == "," and depth == 1) or depth == 0):
            out.append(text[begin:i].strip())
            begin = i + 1
            if depth == 0:
                return out, i + 1
        i += 1


def fields(text):
    out, at = [], 0
    for found in re.finditer(r"LATHE_FIELD(?=\((?!type))", text):
        if found.start() < at:
            continue
        (kind, name, value, *rest), end = arguments(text, found.end())
        said = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', re.match(r'(?:\s*"(?:[^"\\]|\\.)*")*', rest[0])[0]))
        out += [text[at:found.start()], f"{kind} {name} = {value};  ///< {said}"]
        at = end
    return "".join(out) + text[at:]


def comments(lines):
    """Return the lines, with // comments in Doxygen's form."""
    out, i, head = [], 0, True
    while i < len(lines):
        begin = i
        while i < len(lines) and re.match(r"\s*//(?!/)", lines[i]):
            i += 1
        if i == begin:
            head = head and not lines[i].strip()
            out.append(lines[i])
            i += 1
            continue
        indent = re.match(r"\s*", lines[begin])[0]
        said = [re.sub(r"^\s*// ?", "", line) for line in lines[begin:i]]
        if head:
            out.append("/** @file\n" + "\n".join(said) + " */")
            head = False
        elif i < len(lines) and lines[i].strip() and not lines[i].startswith(("#", "}")):
            end = i
            while end < len(lines) and lines[end].strip():
                end += 1
            out += [indent + "/// " + line for line in said]
            out += [indent + "///@{", *comments(lines[i:end]), indent + "///@}"]
            i = end
        else:
            out.append("")
    return out


def main():
    with open(sys.argv[1]) as file:
        text = file.read()
    print("\n".join(comments(fields(text).split("\n"))))


main()
