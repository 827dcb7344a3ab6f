"""`python -m dlicmd.cli`."""

import sys

from dlicmd.cli import main

sys.exit(main())
