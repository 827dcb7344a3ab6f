"""Runs one search of a plugin algorithm, in a process of its own: makes its object, gives it its state, asks it for
experiments, and returns the new state. plugin_process.py starts it, with the Python that the plugin was installed for.
So this file imports the standard library only.

Standard input has the request as JSON. The answer goes to the standard output that the process was started with, as
JSON; what the plugin prints goes to the log. The state is a pickle, which only such processes open.
"""

from __future__ import annotations

import base64
import contextlib
import importlib
import inspect
import json
import logging
import os
import pickle
import resource
import sys
import types
from typing import Any


class BasePluginOptimizer:
    """The base class of plugins, as `plugins.core.base_plugin_opt` offers it."""

    def __init__(self, name: str, hyper_parameters: list[dict[str, Any]], **kwargs: Any) -> None:
        self.name, self.hyper_parameters, self.kwargs = name, hyper_parameters, kwargs

    def search(self, number_samples: int, last_exp_results: list[dict[str, Any]] | None = None) -> list[dict[str, Any]]:
        raise TypeError("PluginOptimizer has no method search")

    def get_state(self) -> dict[str, Any]:
        """Return what the object needs to continue: without a method of the plugin, its attributes."""
        return dict(self.__dict__)

    def set_state(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


def offer(logger: logging.Logger) -> None:
    """Offer the modules that plugins import."""
    parts: dict[str, dict[str, Any]] = {
        "plugins": {}, "plugins.core": {}, "plugins.core.logger": {"logger": logger},
        "plugins.core.base_plugin_opt": {"BasePluginOptimizer": BasePluginOptimizer},
    }
    for name, members in parts.items():
        module = types.ModuleType(name)
        module.__path__ = []
        module.__dict__.update(members)
        sys.modules[name] = module
        above, _, last = name.rpartition(".")
        if above:
            setattr(sys.modules[above], last, module)
    # Both `from plugins.core.logger import logger` and `from plugins.core.logger.logger import logger` are in use.
    inner = types.ModuleType("plugins.core.logger.logger")
    inner.__dict__["logger"] = logger
    for method in ("debug", "info", "warning", "error", "exception", "critical"):
        inner.__dict__[method] = getattr(logger, method)
    sys.modules["plugins.core.logger.logger"] = inner


def limit(limits: dict[str, int], group: int | None) -> None:
    """Limit the CPU time, the memory and the files of this process, and of those that it starts. They give way to the
    server when the processors are busy, and end first when memory runs out. `group` is a descriptor of the control
    group that limits all of them together."""
    if group is not None:
        os.write(group, b"0")
        os.close(group)
    with contextlib.suppress(OSError):
        os.nice(limits["nice"])
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write(str(limits["score"]))
    for kind, most in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_CPU, limits["seconds"]),
                       (resource.RLIMIT_AS, limits["memory"]), (resource.RLIMIT_FSIZE, limits["file"])):
        _, hard = resource.getrlimit(kind)
        bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (bound, bound))


def plain(value: Any) -> Any:
    """Return a value of a suggestion as JSON has it: numbers of NumPy become plain ones."""
    return value.item() if hasattr(value, "item") else value


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Return the suggestions of the plugin, and its state afterwards."""
    logging.basicConfig(stream=sys.stderr, level=request["level"], format="%(asctime)s %(levelname)s %(message)s")
    offer(logging.getLogger("plugin"))
    sys.path[0] = request["folder"]
    importlib.invalidate_caches()
    optimizer = importlib.import_module("optimizer").PluginOptimizer(
        request["name"], request["hyper_parameters"], **request["kwargs"])
    if request["state"] is not None:
        _call(optimizer, "set_state", pickle.loads(base64.b64decode(request["state"])))
    found = optimizer.search(request["number"], request["last"])
    suggestions = [{str(name): plain(value) for name, value in one.items()} for one in found or []]
    state = _call(optimizer, "get_state")
    return {"suggestions": suggestions, "state": base64.b64encode(pickle.dumps(state, protocol=4)).decode("ascii")}


def _call(optimizer: Any, method: str, *words: Any) -> Any:
    """Call a method that plugins without our base class may lack."""
    own = getattr(optimizer, method, None)
    if inspect.ismethod(own):
        return own(*words)
    return getattr(BasePluginOptimizer, method)(optimizer, *words)


def main() -> None:
    """Answer the request."""
    out = os.dup(1)
    os.dup2(2, 1)
    request = json.load(sys.stdin)
    try:
        limit(request["limits"], request["group"])
        said = answer(request)
    except BaseException as problem:  # plugins raise any type, and may end the process
        logging.getLogger("plugin").exception("the plugin failed")
        said = {"problem": f"{type(problem).__name__}: {' '.join(str(problem).split())}"[:1000]}
    sys.stdout.flush()
    text = json.dumps(said).encode()
    while text:
        text = text[os.write(out, text):]
    os._exit(0)


if __name__ == "__main__":
    main()
