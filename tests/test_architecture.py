"""The rules of docs/architecture.md that a program can check."""

from __future__ import annotations

import ast
import graphlib
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from dlicmd.contract import error_codes
from dlicmd.sdk.errors import DlicmdError
from local_backend import errors
from local_backend.store import team_objects

ROOT = Path(__file__).parent.parent
#: Error classes with a code, and the format of a code.
KINDS = {name for name, kind in vars(errors).items() if isinstance(kind, type)} | {"BodyCompressed", "RangeUnsatisfied"}
CODE = re.compile(r"[a-z]+\.[a-z_]+")
ENGINE_LIBRARIES = {"torch", "numpy", "cloudpickle"}
#: Libraries of ready-made kernels.
KERNEL_LIBRARIES = {"joblib", "onnxruntime", "pandas", "skops", "transformers", "xgboost"}
#: Libraries of samplers, and the modules of `local_backend.hypersearch` in the process that loads them.
SEARCH_LIBRARIES = {"cmaes", "optuna", "scipy"}
SUGGESTER = {"suggester", "evolution"}
#: Package → packages of the product that it may import besides itself; single modules are allowed, too.
MAY_IMPORT = {
    "dlicmd": {"dlicmd.sdk"},
    "dlicmd.contract": set(),
    "dlicmd.sdk": {"dlicmd.contract"},
    "dlicmd.cli": {"dlicmd.contract", "dlicmd.sdk"},
    "dlicmd.dlim": {"dlicmd.contract", "dlicmd.sdk", "dlicmd.cli"},
    "local_backend.api": {
        "dlicmd.contract", "local_backend", "local_backend.services",
        # Types that services return, and code that reads and writes bodies: rows, paths, parsers, byte sources.
        "local_backend.store.connections", "local_backend.store.execs", "local_backend.store.states",
        "local_backend.store.users", "local_backend.store", "local_backend.scheduler.model",
        "local_backend.scheduler.plans", "local_backend.scheduler", "local_backend.runtime.launcher_log",
        "local_backend.runtime.needs", "local_backend.runtime.occupancy", "local_backend.runtime.paths",
        "local_backend.runtime.utilisation", "local_backend.runtime", "local_backend.submit.catalogue",
        "local_backend.submit.manifest", "local_backend.submit.receive", "local_backend.submit",
        "local_backend.forward.source", "local_backend.forward", "local_backend.curves.model",
        "local_backend.hypersearch.definition", "local_backend.hypersearch.space", "local_backend.hypersearch",
        "local_backend.store.searches", "local_backend.store.models", "local_backend.store.saved_models",
        "local_backend.store.labels", "local_backend.store.experiment_runs",
        "local_backend.inference.control", "local_backend.inference",
    },
    # Pages show the objects of the API, and come through its guard.
    "local_backend.console": {
        "dlicmd.contract", "local_backend", "local_backend.services", "local_backend.api", "local_backend.store.execs",
        "local_backend.store", "local_backend.scheduler.model", "local_backend.scheduler", "local_backend.curves",
        "local_backend.submit.again",  # what a repetition may change
    },
    "local_backend.curves": {"dlicmd.contract", "local_backend"},
    "local_backend.hypersearch": {
        "dlicmd.contract", "local_backend", "local_backend.store", "local_backend.runtime", "local_backend.curves",
        "local_backend.submit",
    },
    "local_backend.inference": {
        "dlicmd.contract", "local_backend", "local_backend.store", "local_backend.runtime", "local_backend.inference",
        "local_backend.inference.gateway", "local_backend.inference.kernel",
    },
    "local_backend.inference.gateway": {"dlicmd.contract", "local_backend", "local_backend.inference",
                                        "local_backend.inference.kernel"},
    "local_backend.inference.kernel": {"local_backend.inference"},
    "local_backend.services": {
        "dlicmd.contract", "local_backend", "local_backend.submit", "local_backend.inference", "local_backend.store",
        "local_backend.runtime",
        "local_backend.data", "local_backend.scheduler", "local_backend.forward", "local_backend.sources",
        "local_backend.curves", "local_backend.hypersearch", "dlicmd.sdk.paths.samples_dir",
    },
    "local_backend.submit": {"dlicmd.contract", "local_backend", "local_backend.data", "local_backend.store",
                             "local_backend.runtime", "local_backend.forward"},
    "local_backend.forward": {"dlicmd.contract", "local_backend", "local_backend.store", "local_backend.runtime"},
    "local_backend.data": {"dlicmd.contract", "local_backend"},
    "local_backend.store": {"dlicmd.contract", "local_backend"},
    "local_backend.scheduler": {"dlicmd.contract", "local_backend"},
    "local_backend.runtime": {
        "dlicmd.contract", "local_backend", "local_backend.scheduler", "local_backend.store", "local_backend.data",
        "local_backend.elastic", "local_backend.sources", "local_backend.curves", "dlicmd.program_log",
    },
    "local_backend.elastic": set(),
    # File names are built in only 1 module, and only 1 module parses YAML written by users.
    "local_backend": {"dlicmd.contract", "dlicmd.sdk.yaml_file", "dlicmd.sdk.errors", "local_backend.runtime.paths",
                      "local_backend.store.postgres"},
    "local_backend.sources": {"dlicmd.contract", "dlicmd.sdk.yaml_file", "dlicmd.sdk.errors", "local_backend",
                              "local_backend.data", "local_backend.store"},
    "local_backend.serving": {
        "dlicmd.contract", "local_backend", "local_backend.api", "local_backend.services", "local_backend.submit",
        "local_backend.store", "local_backend.runtime", "local_backend.data", "local_backend.forward",
        "local_backend.sources", "local_backend.console", "local_backend.scheduler",
    },
    "local_backend.commands": {
        "dlicmd.contract", "dlicmd.cli.show.progress", "local_backend", "local_backend.serving", "local_backend.api",
        "local_backend.services", "local_backend.store",
        "local_backend.runtime", "local_backend.data", "local_backend.forward", "local_backend.scheduler",
        "local_backend.sources",
    },
}


def sources(package: str) -> list[Path]:
    """Return the Python files of a package, without the entry point `cli.py` of `local_backend`.

    `dlicmd` and `local_backend` mean only the files of their top folder.
    """
    folder = ROOT / package.replace(".", "/")
    found = folder.glob("*.py") if package in ("dlicmd", "local_backend") else folder.rglob("*.py")
    return sorted(path for path in found if path != folder / "cli.py")


@cache
def imports(path: Path) -> set[str]:
    """Return the modules that a file imports, at any level of its code."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def package_of(module: str) -> str:
    """Return the package of a module of the product."""
    parts = module.split(".")
    nested = ".".join(parts[:2])
    return nested if nested in MAY_IMPORT else parts[0]


@pytest.mark.parametrize("package", sorted(MAY_IMPORT))
def test_packages_import_only_allowed_packages(package: str) -> None:
    for path in sources(package):
        for module in imports(path) - {"dlicmd.__version__"}:
            if module.split(".")[0] in ("dlicmd", "local_backend"):
                parts = module.split(".")
                seen = {package_of(module), *(".".join(parts[:count]) for count in (2, 3, 4))}
                assert seen & (MAY_IMPORT[package] | {package}), f"{path.relative_to(ROOT)} imports {module}"


#: Packages of the engine. Each may import later ones, and the modules of `local_backend.elastic` itself.
ENGINE_LAYERS = ("api", "driver", "worker", "collective", "data", "state", "script", "hub")


@pytest.mark.parametrize("layer", ENGINE_LAYERS)
def test_engine_packages_import_only_lower_packages(layer: str) -> None:
    lower = set(ENGINE_LAYERS[ENGINE_LAYERS.index(layer):])
    for path in sources(f"local_backend.elastic.{layer}"):
        used = {parts[2] for module in imports(path) if (parts := module.split("."))[:2] == ["local_backend", "elastic"]
                and len(parts) > 2 and parts[2] in ENGINE_LAYERS}
        assert used <= lower, f"{path.relative_to(ROOT)} imports {sorted(used - lower)}"


#: Modules that know the processes, process files and devices of this machine: `LocalLauncher`, the runner, and the
#: modules that only these two use.
OF_THIS_MACHINE = {
    "local_backend.boot", "local_backend.scheduler.slots",
    *(f"local_backend.runtime.{name}" for name in (
        "cgroup", "channel", "claim", "engine", "environment", "gpu_reports", "health", "job", "launch", "leftovers",
        "local_launcher", "local_run", "memory", "messages", "metering", "nursery", "overlay", "processes", "program",
        "runner", "sandbox", "server_link", "service", "starter", "tasks", "temporary", "tree", "unix_socket",
        "user_python", "view", "workers",
    )),
}
#: Other modules that import some of them: module → names after `local_backend.`.
USERS_OF_THIS_MACHINE = {
    "local_backend.serving.server": {"runtime.cgroup", "runtime.local_launcher"},  # chooses the launcher
    "local_backend.cli": {"runtime.overlay"},  # shows the title of its own process
    "local_backend.serving.home_database": {"runtime.launch"},  # migrates files of an earlier version
    "local_backend.serving.doctor": {"runtime.cgroup", "scheduler.slots"},  # examines this machine
    "local_backend.serving.isolation": {  # tests what the launcher needs
        "runtime.environment", "runtime.sandbox", "runtime.view",
    },
    "local_backend.commands.restore": {"runtime.launch"},  # refuses to replace files of running jobs
    "local_backend.data.download": {"boot"},  # after a reboot, partial downloads may be damaged
    # Fetchers run beside the server on every kind of machine, because they fill its cache.
    "local_backend.runtime.fetching": {
        "runtime.environment", "runtime.launch", "runtime.leftovers", "runtime.processes",
    },
    # The gateway runs beside the server, and is found by its socket, as runners are.
    "local_backend.inference.gateway_process": {"runtime.unix_socket"},
    # Plugins run in a sandbox as jobs do, and beside the server as fetchers do.
    "local_backend.hypersearch.plugin_process": {
        "runtime.cgroup", "runtime.environment", "runtime.sandbox", "runtime.view",
    },
    "local_backend.services.executors": {"runtime.workers"},  # reads the launcher log
}


def test_only_the_launcher_of_this_machine_knows_its_processes() -> None:
    """The supervisor and everything above it use the protocols in `runtime/launcher.py`."""
    found: dict[str, set[str]] = {}
    names = set()
    for path in (ROOT / "local_backend").rglob("*.py"):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        names.add(name)
        used = {part for module in imports(path) for part in OF_THIS_MACHINE if f"{module}.".startswith(f"{part}.")}
        if used and name not in OF_THIS_MACHINE:
            found[name] = {part.removeprefix("local_backend.") for part in used}
    assert names >= OF_THIS_MACHINE
    assert found == USERS_OF_THIS_MACHINE


@pytest.mark.parametrize(
    ("package", "libraries"),
    [("dlicmd", set()), ("dlicmd.contract", {"platformdirs"}), ("local_backend.elastic", ENGINE_LIBRARIES),
     ("local_backend.inference.kernel", {"numpy", "torch", *KERNEL_LIBRARIES}),
     ("dlicmd.sdk", {"cloudpickle", "jsonschema", "pandas", "pathspec", "requests", "yaml"}),
     ("dlicmd.cli", {"click", "keyring", "pyarrow", "rich", "yaml"}), ("dlicmd.dlim", {"click", "yaml"})],
)
def test_packages_import_only_allowed_libraries(package: str, libraries: set[str]) -> None:
    allowed = libraries | set(sys.stdlib_module_names) | {"dlicmd", "local_backend"}
    for path in sources(package):
        tops = {module.split(".")[0] for module in imports(path)}
        assert tops <= allowed, f"{path.relative_to(ROOT)} imports {sorted(tops - allowed)}"


def test_the_product_has_no_circular_imports() -> None:
    """All imports count: those in functions and for type checkers, too."""
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
               for package in ("dlicmd", "local_backend") for path in (ROOT / package).rglob("*.py")}
    graph = {name: {one if one in modules else one.rpartition(".")[0] for one in imports(path)} & modules.keys()
             for name, path in modules.items()}
    assert len(graph["local_backend.api.app"]) > 10
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


def test_routers_do_not_access_the_database() -> None:
    """Services decide: a router that reads or writes the database would bypass permissions and the audit.

    A router needs the attribute `database` of a service, the class `Database` or SQL for that.
    """
    for path in sources("local_backend.api"):
        for module in imports(path):
            assert not module.startswith("local_backend.store.database"), f"{path}: {module}"
            assert not module.startswith("sqlalchemy") or module.startswith("sqlalchemy.exc."), f"{path}: {module}"
        used = {node.attr for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
                if isinstance(node, ast.Attribute)}
        assert not used & {"database", "_database"}, path


def of_kinds(word: ast.expr) -> list[str]:
    """Return the end of a code that begins with the kind of a shared object: f"{self.kind}.not_found"."""
    if not isinstance(word, ast.JoinedStr) or ast.unparse(word.values[0]) != "{self.kind}":
        return []
    return [str(part.value) for part in word.values[1:] if isinstance(part, ast.Constant)]


def test_every_error_code_of_the_server_is_listed() -> None:
    raised = set()
    for path in (ROOT / "local_backend").rglob("*.py"):
        if "elastic" not in path.parts:
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                    constants = [word.value for word in node.args if isinstance(word, ast.Constant)]
                    constants += [f"{kind}{tail}" for word in node.args for tail in of_kinds(word)
                                  for kind in team_objects.KINDS]
                    found = [word for word in constants if isinstance(word, str) and CODE.fullmatch(word)]
                    raised |= set(found) if node.func.id in {*KINDS, "cls", "error_response"} else set()
    listed = error_codes.SERVER.keys() - {"http.method"}  # raised by FastAPI
    assert raised == listed


def test_every_error_code_of_a_backup_is_listed() -> None:
    raised = {str(node.args[0].value) for path in sources("local_backend.commands")
              for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
              if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "BackupError"
              and isinstance(node.args[0], ast.Constant)}
    assert raised == error_codes.BACKUP.keys()


def test_every_error_code_of_the_client_is_listed() -> None:
    def classes(one: type[DlicmdError]) -> set[type[DlicmdError]]:
        return {one}.union(*(classes(below) for below in one.__subclasses__()))

    codes = {one.code for one in classes(DlicmdError)} | {"client.interrupted", "client.unexpected"}
    assert codes == error_codes.CLIENT.keys()


def test_no_module_of_the_server_imports_a_library_of_the_engine() -> None:
    for package in MAY_IMPORT.keys() - {"local_backend.elastic", "local_backend.runtime", "dlicmd.sdk"}:
        for path in sources(package):
            used = {module.split(".")[0] for module in imports(path)} & ENGINE_LIBRARIES
            assert path.stem in SUGGESTER or "kernel" in path.parts or not used, path


def test_only_the_suggester_imports_a_library_of_samplers() -> None:
    users = {path.stem for path in (ROOT / "local_backend").rglob("*.py")
             if {module.split(".")[0] for module in imports(path)} & SEARCH_LIBRARIES}
    assert users == SUGGESTER


def test_the_server_loads_no_library_of_the_engine_or_of_data() -> None:
    """The modules that the server loads import other modules in turn."""
    program = "import importlib, sys; [importlib.import_module(name) for name in sys.argv[1:]]; print(*sys.modules)"
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts)
             for package in ("serving", "services", "api", "hypersearch")
             for path in sources(f"local_backend.{package}") if path.stem not in SUGGESTER]
    done = subprocess.run([sys.executable, "-c", program, *names], capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = set(done.stdout.split())
    assert {"local_backend.serving", "local_backend.store.database", "local_backend.runtime"} <= loaded
    data = {"boto3", "fsspec", "paramiko", "pyarrow", "pymongo", "pymysql"}
    assert not loaded & (ENGINE_LIBRARIES | SEARCH_LIBRARIES | data)


def test_processes_beside_the_server_load_none_of_its_libraries() -> None:
    """Each job and each search starts such processes. The libraries would take most of the time of the start."""
    program = "import importlib, sys; [importlib.import_module(name) for name in sys.argv[1:]]; print(*sys.modules)"
    names = [f"local_backend.{name}" for name in (
        "curves.answers", "data.fetcher", "data.probe", "hypersearch.suggester", "inference.gateway.process",
        "limited_host", "runtime.nursery", "runtime.runner", "serving.isolation")]
    done = subprocess.run([sys.executable, "-c", program, *names], capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = set(done.stdout.split())
    assert loaded > {*names, "optuna"}
    assert not loaded & {"alembic", "cmaes", "fastapi", "prometheus_client", "pydantic", "scipy", "sqlalchemy", "torch"}


def test_every_package_is_listed_for_installation() -> None:
    text = (ROOT / "setup.cfg").read_text(encoding="utf-8")
    block = re.search(r"^packages =\n((?:    \S+\n)+)", text, re.MULTILINE)
    assert block
    listed = set(block[1].split())
    found = {
        str(path.parent.relative_to(ROOT)).replace("/", ".")
        for top in ("dlicmd", "local_backend") for path in (ROOT / top).rglob("__init__.py")
        if "fabric" not in path.parts
    }
    assert listed == found | {"dlicmd.samples", "fabric_data", "pyedt"}


def test_the_sources_contain_no_open_todos() -> None:
    for top in ("dlicmd", "local_backend", "samples", "docs", "benchmarks"):
        for path in (ROOT / top).rglob("*"):
            if path.suffix in (".py", ".md", ".cfg"):
                text = path.read_text(encoding="utf-8")
                assert not re.search(r"\bTODO\b|\bFIXME\b|NotImplementedError", text), path


#: Classes with the same meaning in two packages that cannot import each other: the engine works without the backend,
#: and the client has no code of the server.
SAME_MEANING = {"Allocation", "Holder", "Slot"}


def test_every_name_on_the_wire_has_one_meaning() -> None:
    body = ast.parse((ROOT / "dlicmd" / "contract" / "wire.py").read_text()).body
    targets = [target for one in body if isinstance(one, ast.Assign) for target in one.targets]
    names = [one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)]
    assert [name for name, count in Counter(names).items() if count > 1] == []


def test_every_class_name_has_one_meaning() -> None:
    places: dict[str, list[str]] = {}
    for path in [*(ROOT / "dlicmd").rglob("*.py"), *(ROOT / "local_backend").rglob("*.py")]:
        if path.parent.name != "models":  # the models of the API describe objects of services under their names
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef):
                    places.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert {name: found for name, found in places.items() if len(found) > 1 and name not in SAME_MEANING} == {}


def test_kernels_need_only_the_standard_library_to_start() -> None:
    """They run in any Python environment: libraries are imported in functions."""
    for path in sources("local_backend.inference.kernel"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [one.name for one in node.names]
                assert {name.split(".")[0] for name in names} <= {*sys.stdlib_module_names, "local_backend"}, path
