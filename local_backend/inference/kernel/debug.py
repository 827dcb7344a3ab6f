"""Try a kernel without a server: `python -m local_backend.inference.kernel.debug DIR [--input FILE ...]`."""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from local_backend.inference.kernel import api, frames, ready, serving
from local_backend.inference.kernel.kernel_log import log_error
from local_backend.inference.kernel.main import CANNOT_START, kernel_file, read_description, run_file
from local_backend.inference.kernel.problems import KernelProblem
from local_backend.inference.kernel.tasks import KernelContext, TaskBatch

#: The file of the input if none is named, and the number of tasks that a single input makes.
INPUT, COPIES = "input.json", 5


@dataclass
class DebugAnswer:
    """What a kernel answered to one task."""

    #: The parts of the answer: one, more if it was streamed, none without an answer.
    parts: list[bytes] = field(default_factory=list)
    #: Whether the kernel has answered; whether with an error, which `parts` names.
    answered: bool = False
    failed: bool = False
    meta: dict[str, Any] = field(default_factory=dict)


def debug(folder: Path, inputs: Iterable[bytes] = (), kernel_type: str | None = None) -> list[DebugAnswer]:
    """Start the kernel of a folder, let it handle one batch, and end it. Return the answers in order.

    `inputs` are bodies of requests: without any, that of `input.json`. One input makes a batch of 5 tasks, several
    make a batch with a task for each. `kernel_type` names a ready-made kernel. This process gets the environment and
    the working directory of a kernel. Raises KernelProblem, and what the kernel raises when it starts.
    """
    folder = folder.resolve()
    bodies = list(inputs) or [_default_input(folder)]
    bodies = bodies if len(bodies) > 1 else bodies * COPIES
    description = description_of(folder, kernel_type)
    os.environ.update(_environment(folder, description))
    os.chdir(folder)
    answers = [DebugAnswer() for _ in bodies]
    tasks = [frames.KernelTask(number, body) for number, body in enumerate(bodies)]

    def handle(kernel: serving.Hooks) -> None:
        kernel.on_kernel_start(KernelContext(json.dumps(description)))
        reader = frames.FrameReader()

        def take(parts: Iterable[bytes]) -> bool:
            for _, payload in reader.feed(b"".join(parts)):
                _note(answers, frames.reply_of(payload))
            return True

        (_, payload), = frames.FrameReader().feed(frames.batch(tasks))
        serving.invoke(kernel, TaskBatch(payload, take))
        kernel.on_kernel_shutdown()

    api.serve_with(handle)
    try:
        named = description.get("kernel_type")
        if named:
            ready.make(str(named)).run()
        else:
            run_file(kernel_file(description))
    finally:
        api.serve_with(serving.serve)
    return answers


def description_of(folder: Path, kernel_type: str | None = None) -> dict[str, Any]:
    """Return the description that a kernel in this folder gets. Raises KernelProblem."""
    path = folder / "model.json"
    found = read_description(str(path)) if path.exists() or kernel_type is None else {"name": folder.name}
    weights = str(found.get("weight_path") or "./")
    found |= {
        "model_path": str(folder), "weight_path": weights if weights == "N/A" else str((folder / weights).resolve()),
        "attributes": found.get("attributes") or [],
    }
    return found | ({"kernel_type": kernel_type} if kernel_type else {})


def _default_input(folder: Path) -> bytes:
    try:
        return (folder / INPUT).read_bytes()
    except OSError as problem:
        raise KernelProblem(f"No input given, and {folder / INPUT} cannot be read: {problem.strerror}.") from None


def _environment(folder: Path, description: Mapping[str, Any]) -> dict[str, str]:
    name = str(description.get("name", ""))
    given = {str(one["name"]): str(one.get("value", "")) for one in description.get("mk_environments") or ()}
    return given | {"REDHARE_MODEL_NAME": name, "REDHARE_MODEL_PATH": str(folder), "TASK_JOB_ID": f"edi-{name}-debug"}


def _note(answers: list[DebugAnswer], reply: frames.Reply) -> None:
    answer = answers[reply.id]
    answer.meta.update(reply.meta)
    if not reply.more:
        answer.answered, answer.failed = True, reply.failed
    if reply.body or not answer.parts:
        answer.parts.append(reply.body)


def main(arguments: list[str] | None = None) -> int:
    """Print the answers to the inputs.

    Return 0; 1 if a task has failed or has no answer; 2 if the kernel cannot start.
    """
    parser = argparse.ArgumentParser(prog="dlim debug", description="Try a kernel without a server.")
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder with model.json and the kernel")
    parser.add_argument("--input", type=Path, nargs="+", action="extend", default=[], metavar="FILE",
                        help=f"bodies of requests; without it, {INPUT} in the folder")
    parser.add_argument("--kernel-type", metavar="TYPE", help="ready-made kernel, such as onnx")
    given = parser.parse_args(arguments)
    try:
        answers = debug(given.folder, [path.read_bytes() for path in given.input], given.kernel_type)
    except KernelProblem as problem:
        log_error(problem)
        return CANNOT_START
    except OSError as problem:
        log_error(f"{problem.filename}: {problem.strerror}" if problem.filename else problem)
        return CANNOT_START
    except Exception:
        log_error(f"The kernel did not start.\n{traceback.format_exc().rstrip()}")
        return CANNOT_START
    for answer in answers:
        _show(answer)
    return 0 if all(one.answered and not one.failed for one in answers) else 1


def _show(answer: DebugAnswer) -> None:
    if not answer.answered:
        print("No response: the kernel set no output, so the client waits until the request times out.")
    elif answer.failed:
        print(f"Failed: {answer.parts[-1].decode('utf-8', 'replace')}")
    else:
        for part in answer.parts:
            print(f"Response data: {part.decode('utf-8', 'replace')}")


if __name__ == "__main__":
    sys.exit(main())
