"""Finds an interpreter that has the Python packages of a comparison, or exits as skipped. This file
has its own folder. The other folders in tests/oracles have the names of Python packages, and Python
would import these folders instead of the packages if they were next to this file."""
import os
import subprocess
import sys
import warnings
from pathlib import Path


def _interpreter(packages, variable):
    """Returns this interpreter if it has all packages, else the one that `variable` names, or
    None."""
    try:
        for name in packages:
            __import__(name)
        return sys.executable
    except ImportError:
        other = os.environ.pop(variable, None)
        return other if other and Path(other).exists() else None


def require(packages, variable="LATHE_HF_PYTHON"):
    """Does nothing if this interpreter has the packages. Otherwise runs the script in the
    interpreter that the environment variable names, and exits with the script's exit code. Exits
    with 77 (skipped) if there is no such interpreter."""
    python = _interpreter(packages, variable)
    if python is None:
        print(f"skipped: install {', '.join(packages)}, or set {variable} to a Python with them")
        sys.exit(77)
    if python != sys.executable:
        sys.exit(subprocess.call([python, *sys.argv]))


def quiet_transformers():
    """Keeps transformers offline and silent, and prints its version."""
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", TOKENIZERS_PARALLELISM="false")
    warnings.filterwarnings("ignore")
    import transformers

    transformers.utils.logging.disable_progress_bar()
    print("transformers", transformers.__version__)
