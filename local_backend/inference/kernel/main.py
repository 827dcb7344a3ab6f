"""Run a kernel: `python -m local_backend.inference.kernel.main`. DLI_MODEL_DESCRIPTION names the model."""

from __future__ import annotations

import json
import os
import sys
import traceback
import types
from typing import Any

from local_backend.inference.kernel import api, openmp, ready
from local_backend.inference.kernel.kernel_log import log_error
from local_backend.inference.kernel.problems import KernelProblem
from local_backend.inference.kernel.serving import DESCRIPTION

#: Exit status of a kernel that cannot start.
CANNOT_START = 2


def main() -> int:
    """Run the kernel of the description. Return the exit status."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, write_through=True)  # type: ignore[union-attr]
    openmp.idle_threads_sleep()
    try:
        path = os.environ.get(DESCRIPTION)
        if not path:
            raise KernelProblem(f"{DESCRIPTION} is not set. To try a kernel, run: dlim debug DIR")
        description = read_description(path)
        ready_made = description.get("ready_made") or description.get("kernel_type")
        if ready_made:
            ready.make(ready_made).run()
        else:
            run_file(kernel_file(description))
    except KernelProblem as problem:
        log_error(problem)
        return CANNOT_START
    except Exception:
        log_error(f"The kernel did not start.\n{traceback.format_exc().rstrip()}")
        return 1
    return 0


def read_description(path: str) -> dict[str, Any]:
    """Return the description of the model. Raises KernelProblem."""
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError) as problem:
        raise KernelProblem(f"The description {path} cannot be read: {problem}") from None
    if not isinstance(found, dict):
        raise KernelProblem(f"The description {path} is not a JSON object.")
    return found


def kernel_file(description: dict[str, Any]) -> str:
    """Return the absolute path of the kernel file. Raises KernelProblem."""
    name = description.get("kernel_path")
    folder = os.environ.get("REDHARE_MODEL_PATH") or description.get("model_path") or os.getcwd()
    if not isinstance(name, str) or not name:
        raise KernelProblem("The description names no kernel: model.json needs `kernel_path`, such as \"kernel.py\".")
    path = os.path.join(folder, name)
    if not os.path.isfile(path):
        raise KernelProblem(f"The kernel file {path} does not exist.")
    return path


def run_file(path: str) -> None:
    """Run a kernel file as `__main__`. If it runs no kernel itself, run its only subclass of `Kernel`.

    Raises KernelProblem, and what the file raises.
    """
    before = api.runs()
    sys.argv[:] = [path]
    folder = os.path.dirname(os.path.abspath(path))
    if folder not in sys.path:
        sys.path.insert(0, folder)
    names = load_file(path, "__main__")
    if api.runs() == before:
        kernel_of(names, path)().run()


def load_file(path: str, name: str) -> dict[str, Any]:
    """Execute a Python file as the module `name`, and return its names. Raises what the file raises."""
    module = types.ModuleType(name)
    module.__file__ = path
    sys.modules[name] = module
    with open(path, "rb") as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    exec(code, vars(module))
    return vars(module)


def kernel_of(names: dict[str, Any], path: str) -> type[api.Kernel]:
    """Return the only subclass of `Kernel` that a kernel file defines. Raises KernelProblem."""
    found = [one for one in dict.fromkeys(value for value in names.values() if isinstance(value, type))
             if issubclass(one, api.Kernel) and one.__module__ == names["__name__"]]
    leaves = [one for one in found if not any(issubclass(other, one) for other in found if other is not one)]
    if len(leaves) != 1:
        what = "no subclass" if not leaves else f"{len(leaves)} subclasses"
        raise KernelProblem(f"{path} defines {what} of Kernel, and does not call run().")
    return leaves[0]


if __name__ == "__main__":
    sys.exit(main())
