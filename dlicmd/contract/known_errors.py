"""Common errors of programs, recognized by the last line of the traceback. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

#: Kinds of errors.
NO_MODULE, RELATIVE_IMPORT, NO_INPUT, NOTEBOOK, NO_RANK, OWN_PROCESSES, NO_GPU, NO_CONFIG, NO_DATA = (
    "no_module", "relative_import", "no_input", "notebook", "no_rank", "own_processes", "no_gpu", "no_config",
    "no_data")
#: Names of modules → the packages that contain them, where these names differ.
_PACKAGES = {
    "PIL": "pillow", "bs4": "beautifulsoup4", "cv2": "opencv-python-headless", "dateutil": "python-dateutil",
    "skimage": "scikit-image", "sklearn": "scikit-learn", "yaml": "pyyaml",
}
#: Pattern of a message → the kind of the error, in the order of the search.
_PATTERNS = tuple((re.compile(pattern), kind) for pattern, kind in (
    (r"ModuleNotFoundError: No module named '([A-Za-z0-9_.]{1,60})'", NO_MODULE),
    (r"ImportError: attempted relative import with no known parent package", RELATIVE_IMPORT),
    (r"EOFError: EOF when reading a line", NO_INPUT),
    (r"NameError: name 'get_ipython' is not defined", NOTEBOOK),
    (r"environment variable (?:RANK|WORLD_SIZE) expected", NO_RANK),
    (r"KeyError: '(?:RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE)'", NO_RANK),
    (r"rank < size\. [0-9]", OWN_PROCESSES),
    (r"Found no NVIDIA driver|Torch not compiled with CUDA enabled|No CUDA GPUs are available", NO_GPU),
    (r"FileNotFoundError: .*'(?:\./)?config\.json'", NO_CONFIG),
    (r"FileNotFoundError: |KeyError: 'DATA_DIR'", NO_DATA),
))


class KnownError(NamedTuple):
    """A common error. `package` is the package that the program lacks, and `module` its module; both are empty for
    other errors."""

    kind: str
    package: str = ""
    module: str = ""


def known_error(message: str) -> KnownError | None:
    """Return the common error that a message reports; None if the error is not a common one."""
    for pattern, kind in _PATTERNS:
        if found := pattern.search(message):
            name = found[1].partition(".")[0] if kind == NO_MODULE else ""
            return KnownError(kind, _PACKAGES.get(name, name), name)
    return None
