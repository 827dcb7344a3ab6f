"""What `GET /ui/tools/dlicmd.py` hands out; scripts fetch it and run it as `python dlicmd.py ...`.

It runs the installed dlicmd: that of the Python it is run with, else the command on PATH.
"""

import importlib
import os
import sys


def run() -> int:
    """Run dlicmd with the words of this process; returns its exit code."""
    here = os.path.dirname(os.path.realpath(__file__))
    # This file may be called dlicmd.py, and must not be taken for the package.
    sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry or os.curdir) != here]
    try:
        # By name, for nothing of this runs in the server.
        client = importlib.import_module("dlicmd.cli")
    except ImportError:
        import shutil

        command = shutil.which("dlicmd")
        if command is None:
            print("dlicmd: not installed here; install it with: pip install dlicmd", file=sys.stderr)
            return 1
        os.execv(command, ["dlicmd", *sys.argv[1:]])
    return int(client.main())


if __name__ == "__main__":
    sys.exit(run())
