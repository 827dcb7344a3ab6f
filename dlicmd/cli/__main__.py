"""`python -m dlicmd.cli`."""

import sys

from dlicmd.cli import main

if __name__ == "__main__":
    sys.exit(main())
