"""The submission of an exec once more, to verify it: the same code, data and words, and fewer steps."""

from __future__ import annotations

import tarfile
from dataclasses import replace
from pathlib import Path

from dlicmd.contract import wire
from dlicmd.contract.argv import join_args, split_args
from dlicmd.contract.secret import MASK
from local_backend.errors import Invalid, StorageFailed
from local_backend.jobspec import JobSpec
from local_backend.runtime.paths import ExecPaths
from local_backend.store.execs import ExecRow
from local_backend.submit import manifest
from local_backend.submit.receive import Upload

#: Attributes of the engine: number of steps that are computed twice, before the training or instead of it.
BEFORE, INSTEAD = "verify", "verify_only"
_START, _ATTRIBUTE = "--exec-start", "--msd-attr"


def to_verify(row: ExecRow, steps: int) -> tuple[JobSpec, str]:
    """Return (submission, command line to show) of an exec that verifies `steps` steps of this exec.

    Raises Invalid for an exec that cannot be verified.
    """
    spec = row.job
    if not spec.elastic:
        raise Invalid(
            "verify.not_elastic",
            f"{row.id} is not elastic ({spec.framework}): its number of workers is constant, so verification does "
            "not apply; submit it as edtPyTorch",
        )
    if MASK in (row.data_source or ""):
        raise Invalid(
            "verify.credentials",
            f"{row.id} was submitted with credentials in its data source, which the server does not keep. Submit it "
            f"again with {_ATTRIBUTE} {INSTEAD}={steps}",
        )
    attributes = {name: value for name, value in spec.attributes.items() if name not in (BEFORE, INSTEAD)}
    words = split_args(row.args)
    place = 2 if words[:1] == [_START] else 0
    shown = join_args([*words[:place], _ATTRIBUTE, f"{INSTEAD}={steps}", *words[place:]])
    return replace(spec, attributes=attributes | {INSTEAD: str(steps)}), shown


def packed(row: ExecRow, paths: ExecPaths, folder: Path) -> Upload:
    """Return the submitted files of an exec, packed as an upload into this folder.

    Raises Invalid when a file is missing or there are too many, StorageFailed when the disk is full or refuses writes.
    """
    names, complete = manifest.read(paths)
    if not complete:
        raise Invalid(
            "verify.too_many_files",
            f"{row.id} has more than {manifest.MOST} files. Submit it again with {_ATTRIBUTE} {INSTEAD}=20",
        )
    archive = folder / f"again{wire.ARCHIVE_SUFFIX}"
    try:
        with tarfile.open(archive, "w") as tar:
            for name in names:
                file = paths.opened(paths.submitted / name)
                if file is None:
                    raise Invalid("verify.files_gone", f"cannot run {row.id} again: its file {name!a} is missing")
                with file:
                    tar.addfile(tar.gettarinfo(arcname=name, fileobj=file), file)
    except OSError as problem:
        raise StorageFailed.from_os(problem) from None
    return Upload([(archive.name, archive)])
