"""Plugin algorithms: installed files, and the processes that run them."""

from __future__ import annotations

import json
import os
import signal
import sys
import tarfile
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import isolation
import pytest
from runtime_support import settings_for
from simulated import text_of

from local_backend.errors import Invalid
from local_backend.hypersearch import plugin_process, plugins
from local_backend.hypersearch.definition import Definition, Known
from local_backend.hypersearch.questions import Hold, SuggesterFailed, SuggesterLost
from local_backend.hypersearch.reading import parse
from local_backend.settings import Settings

SAMPLES = Path(__file__).parent / "plugins"
SPACE = [
    {"name": "rate", "type": "range", "dataType": "double", "minDbVal": 0.1, "maxDbVal": 0.2},
    {"name": "layers", "type": "Range", "dataType": "INT", "minIntVal": 1, "maxIntVal": 9},
    {"name": "optimizer", "type": "Discrete", "dataType": "STR", "discreateStrVal": ["sgd", "adam"]},
]
CELLS = [{"name": name, "type": "Range", "dataType": "INT", "minIntVal": 0, "maxIntVal": 2} for name in "ba"]


class Bench:
    """A home with an installed algorithm."""

    def __init__(self, home: Path, **changes: Any) -> None:
        home.mkdir(exist_ok=True)
        self.settings: Settings = settings_for(home, plugin_roots=(str(SAMPLES),), **changes)
        self.log = home / "plugin.log"

    def install(self, name: str, **more: Any) -> dict[str, Any]:
        request = plugins.PluginRequest.parse(json.dumps({"name": name, "path": str(SAMPLES / name)} | more))
        folder = plugins.install(self.settings, request, None)
        return request.described(folder, "ada", "2026-01-09 17:31:32")

    def write(self, name: str, program: str) -> dict[str, Any]:
        """Install an algorithm with a program of its own."""
        folder = self.settings.home / "uploaded"
        folder.mkdir(exist_ok=True)
        (folder / "optimizer.py").write_text(program, encoding="utf-8")
        archive = self.settings.home / "uploaded.tar"
        with tarfile.open(archive, "w:gz") as tar:
            tar.add(folder / "optimizer.py", "optimizer.py")
        request = plugins.PluginRequest.parse(json.dumps({"name": name}))
        return request.described(plugins.install(self.settings, request, archive), "ada", "2026-01-09 17:31:32")

    def ask(self, description: dict[str, Any], found: Definition, count: int, state: bytes | None = None,
            last: tuple[Known, ...] = (), *, group: Path | None = None) -> plugin_process.PluginAnswer:
        return plugin_process.ask(self.settings, description, found, name="search", count=count, last=last, state=state,
                                  log=self.log, hold=Hold(), control_group=group)


def of_plugin(name: str, *params: tuple[str, str], space: Any = SPACE) -> Definition:
    return parse(text_of(name, *params, space=space), plugins=[name])


def code_of(bench: Bench, **request: Any) -> str:
    with pytest.raises(Invalid) as refused:
        plugins.install(bench.settings, plugins.PluginRequest.parse(json.dumps(request)), None)
    return refused.value.code


def test_an_installation_copies_the_files_and_is_described(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    description = bench.install("drawn", condaEnv="dlipy3", logLevel="debug", remoteExec=True)
    folder = Path(description["path"])
    assert folder.parent == tmp_path / "plugins" and (folder / "optimizer.py").is_file()
    assert description | {"path": "", "condaHome": ""} == {
        "name": "drawn", "path": "", "condaHome": "", "condaEnv": "dlipy3", "creator": "ada",
        "createtime": "2026-01-09 17:31:32", "type": "USER_PLUGIN", "remoteExec": True, "logLevel": "DEBUG"}
    assert "logLevel" not in bench.install("cells")
    assert code_of(bench, name="drawn", path=str(SAMPLES / "drawn")) == "search.plugin"
    plugins.delete(bench.settings, "drawn")
    assert not folder.exists()
    plugins.delete(bench.settings, "../..")
    assert tmp_path.exists()


@pytest.mark.parametrize("request_", [
    {"name": "../up", "path": str(SAMPLES / "drawn")}, {"name": "Random", "path": str(SAMPLES / "drawn")},
    {"path": str(SAMPLES / "drawn")}, {"name": "a"}, {"name": "a", "path": "/etc"}, {"name": "a", "path": str(SAMPLES)},
    {"name": "a", "path": f"{SAMPLES}/../.."}, {"name": "a", "path": f"{SAMPLES}/nothing"},
    {"name": "a", "path": str(SAMPLES / "drawn"), "logLevel": "LOUD"},
    {"name": "a", "path": str(SAMPLES / "drawn"), "condaEnv": "no-such-environment"},
])
def test_wrong_installations_are_refused(tmp_path: Path, request_: dict[str, Any]) -> None:
    assert code_of(Bench(tmp_path), **request_) == "search.plugin"
    assert not list(tmp_path.glob("plugins/*"))


def test_without_roots_no_path_of_the_server_is_read(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.settings = replace(bench.settings, plugin_roots=())
    assert code_of(bench, name="drawn", path=str(SAMPLES / "drawn")) == "search.plugin"


@pytest.mark.integration
def test_a_random_algorithm_continues_with_its_state(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    description, found = bench.install("drawn", logLevel="DEBUG"), of_plugin("drawn", ("seed", "5"))
    whole = bench.ask(description, found, 6)
    first = bench.ask(description, found, 2)
    last = tuple(Known(number, values, "done", value=0.5, told=number)
                 for number, values in enumerate(first.suggestions))
    second = bench.ask(description, found, 4, first.state, last)
    assert first.suggestions + second.suggestions == whole.suggestions
    assert second.state == whole.state != first.state
    for one in whole.suggestions:
        assert 0.1 <= float(one["rate"]) < 0.2 and one["layers"] in range(1, 9) and one["optimizer"] in ("sgd", "adam")
        assert [type(one[name]) for name in ("rate", "layers", "optimizer")] == [float, int, str]
    log = bench.log.read_text(encoding="utf-8")
    assert "DEBUG last results: [{" in log and "'metricVal': 0.5" in log and "searching" in log


@pytest.mark.integration
def test_a_grid_without_methods_for_its_state_ends(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    description, found = bench.install("cells"), of_plugin("cells", space=CELLS)
    first = bench.ask(description, found, 3)
    rest = bench.ask(description, found, 3, first.state)
    assert first.suggestions + rest.suggestions == [{"a": a, "b": b} for a in (0, 1) for b in (0, 1)]
    assert bench.ask(description, found, 3, rest.state).suggestions == []


PROGRAM = """
from plugins.core.base_plugin_opt import BasePluginOptimizer

class PluginOptimizer(BasePluginOptimizer):
    def search(self, number_samples, last_exp_results=None):
        {}
"""


@pytest.mark.integration
@pytest.mark.parametrize("body, error", [
    ("raise KeyError('rate')", SuggesterFailed), ("return [{'rate': 'x'}]", SuggesterFailed),
    ("return [{'unknown': 1}]", SuggesterFailed), ("return [{'rate': float('nan')}]", SuggesterFailed),
    ("import sys; sys.exit(0)", SuggesterFailed), ("x = bytearray(2**40)", SuggesterFailed),
    ("import time; time.sleep(3600)", SuggesterFailed), ("while True: pass", SuggesterFailed),
    ("import os; os.kill(os.getpid(), 9)", SuggesterLost),
])
def test_a_plugin_that_fails_does_no_harm(tmp_path: Path, body: str, error: type[Exception]) -> None:
    bench = Bench(tmp_path, plugin_seconds=3)
    description = bench.write("mine", PROGRAM.format(body))
    with pytest.raises(error):
        bench.ask(description, of_plugin("mine"), 1)


@pytest.mark.integration
def test_a_plugin_finds_every_list_of_a_parameter(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    description = bench.write("mine", PROGRAM.format(
        "one = self.hyper_parameters[0]; return [{'optimizer': repr([one[key] for key in "
        "('discreteDbVal', 'discreteIntVal', 'discreateStrVal', 'minIntVal')])}]"))
    choice = {"name": "optimizer", "type": "Discrete", "dataType": "STR", "discreateStrVal": ["sgd"],
              "discreteDbVal": [], "minIntVal": 0}
    found = bench.ask(description, of_plugin("mine", space=[choice]), 1)
    assert found.suggestions == [{"optimizer": "[[], [], ['sgd'], 0]"}]


@pytest.mark.integration
def test_a_process_that_a_plugin_leaves_behind_delays_no_answer(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    description = bench.write("mine", PROGRAM.format(f"""
        import os, signal
        if not os.fork():
            os.setsid()
            with open({str(tmp_path / "pid")!r}, "w") as file:
                file.write(str(os.getpid()))
            os.close(0)
            signal.pause()
        while not os.path.exists({str(tmp_path / "pid")!r}):
            pass
        return [dict(rate=0.5)]"""))
    try:
        assert bench.ask(description, of_plugin("mine"), 1).suggestions == [{"rate": 0.5}]
    finally:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


@pytest.mark.integration
def test_on_a_server_for_a_team_a_plugin_sees_neither_the_home_nor_secrets(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    isolation.needed()
    monkeypatch.setenv("DLI_PASSWORD", "secret")
    bench = Bench(tmp_path / "home", embedded=False)
    (tmp_path / "home" / "backend.db").write_text("rows", encoding="utf-8")
    description = bench.write("mine", PROGRAM.format(
        f"import os; return [{{'optimizer': repr((os.path.exists({str(tmp_path / 'home' / 'backend.db')!r}), "
        "os.environ.get('DLI_PASSWORD'), os.getppid() < 3, os.access('/usr', os.W_OK)))}]"))
    assert bench.ask(description, of_plugin("mine"), 1).suggestions == [{"optimizer": "(False, None, True, False)"}]


@pytest.mark.integration
@pytest.mark.parametrize("said", [
    b"5", b"[]", b"{}", b'{"problem": 3}', b'{"suggestions": 7, "state": ""}', b'{"suggestions": [7], "state": ""}',
    b'{"suggestions": [], "state": 7}', b'{"suggestions": [], "state": "x"}', b"[" * 100_000,
    b'{"suggestions": [{"optimizer": "a\\u0000b"}], "state": ""}',
    b'{"suggestions": [{"optimizer": "\\ud800"}], "state": ""}',
    b'{"suggestions": [{"optimizer": "' + b"x" * 30_000 + b'"}], "state": ""}',
    b'{"suggestions": [{"layers": [[]]}], "state": ""}', b'{"problem": "\\u001b]52;c;eA==\\u0007"}',
])
def test_an_answer_that_a_plugin_forges_ends_its_search_with_a_sentence(tmp_path: Path, said: bytes) -> None:
    """A plugin can write to the output that its host uses."""
    bench = Bench(tmp_path)
    (tmp_path / "said").write_bytes(said)
    description = bench.write("mine", PROGRAM.format(f"""
        import os
        said = open({str(tmp_path / "said")!r}, "rb").read()
        for number in range(3, 20):
            try:
                left = said
                while left:
                    left = left[os.write(number, left):]
            except OSError:
                pass
        os._exit(0)"""))
    with pytest.raises(SuggesterFailed) as failed:
        bench.ask(description, of_plugin("mine"), 1)
    assert str(failed.value).isprintable()


@pytest.mark.integration
def test_nothing_of_the_files_of_a_plugin_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    bench = Bench(tmp_path)
    description = bench.write("mine", PROGRAM.format("""
        import os
        os.chdir(os.environ["TMPDIR"])
        for _ in range(1200):  # more than the recursion limit, and a path longer than the system permits
            os.mkdir("xxxx")
            os.chdir("xxxx")
        os.chmod(".", 0)
        return [dict(rate=0.5)]"""))
    assert bench.ask(description, of_plugin("mine"), 1).suggestions == [{"rate": 0.5}]
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.integration
@pytest.mark.skipif(sys.platform != "linux", reason="of Linux")
def test_a_plugin_gives_way_to_the_server(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    description = bench.write("mine", PROGRAM.format(
        "import os; return [{'optimizer': repr((os.nice(0), int(open('/proc/self/oom_score_adj').read())))}]"))
    [found] = bench.ask(description, of_plugin("mine"), 1).suggestions
    assert found == {"optimizer": repr((os.nice(0) + 5, 500))}


@pytest.fixture
def imitation(tmp_path: Path) -> Path:
    """A delegated control group, as the files of the system show it."""
    folder = tmp_path / "delegated"
    folder.mkdir()
    (folder / "cgroup.controllers").write_text("cpu memory pids\n", encoding="utf-8")
    return folder


@pytest.mark.integration
def test_a_plugin_gets_the_limits_of_a_job(tmp_path: Path, imitation: Path) -> None:
    bench = Bench(tmp_path / "home", job_processes=77, plugin_memory=2**32)
    bench.ask(bench.install("drawn"), of_plugin("drawn"), 1, group=imitation)
    [group] = imitation.glob("job-plugin-*")
    assert (group / "pids.max").read_text() == "77" and (group / "task0" / "cgroup.procs").read_text() == "0"
    assert 2**32 < int((group / "task0" / "memory.max").read_text()) < 2**33


@pytest.mark.integration
@pytest.mark.parametrize(("kills", "error"), [(1, SuggesterFailed), (0, SuggesterLost)])
def test_a_plugin_that_the_system_kills_in_a_full_group_is_not_asked_again(
    tmp_path: Path, imitation: Path, kills: int, error: type[Exception]
) -> None:
    bench = Bench(tmp_path / "home")
    description = bench.write("mine", PROGRAM.format(f"""
        import glob, os
        [task] = glob.glob({str(imitation / "job-plugin-*" / "task0")!r})
        with open(os.path.join(task, "memory.events"), "w") as file:
            file.write("oom 1\\noom_kill {kills}\\n")
        os.kill(os.getpid(), 9)"""))
    with pytest.raises(error):
        bench.ask(description, of_plugin("mine"), 1, group=imitation)


@pytest.mark.integration
def test_a_plugin_runs_without_a_usable_group(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "home")
    bench.ask(bench.install("drawn"), of_plugin("drawn"), 1, group=tmp_path / "missing")
    assert "no control group" in bench.log.read_text(encoding="utf-8")


@pytest.mark.integration
@pytest.mark.parametrize("embedded", [True, False], ids=["plain", "sandbox"])
def test_all_processes_of_a_plugin_are_in_its_group_and_end_with_it(tmp_path: Path, embedded: bool) -> None:
    if not embedded:
        isolation.needed()
    bench = Bench(tmp_path / "home", embedded=embedded)
    description = bench.write("mine", PROGRAM.format("""
        import os, signal
        ours, theirs = os.pipe()
        if not os.fork():
            os.setsid()
            with open("/proc/self/cgroup") as file:
                os.write(theirs, file.read().encode())
            for number in range(64):
                try:
                    os.close(number)
                except OSError:
                    pass
            signal.pause()
        os.close(theirs)
        return [{'optimizer': os.read(ours, 10_000).decode()}]"""))
    with isolation.control_group() as group:
        [found] = bench.ask(description, of_plugin("mine"), 1, group=group).suggestions
        assert "/job-plugin-" in str(found["optimizer"]) and not list(group.glob("job-*"))


def test_an_environment_that_any_user_could_replace_is_not_shown_to_a_plugin(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "home", embedded=False)
    description = bench.install("drawn")
    for name, folder, mark in (("open", tmp_path / "open", "pyvenv.cfg"), ("plain", tmp_path / "plain", ""),
                               ("inside", tmp_path / "home" / "users" / "eve", "pyvenv.cfg")):
        (folder / "bin").mkdir(parents=True)
        (folder / "bin" / "python").symlink_to(sys.executable)
        if mark:
            (folder / mark).touch()
        if name == "open":
            folder.chmod(0o777)
        with pytest.raises(SuggesterFailed, match="not shown"):
            bench.ask(description | {"condaEnv": str(folder)}, of_plugin("drawn"), 1)
        with pytest.raises(Invalid) as refused:
            plugin_process.environment_of(bench.settings, description | {"condaEnv": str(folder)})
        assert refused.value.code == "search.plugin"


@pytest.mark.parametrize("path", ["/a\0b", "\ud800"])
def test_a_path_that_no_system_has_is_refused(tmp_path: Path, path: str) -> None:
    assert code_of(Bench(tmp_path), name="a", path=path) == "search.plugin"
    assert code_of(Bench(tmp_path), name="a", condaEnv="x", condaHome=path) == "search.plugin"
    assert code_of(Bench(tmp_path), name="a", condaEnv="~no-such-account/x") == "search.plugin"
