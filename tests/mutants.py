#!/usr/bin/env python3
"""Checks that the tests notice faults (mutants) that this script deliberately puts into a copy of
the sources.

The file mutants.toml of a folder of tests lists the mutants that these tests must notice. Each
mutant replaces the text `find` in `file`. The text must occur there once, apart from differences in
white space. The replacement is made in a copy of the sources (build-mutants/src), never in the
working tree. The script builds the copy, and runs the tests of the mutant's tags in their order
until the tests of one tag fail. The tag whose tests are most likely to fail should come first. Tag
X selects the tests in X_test.cc. A mutant that the tests of no tag notice shows a gap in the tests.
The tests must first pass on the unmutated sources.

After a name in the sources has been changed, `tests/mutants.py --rename OLD NEW` changes it in all
mutants.
"""
import argparse
import re
import shlex
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def places(text, find):
    """Returns the matches of a mutant's text in a source. White space between tokens may differ."""
    words = re.findall(r'"(?:\\.|[^"\\])*"|\w+|[^\w\s]', find)
    pattern = ""
    for before, word in zip([""] + words, words):
        needs_space = before[-1:].isidentifier() or before[-1:].isdigit()
        needs_space = needs_space and (word[0].isidentifier() or word[0].isdigit())
        pattern += (r"\s+" if needs_space else r"\s*" if before else "") + re.escape(word)
    return list(re.finditer(pattern, text))


def note(text):
    print(text, flush=True)


def sources():
    """Returns the paths of files that git tracks or would track."""
    out = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True,
                         capture_output=True, text=True).stdout
    return [p for p in out.split("\0") if p and (ROOT / p).is_file()]


def copy_sources(to):
    """Makes `to` a copy of the sources. Does not rewrite unchanged files, so that builds are
    incremental."""
    wanted = sources()
    for path in wanted:
        new, old = (ROOT / path).read_bytes(), to / path
        if not old.is_file() or old.read_bytes() != new:
            old.parent.mkdir(parents=True, exist_ok=True)
            old.write_bytes(new)
            old.chmod((ROOT / path).stat().st_mode)
    kept = set(wanted)
    for path in [p for p in to.rglob("*") if p.is_file()]:
        if str(path.relative_to(to)) not in kept:
            path.unlink()


class Runner:
    def __init__(self, args):
        self.folder, self.prefix, self.timeout = Path(args.folder).resolve(), shlex.split(args.prefix), args.timeout
        self.copy, self.build = self.folder / "src", self.folder / "build"
        self.libtorch, self.but = args.libtorch, args.but

    def configure(self):
        self.copy.mkdir(parents=True, exist_ok=True)
        copy_sources(self.copy)
        if not (self.build / "build.ninja").exists():
            options = ["-DLATHE_CUDA=OFF", "-DLATHE_WERROR=OFF"]
            options += [f"-DLIBTORCH={self.libtorch}"] if self.libtorch else []
            done = self.command("cmake", "-S", self.copy, "-B", self.build, "-G", "Ninja", *options)
            if done.returncode != 0:
                sys.exit(f"mutants: cmake could not configure {self.build}\n{done.stdout}")

    def command(self, *words):
        return subprocess.run(self.prefix + [str(w) for w in words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, errors="replace")

    def attempt(self, tags):
        """Builds the tests, and runs those of each tag until one fails.

        Returns a kind (passed, broken, failed) and a message.
        """
        but = "".join(f'~"{name}"' for name in self.but)
        script = [f"ninja -C {shlex.quote(str(self.build))} lathe_tests || exit 9"]
        for tag in tags:
            binary = str(self.build / "tests/lathe_tests")
            test = shlex.join(["timeout", "-s", "KILL", str(self.timeout), binary, f"[{tag}]{but}", "--abort"])
            script.append(f"echo; echo running {tag}; {test}; r=$?; [ $r = 0 ] || exit $((r < 128 ? 1 : r))")
        done = self.command("bash", "-c", "\n".join(script))
        if done.returncode == 0:
            return "passed", ", ".join(tags)
        lines = done.stdout.splitlines()
        if done.returncode == 9:
            return "broken", next((line for line in lines if "error" in line), "no error named")
        begin = max(i for i, line in enumerate(lines) if line.startswith("running "))
        tag = lines[begin].removeprefix("running ")
        if done.returncode == 137:
            return "failed", f"{tag}: no end after {self.timeout} s"
        # The name of the test case is between the first two lines of dashes.
        rules = [i for i, line in enumerate(lines) if i > begin and line.startswith("-----")]
        name = " ".join(line.strip() for line in lines[rules[0] + 1:rules[1]]) if len(rules) > 1 else "no test case"
        return "failed", f"{tag}: {name}" + (" (a crash)" if done.returncode > 128 else "")

    def known(self, tag):
        return any((self.copy / "tests").rglob(f"{tag}_test.cc"))

    def verdict(self, mutant):
        """Returns killed, survived, stale or broken, and a message."""
        path = self.copy / mutant["file"]
        if not path.exists():
            return "stale", f"does not apply: there is no {mutant['file']}"
        text = path.read_text()
        found = places(text, mutant["find"])
        if len(found) != 1:
            return "stale", f"does not apply: its text occurs {len(found)} times in {mutant['file']}, not once"
        tags = [t for t in mutant["tags"] if self.known(t)]
        if not tags:
            return "stale", f"does not apply: there are no tests for its tags, {', '.join(mutant['tags'])}"
        path.write_text(text[:found[0].start()] + mutant["replace"] + text[found[0].end():])
        try:
            kind, said = self.attempt(tags)
        finally:
            path.write_text(text)
        return {"passed": ("survived", f"SURVIVED {said}"), "failed": ("killed", f"killed by {said}"),
                "broken": ("broken", f"does not build: {said}")}[kind]


def lists():
    return sorted((ROOT / "tests").rglob("mutants.toml"))


def rename(old, new):
    """Replaces a name or a path in all mutants where it is a complete word, except in the mutants'
    own names."""
    word = re.compile(rf"(?<!\w){re.escape(old)}(?!\w)")
    changed = 0
    for path in lists():
        lines = path.read_text().split("\n")
        after = [line if line.startswith(("name = ", "#")) else word.sub(new, line) for line in lines]
        changed += sum(a != b for a, b in zip(lines, after))
        if after != lines:
            path.write_text("\n".join(after))
    note(f"{changed} lines changed")


def load(names):
    mutants = [m for path in lists() for m in tomllib.loads(path.read_text())["mutant"]]
    seen = set()
    for m in mutants:
        if set(m) != {"name", "file", "find", "replace", "tags"}:
            sys.exit(f"mutants: {m.get('name', m)} needs name, file, find, replace and tags, and nothing else")
        if m["name"] in seen:
            sys.exit(f"mutants: the name {m['name']} occurs twice")
        seen.add(m["name"])
    for name in names:
        if not any(name in m["name"] for m in mutants):
            sys.exit(f"mutants: no mutant's name contains {name}")
    return [m for m in mutants if not names or any(name in m["name"] for name in names)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("names", nargs="*", help="mutants whose names contain one of these; default: all")
    parser.add_argument("--list", action="store_true", help="only list the mutants, and check that each applies")
    parser.add_argument("--rename", nargs=2, metavar=("OLD", "NEW"), help="only change a name in all mutants")
    parser.add_argument("--folder", default=ROOT / "build-mutants", help="the folder for the copy and its build")
    parser.add_argument("--libtorch", default="", help="LibTorch's folder")
    parser.add_argument("--prefix", default="", help="a command that builds and tests run under, such as nice")
    parser.add_argument("--timeout", type=int, default=300, help="seconds that the tests of a tag may take")
    parser.add_argument("--but", action="append", default=[], metavar="TEST", help="a test case to leave out")
    parser.add_argument("--no-control", action="store_true", help="do not run the tests on the unmutated sources first")
    args = parser.parse_args()
    if args.rename:
        return rename(*args.rename)
    mutants = load(args.names)
    if args.list:
        stale = 0
        for m in mutants:
            path = ROOT / m["file"]
            n = len(places(path.read_text(), m["find"])) if path.exists() else 0
            stale += n != 1
            note(f"{m['name']}  {m['file']}  {' '.join(m['tags'])}" +
                 ("" if n == 1 else f"  (its text occurs {n} times)"))
        return 1 if stale else 0

    if shutil.which("ninja") is None or shutil.which("cmake") is None:
        sys.exit("mutants: cmake and ninja are needed; ./dev setup installs them")
    runner = Runner(args)
    runner.configure()
    begin = time.monotonic()
    if not args.no_control:
        tags = list(dict.fromkeys(t for m in mutants for t in m["tags"] if runner.known(t)))
        kind, text = runner.attempt(tags)
        if kind != "passed":
            sys.exit(f"mutants: the unmutated sources do not pass ({text})")
        note(f"control: {text} pass, {time.monotonic() - begin:.0f} s")
    counts = {"killed": 0, "survived": 0, "stale": 0, "broken": 0}
    for m in mutants:
        at = time.monotonic()
        kind, text = runner.verdict(m)
        counts[kind] += 1
        note(f"{m['name']}: {text} ({time.monotonic() - at:.0f} s)")
    bad = ", ".join(f"{counts[k]} {w}" for k, w in (("stale", "do not apply"), ("broken", "do not build")) if counts[k])
    note(f"{len(mutants)} mutants, {counts['killed']} killed, {counts['survived']} survived" +
         (f", {bad}" if bad else "") + f", {time.monotonic() - begin:.0f} s")
    return 0 if counts["killed"] == len(mutants) else 1


if __name__ == "__main__":
    sys.exit(main())
