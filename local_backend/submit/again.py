"""The submission of an exec once more: to verify it, with fewer steps, or to repeat it, perhaps with other words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from dlicmd.contract import wire
from dlicmd.contract.argv import CommandLine, join_args, parse_argv, split_args
from dlicmd.contract.secret import MASK, masked_arguments
from local_backend.data.submitted import SubmittedData
from local_backend.errors import Invalid
from local_backend.forward import orders
from local_backend.forward.target import Targets
from local_backend.runtime.paths import ExecPaths, HomePaths
from local_backend.store.execs import ExecRow
from local_backend.submit import forwarding, words
from local_backend.submit.check import check
from local_backend.workload import Program, Workload

#: Attributes of the engine: number of steps that are computed twice, before the training or instead of it.
BEFORE, INSTEAD = "verify", "verify_only"
_START, _ATTRIBUTE = "--exec-start", "--msd-attr"
_TARGETS = ("--cs-url-bearer", "--cs-url-meta", "--cs-rmq-meta")
_NAME, _WORKERS, _COMMAND = "--appName", "--numWorker", "--user-cmd"
_DATA = ("--cs-datastore-meta", "--data-source")


@dataclass(frozen=True)
class Changes:
    """The changes of a repetition; None: no change. `arguments` are the words of the program; for a command, the
    whole command. `data` are data sources; if empty, DATA_DIR is the data folder of the server."""

    name: str | None = None
    workers: int | None = None
    arguments: Sequence[str] | None = None
    data: Sequence[Any] | None = None


def to_repeat(
    row: ExecRow, paths: ExecPaths, changes: Changes, data: SubmittedData | None, memory: int | None
) -> tuple[Workload, str]:
    """Return (submission, command line to show) of an exec that repeats this exec with some changes. `paths` are the
    files of this exec, `data` is the checked data of the changes, and `memory` is that of the machine.

    Raises Invalid (`again.*`) for an exec that cannot be repeated, and the errors of a submission for the changes.
    """
    spec = row.workload
    if row.reason == wire.UNSUPPORTED:
        raise Invalid("again.unsupported", f"This server cannot run {row.id}: {row.message}")
    if MASK in (row.data_source or "") and data is None:
        raise Invalid(
            "again.credentials", f"{row.id} was submitted with credentials in its data source, which the server does "
            "not keep. Submit the program again with dlicmd run",
        )
    if spec.program.bundle is None:
        raise Invalid("again.files_gone", f"The submitted code of {row.id} is no longer stored. Submit it again")
    program = _as_submitted(spec.program, paths)
    shown = row.args.strip()
    spec = replace(spec, program=program, parent=None, experiment=None, repeats=row.id)
    if changes == Changes():
        return spec, shown
    line = parse_argv(split_args(shown), sent=True)
    if changes.arguments is not None:
        changes = replace(changes, arguments=_unmasked(changes.arguments, arguments_of(spec.program, paths)))
    asked = words.read(join_args(_changed(line, changes)), None)
    found = check(asked, row.creator, data or SubmittedData(""), lambda value: value, memory)
    resources = spec.resources
    if changes.workers is not None:
        resources = replace(
            resources, num_worker=found.resources.num_worker,
            min_workers=min(resources.min_workers, found.resources.engines) if resources.elastic else 1)
    if changes.arguments is not None:
        program = replace(program, arguments=found.program.arguments, user_cmd=found.program.user_cmd)
        changes = replace(changes, arguments=masked_arguments(changes.arguments))
    name = spec.name if changes.name is None else found.name
    used = spec.data if data is None else found.data
    spec = replace(spec, name=name, program=program, resources=resources, data=used)
    return spec, join_args(_changed(line, changes))


def targets_of(row: ExecRow, home: HomePaths) -> Targets | None:
    """Return the targets to which a repetition of this exec forwards its metrics; None if it has none.

    Raises Invalid (`again.credentials`) if they contain a secret that the server no longer has: it keeps secrets until
    all metrics are sent."""
    kept = orders.find(home, row.id)
    if kept is not None:
        return kept.targets
    line = parse_argv(split_args(row.args.strip()), sent=True)
    for option in _TARGETS if line.text("--cs-url-meta") else _TARGETS[1:]:  # a bearer alone has no effect
        if MASK in (line.text(option) or ""):
            raise Invalid(
                "again.credentials", f"{row.id} forwarded its metrics with a secret ({option}), which the server no "
                "longer has. Submit the program again with dlicmd run",
            )
    return forwarding.targets(line)


def arguments_of(program: Program, paths: ExecPaths) -> tuple[str, ...]:
    """Return the words of a program that a repetition can change."""
    submitted = _as_submitted(program, paths)
    return submitted.arguments if submitted.user_cmd is None else submitted.user_cmd


def _as_submitted(program: Program, paths: ExecPaths) -> Program:
    """Return a program as it was uploaded: a script that is not Python has become a command with the path of the file
    in the folder of its exec (place.py)."""
    folder = f"{(paths.submitted / (program.model_dir or '')).absolute()}/"
    if not program.user_cmd or not program.user_cmd[0].startswith(folder):
        return program
    first, *arguments = program.user_cmd
    return replace(program, user_cmd=None, main=first.removeprefix(folder), arguments=tuple(arguments))


def _unmasked(given: Sequence[str], before: Sequence[str]) -> list[str]:
    """Return words with the secrets of the words before, which were shown masked."""
    secrets = {shown: word for shown, word in zip(masked_arguments(before), before, strict=True) if shown != word}
    return [secrets.get(word, word) for word in given]


def _changed(line: CommandLine, changes: Changes) -> list[str]:
    """Return the words of a command line with changes."""
    values = {_NAME: changes.name, _WORKERS: None if changes.workers is None else str(changes.workers)}
    changed = {option: value for option, value in values.items() if value is not None}
    found = [str(line.command), *line.operands]
    left_out = {*changed, *(_DATA if changes.data is not None else ())}
    for given in line.given:
        if given.option.name not in left_out:
            found += given.words
    for option, value in changed.items():
        found.append(f"{option}={value}")
    if changes.arguments is not None:
        return [*found, "--", *changes.arguments]
    after = [] if line.after_dashes is None else ["--", *line.after_dashes]
    return [*found, *line.before_dashes, *after]


def to_verify(row: ExecRow, steps: int) -> tuple[Workload, str]:
    """Return (submission, command line to show) of an exec that verifies `steps` steps of this exec.

    Raises Invalid for an exec that cannot be verified.
    """
    spec = row.workload
    if not spec.resources.elastic:
        raise Invalid(
            "verify.not_elastic",
            f"{row.id} is not elastic ({row.framework}): its number of workers is constant, so verification does "
            "not apply; submit it as edtPyTorch",
        )
    if row.reason == wire.UNSUPPORTED:
        raise Invalid("verify.unsupported", f"{row.id} never ran, so it cannot be verified: {row.message}")
    if MASK in (row.data_source or ""):
        raise Invalid(
            "verify.credentials",
            f"{row.id} was submitted with credentials in its data source, which the server does not keep. Submit it "
            f"again with {_ATTRIBUTE} {INSTEAD}={steps}",
        )
    if spec.program.bundle is None:
        raise code_gone(row)
    attributes = {name: value for name, value in spec.program.attributes.items() if name not in (BEFORE, INSTEAD)}
    words = split_args(row.args)
    place = 2 if words[:1] == [_START] else 0
    shown = join_args([*words[:place], _ATTRIBUTE, f"{INSTEAD}={steps}", *words[place:]])
    program = replace(spec.program, attributes=attributes | {INSTEAD: str(steps)})
    return replace(spec, program=program, repeats=row.id), shown


def code_gone(row: ExecRow) -> Invalid:
    """Return the error for an exec whose submitted code is not stored, or has changed."""
    return Invalid(
        "verify.files_gone",
        f"cannot run {row.id} again: its submitted code is no longer stored. Submit it again with {_ATTRIBUTE} "
        f"{INSTEAD}=20",
    )
