"""Checks a submission, and makes a workload of it. Reads the disk only to find conda environments."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import PurePosixPath

from dlicmd.contract.argv import CommandLine
from local_backend.data.submitted import SubmittedData
from local_backend.errors import Invalid
from local_backend.submit import catalogue, conda
from local_backend.submit.resources import attributes_of, resources
from local_backend.submit.values import pairs
from local_backend.submit.words import Asked
from local_backend.workload import Data, Environment, Program, Scheduling, Workload

_MAX_NAME = 200
#: Maximum bytes of a word or variable for a program, and of all of them: Linux starts no process with a word longer
#: than 128 KiB.
_MAX_WORD, _MAX_WORDS = 120_000, 500_000


def check(
    asked: Asked, user: str, data: SubmittedData, seal: Callable[[str], str], memory: int | None
) -> Workload:
    """Return the workload of a submission. `id` is still empty. `main` and `model_dir` are as typed, and the code has
    no bundle: the content of the upload decides about them (see accept.py). `seal` encrypts a secret so that it may be
    stored on a disk. `memory` is that of the machine in bytes, None if unknown.

    A framework or model that is not built yet passes, see `unbuilt`. Raises Invalid, and the errors of `seal`.
    """
    line = asked.line
    framework = _framework(line)
    user_cmd = _user_command(line)
    _check_lengths(line)
    attributes = attributes_of(line, framework)
    return Workload(
        id="",
        name=_app_name(line, framework),
        creator=user,
        program=Program(
            framework=framework.name,
            model_dir=_model_dir(line),
            main=None if user_cmd else line.text("--model-main"),
            user_cmd=user_cmd,
            arguments=() if user_cmd else tuple(line.program),
            attributes=attributes,
        ),
        environment=Environment(
            variables={name: seal(value) for name, value in pairs("--msd-env", line.many("--msd-env"))},
            conda_env=conda.find(line.text("--conda-env-name"), line.text("--conda-home")),
        ),
        data=Data(data.sources, data.data_dir, line.text("--cs-datastore-meta") or ""),
        resources=resources(line, framework, attributes, asked.hardware, memory),
        scheduling=Scheduling(
            user=_submit_user(line) or user,
            consumer=line.text("--consumer") or "",
            priority=line.number("--msd-priority") or Scheduling.priority,
            pending_timeout=line.number("--msd-pending-timeout"),
        ),
    )


def unbuilt(line: CommandLine) -> Invalid | None:
    """Return the refusal of a framework or prebuilt model of the recorded catalogue that this server cannot run; None
    if the command line names none."""
    framework = catalogue.BY_NAME.get(line.operand or "")
    if framework is not None and framework.refused:
        return Invalid("submission.framework", f"{framework.name}: {framework.refused}")
    model = line.text("--pbmodel-name")
    if model in catalogue.PREBUILT_MODELS:
        return Invalid(
            "submission.option",
            f"--pbmodel-name: the local backend has no prebuilt model {model} yet; submit a program",
        )
    return None


def _framework(line: CommandLine) -> catalogue.CatalogueEntry:
    if line.command != "--exec-start" or line.operand is None:
        raise Invalid("submission.command", "the command line of a submission must begin with --exec-start FRAMEWORK")
    framework = catalogue.BY_NAME.get(line.operand)
    if framework is None:
        known = ", ".join(name for name, entry in catalogue.BY_NAME.items() if not entry.refused)
        raise Invalid("submission.framework", f"unknown framework '{line.operand[:80]}'; use one of: {known}")
    model = line.text("--pbmodel-name")
    if model is not None and model not in catalogue.PREBUILT_MODELS:
        raise Invalid("submission.option", f"--pbmodel-name: unknown prebuilt model '{model[:80]}'; submit a program")
    return framework


def _user_command(line: CommandLine) -> tuple[str, ...] | None:
    if not line.flag("--user-cmd"):
        return None
    if not line.after_dashes:
        raise Invalid(
            "submission.option", "--user-cmd needs the command after --, for example: --user-cmd -- torchrun train.py"
        )
    return tuple(line.after_dashes)


def _check_lengths(line: CommandLine) -> None:
    """Raise Invalid for words that are too long to start a process with."""
    options = {name: [line.text(name) or ""] for name in ("--model-main", "--cs-datastore-meta", "--conda-env-name")}
    options |= {"--msd-env": line.many("--msd-env"), "the command line": line.program}
    sizes = {name: [len(word.encode()) for word in words] for name, words in options.items()}
    for name, found in sizes.items():
        if found and max(found) > _MAX_WORD:
            raise Invalid(
                "submission.too_long",
                f"{name}: a word or variable has {max(found):,} bytes; the limit for starting a program is "
                f"{_MAX_WORD:,}. Put it into a file",
            )
    if sum(map(sum, sizes.values())) > _MAX_WORDS:
        raise Invalid(
            "submission.too_long",
            f"the words and variables (--msd-env) for the program have more than {_MAX_WORDS:,} bytes in total, the "
            "limit for starting a program. Put them into a file",
        )


def _model_dir(line: CommandLine) -> str | None:
    """Return the base name of --model-dir; None if the option is missing, or names no folder of its own (`.`)."""
    typed = line.text("--model-dir")
    return None if typed is None else PurePosixPath(typed.rstrip("/")).name or None


def _app_name(line: CommandLine, framework: catalogue.CatalogueEntry) -> str:
    name = line.text("--appName")
    if name is None:
        return framework.app_name
    if not name.strip() or len(name) > _MAX_NAME or not name.isprintable():
        raise Invalid("submission.option", f"--appName must have 1 to {_MAX_NAME} printable characters")
    return name


def _submit_user(line: CommandLine) -> str:
    name = line.text("--submit-user") or ""
    if name and not re.fullmatch(r"[\w.@-]{1,100}", name):
        raise Invalid("submission.option", f"--submit-user: '{name[:80]}' is not a valid user name")
    return name
