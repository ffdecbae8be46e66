"""What the comparisons with Hugging Face's packages share: an interpreter that has them, or an end as
skipped. It has a folder of its own, since the folders beside it have the names of packages."""
import os
import subprocess
import sys
import warnings
from pathlib import Path


def _interpreter(packages, variable):
    """This interpreter if it has them all, else the one that the variable names, or None."""
    try:
        for name in packages:
            __import__(name)
        return sys.executable
    except ImportError:
        other = os.environ.pop(variable, None)
        return other if other and Path(other).exists() else None


def require(packages, variable="LATHE_HF_PYTHON"):
    """Returns in an interpreter that has the packages; where this one has not, the script runs in the one that the variable
    names and ends with its exit code, or with 77, for skipped, where there is none."""
    python = _interpreter(packages, variable)
    if python is None:
        print("skipped: " + ", ".join(packages) + " are not all here; install them, or name a Python that has them in " + variable)
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
