"""What the page of a failed run says about common errors of programs: a sentence, and the page that helps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dlicmd.contract import known_errors, wire
from dlicmd.contract.known_errors import known_error
from dlicmd.contract.states import ERROR
from local_backend.store.execs import ExecRow

_SENTENCES: Mapping[str, str] = {
    known_errors.NO_MODULE: "The environment of the run lacks the package {package}. Install it with the command, or "
                            "choose an environment that has it.",
    known_errors.RELATIVE_IMPORT: "The program imports from its own package. Edit the run, and use the command "
                                  "python -m PACKAGE.MODULE.",
    known_errors.NO_INPUT: "A run has no standard input. Edit the run, and give the values as arguments.",
    known_errors.NOTEBOOK: "Remove the lines with get_ipython from the exported notebook.",
    known_errors.NO_RANK: "The program needs several processes. Choose the framework PyTorch, distributed.",
    known_errors.OWN_PROCESSES: "The program counts several processes in each worker, so it starts its processes "
                                "itself. Choose the framework PyTorch.",
    known_errors.NO_GPU: "This machine has no GPU. In the program: device = \"cuda\" if torch.cuda.is_available() else "
                         "\"cpu\".",
    known_errors.NO_CONFIG: "Only the experiments of searches have config.json. To run alone, the program needs "
                            "defaults.",
    known_errors.NO_DATA: "The program did not find a file. Programs find their data in the folder that the variable "
                          "DATA_DIR names; in this run: {data}. Choose the folder with the data of the program.",
}


@dataclass(frozen=True)
class RunRemedy:
    """A remedy for the error of a run. `command` may be empty. `is_data`: other data may prevent the error."""

    sentence: str
    command: str = ""
    is_data: bool = False


def remedy_of(row: ExecRow) -> RunRemedy | None:
    """Return the remedy for the error that ended a run; None if the error is not a common one."""
    if row.state != ERROR or row.reason != wire.PROGRAM_FAILED:
        return None
    found = known_error(row.message or "")
    if found is None:
        return None
    data = row.workload.data
    where = f"the data source {data.sources[0].name}" if data.sources else data.data_dir or "none"
    sentence = _SENTENCES[found.kind].format(package=found.package, data=where)
    command = f"dlicmd run --wait -- pip install {found.package}" if found.package else ""
    return RunRemedy(sentence, command, found.kind == known_errors.NO_DATA)
