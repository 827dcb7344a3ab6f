"""`python -m dlicmd.dlim`."""

import sys

from dlicmd.dlim import main

if __name__ == "__main__":
    sys.exit(main())
