"""A job to submit: typed options, checked against the option table, and their rendering as the words of the wire."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from dlicmd.contract.argv import ArgvError, Given, convert
from dlicmd.contract.options import BY_NAME, OPTIONS, Form, Option, Travel
from dlicmd.sdk import hints
from dlicmd.sdk.data import check_sources
from dlicmd.sdk.errors import UsageProblem

START = "--exec-start"
MAIN, FOLDER, PREBUILT, COMMAND = "--model-main", "--model-dir", "--pbmodel-name", "--user-cmd"
META, SOURCE, CREATE = "--cs-datastore-meta", "--data-source", "--create-data-path"
ALLOW_CPU = "--allow-cpu"
#: Options of the form NAME=VALUE, which may also be given as a mapping.
PAIRS = ("--msd-env", "--msd-attr")
_Text = str | os.PathLike[str]
_Pairs = Mapping[str, object] | Sequence[str]

SubmitOptions = TypedDict(
    "SubmitOptions",
    {
        "model-main": _Text, "model-dir": _Text, "user-cmd": bool, "appName": str, "cs-datastore-meta": str,
        "create-data-path": bool, "data-source": Sequence[Mapping[str, Any]], "conda-env-name": str,
        "conda-home": _Text, "conda-env-yaml": _Text, "conda-package": _Text, "pbmodel-name": str, "pbmodel-cmd": str,
        "submit-user": str, "numWorker": int, "workerDeviceType": str, "workerDeviceNum": float, "gpuPerWorker": float,
        "allow-cpu": bool,
        "workerMemory": str, "workerCPULimit": float | str, "workerGPULimit": float | str, "workerMemoryLimit": str,
        "numPs": int, "numDriver": int, "driverDeviceType": str, "driverDeviceNum": float | str, "driverMemory": str,
        "driverCPULimit": float | str, "driverGPULimit": float | str, "driverMemoryLimit": str, "msd-env": _Pairs,
        "msd-attr": _Pairs, "msd-pending-timeout": int, "consumer": str, "ig": str, "msd-priority": int,
        "msd-label": Sequence[str], "msd-image-name": str, "msd-image-pull-secret": str, "msd-image-pull-policy": str,
        "msd-task0-node-selector": str, "msd-task12n-node-selector": str, "lsf-gpu-syntax": str,
        "msd-podaffinity-rule": str, "msd-podaffinity-topology-key": str, "msd-pack-id": str, "sc-runasuser": int,
        "sc-runasgroup": int, "sc-fsgroup": int, "cs-rmq-meta": str, "cs-url-meta": str, "cs-url-bearer": str,
        "edt-options": str, "python-version": str, "exclusive": bool, "accelerators": int | str, "mpiarg": str,
        "msd-task12n-device-type": str, "debug-level": str,
    },
    total=False,
)
"""The options of a submission with the types of their values. No option is required.

`docs/options.md` describes each option. The names have no dashes.

- A number, such as `numWorker`: `int` or `float`.
- A flag, such as `user-cmd`: True. False leaves the flag out.
- A file or folder, such as `model-dir`: a text or a `Path`.
- A repeatable option, such as `msd-label`: a list of texts.
- `msd-env` and `msd-attr`: a mapping of names to values, or a list of texts `NAME=VALUE`.
- `data-source`: a list of data sources as JSON objects, see `docs/data-sources.md`.

Examples:
    >>> options: SubmitOptions = {"model-dir": "model", "model-main": "train.py", "numWorker": 2,
    ...                           "msd-env": {"LR": "0.1"}, "exclusive": True}
"""
#: Name in SubmitOptions → option.
SUBMIT_OPTIONS: dict[str, Option] = {
    spelling.removeprefix("--"): option for spelling, option in BY_NAME.items()
    if option in OPTIONS and option.travel is not Travel.CLIENT
}


class Submission:
    """A job to submit. `given` are its options in their order. `sources` are its data sources as JSON objects.

    `program` are the words of the program after a `--`, or None without a `--`. `before` are words of the program
    before it. Raises UsageProblem when no program is named.

    `strict` says whether the local backend refuses what it cannot run. Without it, the local backend answers as the
    recorded server did.
    """

    strict = True

    def __init__(
        self, framework: str, given: Iterable[Given], program: Sequence[str] | None = None, before: Sequence[str] = (),
        sources: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self.framework, self.given, self.sources = framework, tuple(given), list(sources)
        self.program, self.before = program, before
        self._check()

    @classmethod
    def of(cls, framework: str, options: SubmitOptions, program: Sequence[object] = ()) -> Submission:
        """Return the submission with these options. Raises UsageProblem for an unknown option or a wrong value."""
        if not isinstance(options, Mapping):
            raise UsageProblem('the options of a submission must be a mapping, such as {"model-dir": "model"}')
        if isinstance(program, str | bytes):
            raise UsageProblem("the arguments of the program must be a list, such as ['--epochs', '2'], not a text")
        sources: Sequence[Mapping[str, Any]] = ()
        given: list[Given] = []
        for name, value in options.items():
            option = SUBMIT_OPTIONS.get(name)
            if option is None:
                raise UsageProblem(f"unknown submission option '{name}'")
            if option.name == SOURCE:
                sources = _sources(value)
            else:
                given += _given(option, name, value)
        return cls(framework, given, [str(word) for word in program] or None, sources=sources)

    def text(self, name: str) -> str | None:
        """Return the value of an option, the last one if the option is given twice; None if it is not given."""
        return next((given.text for given in reversed(self.given) if given.option.name == name), None)

    def has(self, option: Option) -> bool:
        """Return whether an option is given."""
        return any(given.option is option for given in self.given) or (option.name == SOURCE and bool(self.sources))

    @property
    def folder(self) -> Path | None:
        """The model folder, or None."""
        text = self.text(FOLDER)
        return None if text is None else Path(text)

    def words(self, instead: Mapping[str, Callable[[str], str]]) -> list[str]:
        """Return the words that go to the server. `instead` maps names of options to functions that return the value
        to send."""
        words, done = [START, self.framework], 0
        for given in self.given:
            words += self.before[done:given.place]
            done = max(done, given.place)
            change = instead.get(given.option.name)
            if given.option.travel is Travel.ARGS:
                changed = given if change is None or given.text is None else given._replace(text=change(given.text))
                words += changed.words
        return [*words, *self.before[done:], *([] if self.program is None else ["--", *self.program])]

    def _check(self) -> None:
        if any(given.option.name == COMMAND for given in self.given):
            if not self.program or not self.program[0].strip():
                raise UsageProblem(hints.either(
                    "--user-cmd: give the command after --, as in: --user-cmd -- torchrun train.py",
                    "user-cmd: give the command as the program, such as ['torchrun', 'train.py']"))
        elif not any(self.text(name) is not None for name in (MAIN, FOLDER, PREBUILT)):
            named = hints.either("--model-main FILE, and --model-dir DIR", "model-main, and model-dir")
            raise UsageProblem(f"no program given; add {named} for a whole folder")
        for name in (MAIN, FOLDER, PREBUILT):
            if self.text(name) == "":
                raise UsageProblem(f"{hints.option(name)}: the name is empty")


def _sources(value: object) -> Sequence[Mapping[str, Any]]:
    """Return checked data sources. Raises UsageProblem."""
    if not isinstance(value, list | tuple):
        raise UsageProblem("data-source must be a list, such as [{'type': 'fs', 'location': {'paths': 'mnist'}}]")
    check_sources(value, "data-source")
    return value


def _given(option: Option, key: str, value: object) -> Iterator[Given]:
    """Yield the values of an option, each checked. False stands for an option that is not given."""
    if option.name in PAIRS and isinstance(value, Mapping):
        value = [f"{name}={one}" for name, one in value.items()]
    for one in value if isinstance(value, list | tuple) else [value]:
        if one is False:
            continue
        if (one is True) is not (option.kind is Form.FLAG):
            expected = "must be True or False" if option.kind is Form.FLAG else "needs a value"
            raise UsageProblem(f"{key} {expected}")
        given = Given(option, None if one is True else str(one), f"--{key}")
        try:
            if given.text is not None:
                convert(option, given.text)
        except ArgvError as problem:
            raise UsageProblem(str(problem).removeprefix("--")) from None  # the text begins with the option
        yield given
