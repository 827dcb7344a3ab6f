"""The program of a job that calls a function. `dlicmd.sdk.function` uploads this file, which runs without dlicmd.

The call is the file CALL beside this file: a line of JSON, then the pickled function without arguments. The outcome is
the file OUTCOME in RESULT_DIR: the HMAC of the rest in hexadecimal digits, a line of JSON, and then the pickled return
value or exception. In a job with several processes, the process of rank 0 writes the outcome.
"""

from __future__ import annotations

import hmac
import json
import os
import pickle
import sys
import traceback
from collections.abc import Callable
from typing import Any, BinaryIO

CALL, OUTCOME = "function-call", "function-outcome"
#: Keys of both lines: the version of Python as [major, minor], and a text that the client made for this call alone.
PYTHON, NONCE = "python", "nonce"
#: Key of the first file: the key of the HMAC.
KEY = "key"
#: Keys of the second file: whether the pickled object is an exception, and its traceback. Without a pickled object,
#: the traceback is all that is known.
IS_ERROR, TRACE, IS_PICKLED = "isError", "trace", "isPickled"


def main() -> int:
    """Call the function and store its outcome. Return the exit code."""
    folder = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(folder, CALL), "rb") as file:
        about = json.loads(file.readline())
        here = list(sys.version_info[:2])
        if about[PYTHON] != here:
            print("The function was pickled by Python {}.{}, but this job runs Python {}.{}.".format(
                *about[PYTHON], *here), file=sys.stderr)
            _store(about, {IS_ERROR: True, IS_PICKLED: False, TRACE: ""})
            return 1
        try:
            import cloudpickle

            value = pickle.load(file)()
            sys.stdout.flush()
            _store(about, {IS_ERROR: False, IS_PICKLED: True}, lambda out: cloudpickle.dump(value, out))
        except Exception as problem:
            trace = _trace_of(problem)
            print(trace, end="", file=sys.stderr)
            data = _pickled(problem)
            _store(about, {IS_ERROR: True, IS_PICKLED: data is not None, TRACE: trace},
                   lambda out: out.write(data or b""))
            return 1
    return 0


def _trace_of(problem: BaseException) -> str:
    """Return the traceback of an error of the function, without the frame of this file."""
    trace = problem.__traceback__
    return "".join(traceback.format_exception(type(problem), problem, trace and trace.tb_next))


def _pickled(problem: Exception) -> bytes | None:
    """Return a pickled exception, or None for an exception that cannot be pickled or loaded."""
    try:
        import cloudpickle

        data: bytes = cloudpickle.dumps(problem)
        return data if isinstance(pickle.loads(data), Exception) else None
    except Exception:
        return None


def _store(about: dict[str, Any], told: dict[str, Any], write: Callable[[Any], object] = lambda _: None) -> None:
    """Write the outcome under a temporary name, and then give it its name."""
    if os.environ.get("RANK", "0") != "0":
        return
    path = os.path.join(os.environ["RESULT_DIR"], OUTCOME)
    fd = os.open(f"{path}.tmp", os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(fd, "w+b") as file:
        file.write(b"0" * 64 + b"\n")
        signed = _Signed(file, bytes.fromhex(about[KEY]))
        told = {PYTHON: list(sys.version_info[:2]), NONCE: about[NONCE], **told}
        signed.write(json.dumps(told).encode() + b"\n")
        write(signed)
        file.seek(0)
        file.write(signed.code.hexdigest().encode())
    os.replace(f"{path}.tmp", path)


class _Signed:
    """A file for writing that computes the HMAC of its content."""

    def __init__(self, file: BinaryIO, key: bytes) -> None:
        self._file = file
        self.code = hmac.new(key, digestmod="sha256")

    def write(self, data: Any) -> int:
        """Write bytes."""
        self.code.update(data)
        return self._file.write(data)


if __name__ == "__main__":
    sys.exit(main())
