"""The source of the asynchronous client, made from that of the client: `python docs/generate.py` writes it.

Each method calls the method of the client in a thread. An iterator becomes an asynchronous iterator, a job becomes an
asynchronous job. Nothing of the client is copied but the signatures.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

from dlicmd.sdk import (
    calls,
    client,
    data_calls,
    exec_calls,
    experiment_calls,
    job,
    label_calls,
    model_calls,
    model_store_calls,
    output_calls,
    scheduler_calls,
    search_calls,
    search_job,
)

WIDTH = 120
#: Methods to leave out: `result` returns bytes as they arrive, `impatient` another client.
LEFT_OUT = {("Client", "result"), ("Client", "file"), ("Client", "impatient")}
#: Type in the client → type here.
TYPES = {"Jobs": "AsyncJobs", "Job": "AsyncJob", "SearchJob": "AsyncSearchJob"}
_HEAD = '''"""The client for asyncio: the same methods as coroutines.

`python docs/generate.py` makes this file; do not edit it.
"""

from __future__ import annotations

'''
_CLIENT = '''class AsyncClient:
    """The methods of `Client` as coroutines, for asyncio.

    Each method has the arguments, the result and the errors of the method of `Client` with the same name. Methods that
    return an iterator there return an asynchronous iterator here: `async for` without `await`. Jobs are `AsyncJob`,
    searches are `AsyncSearchJob`.
    `Client.result` and `Client.file`, which return bytes as they arrive, are left out: use `fetch_result` and
    `fetch_file`. Other answers are complete (at most 256 MiB).

    Each call runs in a thread of its own, with one client for all threads. When the awaiting task is cancelled, the
    call stops at its next pause, or its next chunk of an upload or download, at the latest when the server answers. A
    cancelled submission may have reached the server: look for the job with `jobs`.

    Examples:
        >>> async with AsyncClient() as client:
        ...     job = await client.run("train.py", workers=2)
        ...     async for line in job.logs(follow=True):
        ...         print(line)
    """

    def __init__(
__INIT__
    ) -> None:
        """Prepare the connection. The arguments are those of `Client`."""
        self._client = Client(__PASSED__)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _call(self, method: str, /, *args: Any, **named: Any) -> Any:
        found = await in_thread(getattr(self._client, method), *args, **named)
        if isinstance(found, Jobs):
            return AsyncJobs(AsyncJob(one) for one in found)
        if isinstance(found, SearchJob):
            return AsyncSearchJob(found)
        return AsyncJob(found) if isinstance(found, Job) else found
'''
_JOB = '''class AsyncJob:
    """The methods of `Job` as coroutines, for asyncio. `AsyncClient` explains the differences."""

    def __init__(self, job: Job) -> None:
        """Make an asynchronous handle from another handle."""
        self._job = job

    @property
    def exec(self) -> Exec:
        """The job as the server returned it last."""
        return self._job.exec

    async def _call(self, method: str, /, *args: Any, **named: Any) -> Any:
        found = await in_thread(getattr(self._job, method), *args, **named)
        return self if found is self._job else found

    def __repr__(self) -> str:
        return repr(self._job)

    def _repr_html_(self) -> str:
        return self._job._repr_html_()
'''
_JOBS = '''class AsyncJobs(list[AsyncJob]):
    """A list of jobs that a notebook shows as a table."""

    def __repr__(self) -> str:
        return repr(self._plain())

    def _repr_html_(self) -> str:
        return self._plain()._repr_html_()

    def _plain(self) -> Jobs:
        return Jobs(one._job for one in self)
'''

_SEARCH = '''class AsyncSearchJob:
    """The methods of `SearchJob` as coroutines, for asyncio. `AsyncClient` explains the differences."""

    def __init__(self, searchjob: SearchJob) -> None:
        """Make an asynchronous handle from another handle."""
        self._searchjob = searchjob

    @property
    def search(self) -> Search:
        """The search as the server returned it last."""
        return self._searchjob.search

    async def _call(self, method: str, /, *args: Any, **named: Any) -> Any:
        found = await in_thread(getattr(self._searchjob, method), *args, **named)
        return self if found is self._searchjob else found

    def __repr__(self) -> str:
        return repr(self._searchjob)

    def _repr_html_(self) -> str:
        return self._searchjob._repr_html_()
'''


def async_client() -> str:
    """Return the source of `dlicmd/sdk/async_client.py`."""
    parts = [client.Client, exec_calls.ExecCalls, output_calls.OutputCalls, label_calls.LabelCalls,
             scheduler_calls.SchedulerCalls, search_calls.SearchCalls, model_calls.ModelCalls,
             model_store_calls.ModelStoreCalls, experiment_calls.ExperimentCalls, data_calls.DataCalls, calls.Calls]
    of_client = [_client_head(), *(text for kind in parts for text in _methods(kind, "Client"))]
    text = "\n".join(of_client) + "\n\n" + "\n".join([_JOB, *_methods(job.Job, "Job"), f"\n{_JOBS}"])
    text += "\n\n" + "\n".join([_SEARCH, *_methods(search_job.SearchJob, "SearchJob")])
    return _HEAD + _imports(text) + "\n\n" + text


def _client_head() -> str:
    method = next(found for found in _nodes(calls.Calls) if found.name == "__init__")
    init = _Method(method, calls.Calls, "Client")
    passed = f"\n{_lines(init.passed, 12)}\n        "
    return _CLIENT.replace("__INIT__", _lines(init.parameters)).replace("__PASSED__", passed)


def _nodes(kind: type) -> list[ast.FunctionDef]:
    """Return the methods in the source of a class."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(tree, ast.ClassDef)
    return [node for node in tree.body if isinstance(node, ast.FunctionDef)]


def _methods(kind: type, of: str) -> Iterator[str]:
    """Yield the public methods of a class, each as source."""
    nodes = [node for node in _nodes(kind) if node.name[0] != "_" and (of, node.name) not in LEFT_OUT]
    if kind is not client.Client and of == "Client":  # the client overrides a method of its base
        nodes = [node for node in nodes if node.name not in vars(client.Client)]
    found = [_Method(node, kind, of) for node in nodes]
    eventual = {method.name for method in found if method.is_overload and method.is_iterator}
    for method in found:
        yield method.source(method.name in eventual)


class _Method:
    """A method of the client, or of its jobs (`of`)."""

    def __init__(self, node: ast.FunctionDef, kind: type, of: str) -> None:
        self.name, self._of, self._node = node.name, of, node
        self._marks = {ast.unparse(mark) for mark in node.decorator_list}
        self.parameters = _parameters(node.args, vars(inspect.getmodule(kind)))
        words = [one.arg for one in [*node.args.posonlyargs, *node.args.args]][1:]
        words += [f"*{node.args.vararg.arg}"] if node.args.vararg else []
        words += [f"{one.arg}={one.arg}" for one in node.args.kwonlyargs]
        #: The arguments that pass the parameters on.
        self.passed = words + ([f"**{node.args.kwarg.arg}"] if node.args.kwarg else [])
        self._returns = [_type(word) for word in (ast.unparse(node.returns) if node.returns else "None").split(" | ")]

    @property
    def is_overload(self) -> bool:
        """Whether this is only a signature (an overload)."""
        return "overload" in self._marks

    @property
    def is_iterator(self) -> bool:
        """Whether the result is an iterator."""
        return self._returns[0].startswith("AsyncIterator")

    def source(self, is_eventual: bool) -> str:
        """Return the asynchronous method. `is_eventual`: it returns an iterator if `follow` is set, else a
        coroutine."""
        if "property" in self._marks:
            said = (ast.get_docstring(self._node) or "").split("\n")[0]
            head = f'    @property\n    def {self.name}(self) -> {" | ".join(self._returns)}:\n        """{said}"""\n'
            return f"{head}        return self._{self._of.lower()}.{self.name}\n"
        returns = [word if not is_eventual or word.startswith("AsyncIterator") else f"Coroutine[Any, Any, {word}]"
                   for word in self._returns]
        words = "def" if is_eventual or self.is_iterator else "async def"
        if self.is_overload:
            return "    @overload\n" + self._head(words, returns, " ...")
        head = self._head(words, returns) + f'        """Call `{self._of}.{self.name}` in a thread."""\n'
        place, name = f"self._{self._of.lower()}.{self.name}", f'"{self.name}"'
        if is_eventual:
            followed = ["follow=True" if word == "follow" else word for word in self.passed]
            return head + f"        if follow:\n            return items(lambda: {place}({', '.join(followed)}))\n" + (
                _call("return self._call", [name, *self.passed]))
        if self.is_iterator:
            return head + _call(f"return items(lambda: {place}", self.passed, "))")
        if returns == ["None"]:
            return head + _call("await self._call", [name, *self.passed])
        return head + _call(f"found: {' | '.join(returns)} = await self._call", [name, *self.passed]) + (
            "        return found\n")

    def _head(self, words: str, returns: list[str], end: str = "") -> str:
        begin, rest = f"    {words} {self.name}(", f") -> {' | '.join(returns)}:{end}\n"
        line = f"{begin}{', '.join(self.parameters)}{rest}"
        return line if len(line) <= WIDTH else f"{begin}\n{_lines(self.parameters)}\n    {rest}"


def _call(begin: str, words: list[str], end: str = ")") -> str:
    line = f"        {begin}({', '.join(words)}{end}\n"
    return line if len(line) <= WIDTH else f"        {begin}(\n{_lines(words, 12)}\n        {end}\n"


def _lines(words: list[str], indent: int = 8) -> str:
    """Return words with commas between them, in as many lines as they need."""
    lines = [""]
    for word in words:
        if len(lines[-1]) + len(word) + indent + 2 > WIDTH:
            lines.append("")
        lines[-1] += f"{word}, "
    return "\n".join(" " * indent + line.rstrip() for line in lines)


def _parameters(given: ast.arguments, known: dict[str, object]) -> list[str]:
    """Return the parameters as source. A default that is a constant of its module becomes its value."""
    def source(one: ast.arg, default: ast.expr | None = None, mark: str = "") -> str:
        text = mark + one.arg + (f": {ast.unparse(one.annotation)}" if one.annotation else "")
        if default is None:
            return text
        value = repr(eval(ast.unparse(default), dict(known))).replace("'", '"')
        return f"{text} = {value}" if one.annotation else f"{text}={value}"

    usual = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(usual) - len(given.defaults)) + given.defaults
    found = [source(one, default) for one, default in zip(usual, defaults, strict=True)]
    found[len(given.posonlyargs):len(given.posonlyargs)] = ["/"] if given.posonlyargs else []
    found += [source(given.vararg, mark="*")] if given.vararg else ["*"] if given.kwonlyargs else []
    found += [source(one, default) for one, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    return found + ([source(given.kwarg, mark="**")] if given.kwarg else [])


def _type(text: str) -> str:
    """Return a type of the client as a type of the asynchronous client."""
    text = re.sub(r"\b(Jobs|Job|SearchJob)\b", lambda found: TYPES[found[0]], text)
    return re.sub(r"^Iterator\b", "AsyncIterator", text)


def _imports(text: str) -> str:
    """Return the imports that a text needs, with the places from which the modules of the client import."""
    places = {"in_thread": "dlicmd.sdk.threads", "items": "dlicmd.sdk.threads", "AsyncIterator": "collections.abc",
              "Coroutine": "collections.abc"}
    for module in (calls, client, exec_calls, output_calls, label_calls, scheduler_calls, search_calls, model_calls,
                   model_store_calls, experiment_calls, data_calls, job, search_job):
        tree = ast.parse(Path(module.__file__ or "").read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                places |= {one.name: node.module for one in node.names if one.name not in places}
        places |= {node.target.id: module.__name__ for node in tree.body
                   if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)}
        places |= {node.name: module.__name__ for node in tree.body if isinstance(node, ast.ClassDef)}
    nodes = list(ast.walk(ast.parse(text)))
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    names -= {node.arg for node in nodes if isinstance(node, ast.arg)} | {
        node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    used: dict[str, list[str]] = {}
    for name in sorted(names & places.keys()):
        used.setdefault(places[name], []).append(name)
    ours = sorted(module for module in used if module.startswith("dlicmd"))
    blocks = [["import os"] if "os" in names else [],
              [_import(module, used[module]) for module in sorted(used.keys() - set(ours))],
              ["", *(_import(module, used[module]) for module in ours)]]
    return "\n".join(line for block in blocks for line in block) + "\n"


def _import(module: str, names: list[str]) -> str:
    ordered = sorted(names, key=lambda name: (not name.isupper(), not name[0].isupper(), name))
    line = f"from {module} import {', '.join(ordered)}"
    each = "".join(f"    {name},\n" for name in ordered)
    return line if len(line) <= WIDTH else f"from {module} import (\n{each})"
