"""Measures the peak resident memory of a command."""
import os
import subprocess
import sys


def resident(command, folder, environment=None):
    """Runs a command; returns its output and the peak MiB of its largest process."""
    script = "import resource, subprocess, sys; code = subprocess.run(sys.argv[1:]).returncode; " \
        "print('peak', resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024, file=sys.stderr); sys.exit(code)"
    done = subprocess.run([sys.executable, "-c", script, *command], cwd=folder, capture_output=True, text=True,
                          env={**os.environ, **(environment or {})})
    if done.returncode != 0:
        sys.exit(f"{command}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout, float(done.stderr.rpartition("peak ")[2].split()[0])
