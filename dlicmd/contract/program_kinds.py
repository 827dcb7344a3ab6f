"""The kinds of programs, and which kind a program has, from its source, without running it. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from dlicmd.contract.verbs import COMMAND, DDP, ELASTIC, SINGLE

#: ProgramKind of a program → the framework of its submission.
FRAMEWORKS = {ELASTIC: "edtPyTorch", DDP: "distPyTorch", SINGLE: "PyTorch", COMMAND: "PyTorch"}
#: Workers of a program that can use several, unless the user gives a number.
USUAL_WORKERS = 2
#: Names of the main program of a folder, the most usual first.
MAIN_NAMES = ("train.py", "main.py")
_ELASTIC_MODULES = frozenset({"fabric_model", "pyedt"})
#: Modules that start no processes themselves, but train distributed if the job has several processes.
_DISTRIBUTED_MODULES = frozenset({
    "accelerate", "lightning", "pytorch_lightning", "transformers", "deepspeed", "horovod", "torch.distributed.run",
    "ignite.distributed",
})
_LIGHTNING = frozenset({"lightning", "pytorch_lightning"})
#: Classes of Lightning that train. With `num_nodes=` the workers of a job are their nodes.
_TRAINERS = frozenset({"Trainer", "Fabric"})
_DISTRIBUTED_NAMES = frozenset({"init_process_group", "DistributedDataParallel", "FullyShardedDataParallel",
                                "fully_shard"})
_RANKS = frozenset({"RANK", "LOCAL_RANK", "WORLD_SIZE"})
#: Functions and classes of torch.multiprocessing that start the processes of a training.
_STARTERS = frozenset({"spawn", "start_processes", "Process"})
_MULTIPROCESSING = "torch.multiprocessing"


class ProgramKind(NamedTuple):
    """The kind of a program, with the reason, such as `imports FabricModel`. `needs_workers`: the program has
    this kind only with several workers, and otherwise is a single process. `starts_processes`: the program starts the
    processes of its training itself, so the job starts it once."""

    kind: str
    reason: str
    needs_workers: bool = False
    starts_processes: bool = False


def usual_workers(slots: int) -> int:
    """Return the number of workers of a program that can use several, on a machine with this many slots: 2, or 1 if
    the machine has a single slot."""
    return max(1, min(USUAL_WORKERS, slots))


def kind_of_program(tree: ast.Module, others: Iterator[tuple[str, ast.Module]]) -> ProgramKind:
    """Return the kind of a program, also judged by the modules that it imports from its own folder: `others`, by
    name."""
    found = _kind_of_tree(tree)
    for name, module in others:
        if found is not None and (found.kind == ELASTIC or found.starts_processes):
            break
        other = _kind_of_tree(module)
        if other is not None and (found is None or other.starts_processes
                                  or (found.needs_workers and not other.needs_workers)):
            found = other._replace(reason=f"imports {name}, which {other.reason}")
    return found or ProgramKind(SINGLE, "uses no library for distributed training")


def local_imports(tree: ast.Module, is_file: Callable[[str], bool]) -> Iterator[str]:
    """Yield the modules that a program imports from its own folder, as paths relative to that folder."""
    for module in dict.fromkeys(_imported(tree)):
        if re.fullmatch(r"[\w.]+", module):
            path = module.replace(".", "/")
            yield from [name for name in (f"{path}.py", f"{path}/__init__.py") if is_file(name)][:1]


def _kind_of_tree(tree: ast.Module) -> ProgramKind | None:
    """Return the kind that the source of one module implies, or None."""
    modules = set(_imported(tree))
    if named := {module.partition(".")[0] for module in modules} & _ELASTIC_MODULES:
        return ProgramKind(ELASTIC, "imports FabricModel" if "fabric_model" in named else f"imports {min(named)}")
    if starter := _starter(tree):
        reason = f"starts the processes of its training itself, with {starter}"
        return ProgramKind(SINGLE, reason, starts_processes=True)
    if {module.partition(".")[0] for module in modules} & _LIGHTNING and (trainer := _trainer_of_one_node(tree)):
        return ProgramKind(SINGLE, f"makes a {trainer} without num_nodes=", starts_processes=True)
    for node in ast.walk(tree):
        if (name := _name(node)) in _DISTRIBUTED_NAMES:
            return ProgramKind(DDP, f"uses {name}")
        if (rank := _read_variable(node)) in _RANKS:
            return ProgramKind(DDP, f"reads {rank}")
    near = {prefix for module in modules for prefix in (module, module.partition(".")[0])} & _DISTRIBUTED_MODULES
    return ProgramKind(DDP, f"imports {min(near)}", needs_workers=True) if near else None


def _starter(tree: ast.Module) -> str:
    """Return the function or class of torch.multiprocessing that starts the processes of a distributed training, or an
    empty text. A program that reads its rank from the environment can also be started by others."""
    nodes = list(ast.walk(tree))
    if not any(_name(node) in _DISTRIBUTED_NAMES for node in nodes) or any(_read_variable(node) == "RANK"
                                                                           for node in nodes):
        return ""
    names = {_MULTIPROCESSING}
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.asname or alias.name for alias in node.names if alias.name == _MULTIPROCESSING}
        elif isinstance(node, ast.ImportFrom):
            full = {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            if found := next((name for name in _STARTERS if f"{_MULTIPROCESSING}.{name}" in full.values()), ""):
                return found
            names |= {name for name, path in full.items() if path == _MULTIPROCESSING}
    used = (node for node in nodes if isinstance(node, ast.Attribute) and node.attr in _STARTERS)
    return next((node.attr for node in used if ast.unparse(node.value) in names), "")


def _trainer_of_one_node(tree: ast.Module) -> str:
    """Return the class of Lightning that trains in this program, if each worker would train alone: it has no
    `num_nodes=`, and no `**options` that may contain it. Otherwise an empty text."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _name(node.func) in _TRAINERS]
    if any(keyword.arg in ("num_nodes", None) for call in calls for keyword in call.keywords):
        return ""
    return next((_name(call.func) for call in calls), "")


def _name(node: ast.AST) -> str:
    """Return the name that a node of the source uses or imports, or an empty text."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.name if isinstance(node, ast.alias) else ""


def _read_variable(node: ast.AST) -> str:
    """Return the key that a node of the source looks up, such as RANK in `os.environ["RANK"]`, `os.getenv("RANK")` or
    `"RANK" in os.environ`; or an empty text."""
    looked: ast.AST | None = None
    if isinstance(node, ast.Subscript):
        looked = node.slice
    elif isinstance(node, ast.Call):
        looked = node.args[0] if node.args else None
    elif isinstance(node, ast.Compare):
        looked = node.left
    return looked.value if isinstance(looked, ast.Constant) and isinstance(looked.value, str) else ""


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names)
