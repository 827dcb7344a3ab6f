"""The submission of an exec once more, to verify it: the same code, data and words, and fewer steps."""

from __future__ import annotations

from dataclasses import replace

from dlicmd.contract import wire
from dlicmd.contract.argv import join_args, split_args
from dlicmd.contract.secret import MASK
from local_backend.errors import Invalid
from local_backend.store.execs import ExecRow
from local_backend.workload import Workload

#: Attributes of the engine: number of steps that are computed twice, before the training or instead of it.
BEFORE, INSTEAD = "verify", "verify_only"
_START, _ATTRIBUTE = "--exec-start", "--msd-attr"


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
    return replace(spec, program=program), shown


def code_gone(row: ExecRow) -> Invalid:
    """Return the error for an exec whose submitted code is not stored, or has changed."""
    return Invalid(
        "verify.files_gone",
        f"cannot run {row.id} again: its submitted code is no longer stored. Submit it again with {_ATTRIBUTE} "
        f"{INSTEAD}=20",
    )
