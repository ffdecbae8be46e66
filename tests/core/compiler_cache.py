#!/usr/bin/env python3
"""Tests that the build's compiler launcher works after a comment in a precompiled header has
changed: compiler_cache.py LAUNCHER... COMPILER

ccache must not return the header that was precompiled before the change. GCC would then include the
changed header a second time, and report each class as defined twice. Without CCACHE_DEPEND, the
compilation must fail in this way, which shows that the test notices the error.
"""
import os
import pathlib
import subprocess
import sys
import tempfile
import time


def compiles(command):
    """Returns whether the sources compile before and after the change, with an initially empty
    cache."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        environment = {k: v for k, v in os.environ.items() if not k.startswith("CCACHE_")}
        environment["CCACHE_DIR"] = str(folder / "cache")

        def compile(*words):
            return subprocess.run([*command, *words], cwd=folder, env=environment, capture_output=True, text=True)

        (folder / "all.h").write_text('#include "thing.h"\n')
        for version in ("old", "new"):
            (folder / "thing.h").write_text(f"// {version}\n#pragma once\nstruct Thing {{}};\n")
            (folder / "main.cc").write_text(f'#include "thing.h"\nThing {version}_thing;\n')
            hour_ago = time.time() - 3600  # ccache does not trust new headers
            for file in folder.glob("*.*"):
                os.utime(file, (hour_ago, hour_ago))
            (folder / "all.h.gch").unlink(missing_ok=True)

            precompile = compile("-MD", "-x", "c++-header", "-c", "all.h", "-o", "all.h.gch")
            if precompile.returncode:
                sys.exit(f"the header could not be precompiled: {precompile.stderr}")
            result = compile("-MD", "-Winvalid-pch", "-include", "all.h", "-c", "main.cc", "-o", "main.o")
            if result.returncode:
                if "redefinition" not in result.stderr:
                    sys.exit(f"an unexpected error: {result.stderr}")
                return False
    return True


command = sys.argv[1:]
if not any("ccache" in word for word in command):
    print("skipped: the build uses no ccache")
    sys.exit(77)
if not compiles(command):
    sys.exit("after a change to a comment, ccache returned the old precompiled header")
if compiles([word for word in command if not word.startswith("CCACHE_DEPEND")]):
    sys.exit("without CCACHE_DEPEND, ccache should return the old precompiled header")
print("a changed comment is compiled again")
