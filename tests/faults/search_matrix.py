"""Searches on one server whose processes are killed at random, and which are stopped and restarted meanwhile.

Server, nursery, runners, drivers, workers, suggesters and plugin hosts are killed. Each search must end with the
experiments, parameters, order, states and values of an undisturbed one.
"""

from __future__ import annotations

import io
import json
import re
import sqlite3
import statistics
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import psutil
from kill_matrix import EmbeddedServer, Matrix
from support import PATIENCE, eventually

from dlicmd.contract.states import FINISHED, KILLED
from dlicmd.sdk.errors import ServerError
from dlicmd.sdk.transport import FilePart, Multipart

#: Workers of an experiment, its samples, and those of a step.
WORKERS, SAMPLES, BATCH = 3, 48, 4
STEPS = SAMPLES // BATCH
#: What is killed or done, and how often in relation to the others.
ROLES = {"worker": 26, "driver": 14, "runner": 14, "server": 14, "nursery": 5, "suggester": 8, "plugin host": 8,
         "stop": 5, "force": 3, "away": 3}
#: Roles without a killed process.
_CALLS = frozenset({"stop", "force", "away"})
#: Seconds after which a search that does not go on is a fault.
LOST = 900.0

#: Trains slowly with the parameters of an experiment, and writes a line for each committed step.
TRAIN = f"SAMPLES, BATCH, WORKERS = {SAMPLES}, {BATCH}, {WORKERS}\n" + """
import json, os, time
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset, default_collate
from callbacks import LoggerCallback
from fabric_model import FabricModel

params = json.load(open("config.json"))
result = os.environ["RESULT_DIR"]

class Noisy(Dataset):
    def __init__(self, size):
        g = torch.Generator().manual_seed(size)
        self.x, self.y = torch.randn(size, 8, generator=g), torch.arange(size) % 4
    def __len__(self):
        return len(self.x)
    def __getitem__(self, i):
        return self.x[i] + 0.1 * torch.randn(8), self.y[i]

def collate(samples):
    time.sleep(0.02)
    return default_collate(samples)

class Logger(LoggerCallback):
    def log_train_metrics(self, metrics, iteration, epoch, workers):
        with open(os.path.join(result, "rows"), "a") as file:
            print(json.dumps([iteration, epoch, metrics]), file=file)

torch.manual_seed(int(os.environ["SUBID"]))
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=params["rate"], momentum=params["momentum"])
fabric = FabricModel(model, lambda: (Noisy(SAMPLES), Noisy(12)), F.cross_entropy, optimizer, driver_logger=Logger(),
                     fn_batch_collate=collate)
fabric.train(int(params["epochs"]), BATCH, WORKERS, validation_freq=1)
"""

#: Draws from a generator of its own, which is its state; slow, so that it can be killed. It uses the best result. After
#: it has suggested too few experiments, it would begin again.
PLUGIN = """
import random, time
from plugins.core.base_plugin_opt import BasePluginOptimizer

class PluginOptimizer(BasePluginOptimizer):
    def __init__(self, name, hyper_parameters, **kwargs):
        super().__init__(name, hyper_parameters, **kwargs)
        self.chance, self.best, self.left = random.Random(7), None, int(kwargs["count"])
        self.epochs = next(one["discreteIntVal"][0] for one in hyper_parameters if one["name"] == "epochs")

    def search(self, number_samples, last_exp_results=None):
        time.sleep(0.7)
        for one in last_exp_results or ():
            if self.best is None or one["metricVal"] < self.best["metricVal"]:
                self.best = dict(one)
        center = 0.1 if self.best is None else self.best["hyperParams"]["rate"]
        count = min(number_samples, self.left)
        self.left = self.left - count or 5
        return [{"rate": center * self.chance.uniform(0.5, 1.5), "momentum": self.chance.random() * 0.9,
                 "epochs": self.epochs} for _ in range(count)]

    def get_state(self):
        return self.chance.getstate(), self.best, self.left

    def set_state(self, state):
        self.chance.setstate(state[0])
        self.best, self.left = state[1], state[2]
"""


@dataclass(frozen=True)
class Kind:
    """A search: its algorithm and what belongs to it."""

    algorithm: str
    count: int
    params: Mapping[str, str]
    parallel: int = 3
    epochs: int = 3
    resume: bool = False

    def body(self, name: str) -> Multipart:
        """Return the submission of a search of this kind."""
        space: list[dict[str, Any]] = [
            {"name": "rate", "type": "Range", "dataType": "DOUBLE", "minDbVal": 0.001, "maxDbVal": 0.3, "log": True},
            {"name": "momentum", "type": "Range", "dataType": "DOUBLE", "minDbVal": 0, "maxDbVal": 0.9}]
        if not self.resume:
            space.append({"name": "epochs", "type": "Discrete", "dataType": "INT", "discreteIntVal": [self.epochs]})
        asked = {
            "hpoName": name,
            "modelSpec": {"args": f"--exec-start edtPyTorch --numWorker {WORKERS} --model-main train.py "
                                  "--msd-attr snapshot_seconds=1 --msd-attr hang_seconds=60"},
            "algoDef": {
                "algorithm": self.algorithm, "maxJobNum": self.count, "maxParalleJobNum": self.parallel,
                "objectiveMetric": "loss", "objective": "minimize", "resume": self.resume,
                "algoParams": [{"name": key, "value": value} for key, value in self.params.items()]},
            "hyperParams": space,
        }
        content = TRAIN.encode()
        return Multipart([FilePart("file", "train.py", io.BytesIO(content), len(content))],
                         [("data", json.dumps(asked))], None)


def hyperband(count: int, most: int, eta: int) -> Kind:
    """Return a search whose experiments rest at rungs."""
    params = {"RandomSeed": "5", "ResourceName": "epochs", "ResourceValue": str(most), "eta": str(eta)}
    return Kind("Hyperband", count, params, resume=True)


def asha(count: int, most: int, eta: int) -> Kind:
    """Return a search without batches, whose experiments rest at rungs."""
    return replace(hyperband(count, most, eta), algorithm="ASHA")


class Row(NamedTuple):
    """An experiment as all runs must have it."""

    id: int
    parameters: str
    state: str
    metric: float
    resource: int | None
    bracket: int
    rung: int
    rungs: str | None
    #: None with rungs: a restart trains stopped experiments again, and the algorithm then learns their results again.
    told: int | None
    shown: str


def check_equal(some: Mapping[tuple[str, int], float], others: Mapping[tuple[str, int], float]) -> None:
    """Check that experiments with the same parameters have the same values at the same rungs. All have the first."""
    assert {key for key in some if key[1] == 0} == {key for key in others if key[1] == 0}
    both = some.keys() & others.keys()
    assert {key: some[key] for key in both} == {key: others[key] for key in both}


class SearchMatrix(Matrix):
    """Runs searches, kills processes, and compares what becomes of them."""

    def __init__(self, server: EmbeddedServer, slots: int, kinds: Mapping[str, Kind], seed: int = 1) -> None:
        super().__init__(server, "", 0, seed)
        self._slots, self._kinds = slots, kinds
        #: Name of a search → its kind; → how often it was stopped.
        self.searches: dict[str, str] = {}
        self.stops: Counter[str] = Counter()
        #: Kind → its experiments. Without batches, what is promoted depends on the times at which experiments end: of
        #: these kinds, parameters and rung → value there.
        self.tables: dict[str, list[Row]] = {}
        self.scores: dict[str, dict[tuple[str, int], float]] = {}
        #: Rests, and how often a job went on from a snapshot after its first rest.
        self.experiments = self.rested = self.returned = 0
        self._installed = False

    # --- searches

    def begin(self) -> None:
        """Start one search of each kind."""
        with self._server.client() as client:
            if not self._installed:
                folder = self._server.home.parent / "centered"
                folder.mkdir(exist_ok=True)
                (folder / "optimizer.py").write_text(PLUGIN)
                client.install_algorithm(folder)
                self._installed = True
            for kind, found in self._kinds.items():
                name = f"{kind}-{len(self.searches)}"
                client.start_search(found.body(name))
                self.searches[name] = kind

    def states(self) -> dict[str, str]:
        """Return name → state of all searches."""
        return dict(self._select("SELECT name, state FROM searches"))

    def _live(self) -> list[str]:
        return [name for name, state in self.states().items() if state in ("SUBMITTED", "RUNNING")]

    def is_over(self) -> bool:
        """Return whether all searches are over."""
        self.observe()
        return not self._live()

    def _select(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self._server.home / "backend.db", timeout=60)) as connection:
            return connection.execute(query, values).fetchall()

    def _look(self) -> None:
        """Learn which execs there are."""
        self._jobs = dict.fromkeys((row[0] for row in self._select("SELECT id FROM execs")), 0)

    def _settled(self, job: str) -> bool:
        """Return whether an exec needs no more steps now: it has ended, or rests."""
        state, rested = self._select("SELECT state, rested FROM execs WHERE id = ?", job)[0]
        return rested is not None or state in (FINISHED, KILLED, "ERROR")

    # --- kills

    def _processes(self) -> Iterator[tuple[str, str, psutil.Process]]:
        self._look()
        yield from super()._processes()
        for process in psutil.process_iter(["cmdline", "ppid"]):
            words = process.info["cmdline"] or []
            if process.info["ppid"] == self._server.process.pid:
                if any("hypersearch.suggester" in word for word in words):
                    yield "suggester", "", process
                elif words and words[-1].endswith("plugin_host.py"):
                    yield "plugin host", "", process

    def observe(self) -> None:
        """Check that no more workers live at once than the machine has slots."""
        lives = [one for role, _, one in self._processes() if role == "worker" and one.is_running()]
        self.figures.most_workers = max(self.figures.most_workers, len(lives))
        assert len(lives) <= self._slots, f"{len(lives)} workers live on {self._slots} slots"

    def trouble(self, role: str) -> None:
        """Kill a process with this role, or do what the role says, when that is possible."""
        if role == "server":
            self._kill_server()
        elif role == "away":
            self._away()
        elif role in ("stop", "force"):
            self._stop(role == "force")
        else:
            eventually(partial(self._kill, role), f"a {role} can be killed", LOST)

    @property
    def deaths(self) -> int:
        """The number of killed processes."""
        return sum(count for role, count in self.figures.kills.items() if role not in _CALLS)

    def any_trouble(self) -> None:
        """Do something of any role."""
        self.trouble(self._chance.choices([*ROLES], [*ROLES.values()])[0])

    def _kill(self, role: str) -> bool:
        self.note_recoveries()
        if not self._live():
            self.begin()
        return self._kill_any(role)

    def _kill_any(self, role: str) -> bool:
        victims = [(job, process) for found, job, process in self._processes()
                   if found == role and (not job or self._may_die(role, job))]
        if not victims:
            return False
        job, process = self._chance.choice(victims)
        before = self._steps(job) if job else 0
        done = self._done()
        try:
            process.kill()
        except psutil.NoSuchProcess:
            return False
        self.figures.kills[role] += 1
        if job:
            self._lines[job] = before
        goes_on = partial(self._goes_on, job, before) if job else partial(self._gets_on, done)
        self._open.append((role, time.monotonic(), goes_on))
        return True

    def _goes_on(self, job: str, before: int) -> bool:
        return self._steps(job) > before or self._settled(job)

    def _done(self) -> int:
        """Return a number that grows with each experiment that starts or ends, and each search."""
        query = "SELECT (SELECT COUNT(*) FROM experiments WHERE exec_id IS NOT NULL) + COUNT(told) FROM experiments"
        return int(self._select(query)[0][0])

    def _gets_on(self, before: int) -> bool:
        return self._done() != before or not self._live()

    def _away(self) -> None:
        """End the server in order, and start another one."""
        code, out, err = self._server.command("stop")
        assert code == 0, (out, err)
        self._server.process.wait(PATIENCE)
        threading.Event().wait(self._chance.random())
        self._server.start()
        self.figures.kills["away"] += 1

    def _stop(self, force: bool) -> None:
        """Stop a search and restart it, at once or after a while."""
        live = self._live()
        if not live:
            return
        name = self._chance.choice(live)
        with self._server.client() as client:
            with suppress(ServerError):  # it is over meanwhile
                client.stop_search(name, force)
            eventually(lambda: name not in self._live(), f"{name} ends", LOST)
            if self.states()[name] != "STOPPED":
                return
            threading.Event().wait(self._chance.random() if self._chance.random() < 0.5 else 0)
            client.restart_search(name)
        self.stops[name] += 1
        self.figures.kills["force" if force else "stop"] += 1

    # --- the end

    def lines(self) -> list[str]:
        """Return what was done, as lines of a table and sentences."""
        figures = self.figures
        found = [f"{role}: {figures.kills[role]}" + (
            f", median {statistics.median(seconds):.1f} s, most {max(seconds):.1f} s" if seconds else "")
            for role in ROLES for seconds in [figures.seconds[role]] if figures.kills[role]]
        return [*found, f"{len(self.searches)} searches, {self.experiments} experiments, {figures.jobs} execs in "
                f"{figures.attempts} attempts, {self.rested} rests, {self.returned} returns from a snapshot; at most "
                f"{figures.most_workers} workers"]

    def table(self, name: str) -> list[Row]:
        """Return the experiments of a search, as all runs must have them."""
        with self._server.client() as client:
            shown = {one["id"]: json.dumps([one["hyperParams"], one["state"], one["metricVal"], one.get("rung")])
                     for one in client.search(name)["experiments"]}
        query = ("SELECT e.id, parameters, e.state, metric, resource, bracket, rung, rungs, told FROM experiments e "
                 "JOIN searches s ON s.number = e.search WHERE s.name = ? ORDER BY e.id")
        resume = self._kinds[self.searches[name]].resume
        return [Row(*found, None if resume else told, shown[found[0]]) for *found, told in self._select(query, name)]

    def finish(self) -> None:
        """Wait until all searches are over. Check their execs, steps, slots and processes."""
        eventually(self.is_over, "all searches are over", 1800)
        assert set(self.states().values()) == {FINISHED}, self._select("SELECT name, state, message FROM searches")
        eventually(lambda: not self._select(
            "SELECT id FROM execs WHERE state NOT IN ('FINISHED', 'KILLED', 'ERROR')"), "all execs have ended")
        self.note_recoveries()
        for name, kind in self.searches.items():
            table = self.table(name)
            if self._kinds[kind].algorithm == "ASHA":
                self._check_scores(kind, table)
            else:
                assert self.tables.setdefault(kind, table) == table, name
            self._check_execs(name, self._kinds[kind])
        self.figures.jobs = len(self._jobs)
        eventually(lambda: not self._left(), "no process is left")
        self._check_holdings()

    def _check_scores(self, kind: str, table: list[Row]) -> None:
        """Check that no experiment is forgotten, and that equal experiments have equal values at each rung."""
        assert [(row.id, row.state) for row in table] == [(one, FINISHED) for one in range(self._kinds[kind].count)]
        scores = {(row.parameters, rung): value for row in table
                  for rung, value in enumerate([*json.loads(row.rungs or "[]"), row.metric])}
        known = self.scores.setdefault(kind, scores)
        check_equal(known, scores)
        known.update(scores)

    def _check_execs(self, name: str, kind: Kind) -> None:
        """Check that each experiment has run once, except those that a stop has killed, and has trained no step that
        was not asked for."""
        number, = self._select("SELECT number FROM searches WHERE name = ?", name)[0]
        rows = self._select("SELECT id, exec_id, resource FROM experiments WHERE search = ?", number)
        owned = {exec_id: resource for _, exec_id, resource in rows}
        self.experiments += len(rows)
        assert len(owned) == len(rows), f"{name}: an exec runs two experiments"
        marks = {one["id"]: one for one in self._execs(name)}
        assert marks.keys() >= owned.keys()
        runs = Counter(int(one["experiment"]) for one in marks.values())
        assert runs.keys() == {one[0] for one in rows}, f"{name}: an experiment was forgotten"
        assert max(runs.values()) <= 1 + self.stops[name], f"{name}: an experiment ran twice"
        for job, one in marks.items():
            if job not in owned:
                assert one["state"] == KILLED, f"{name}: {job} is an exec too many: {one}"
                continue
            resource = owned[job]
            steps = re.findall(r"\[(\d+), ", self._result(job, "rows"))
            assert len(set(steps)) == (resource if kind.resume else kind.epochs) * STEPS, (name, job, steps)
            self._check_rests(job)

    def _check_rests(self, job: str) -> None:
        """Check that a job has trained no step before a rest again after it."""
        log = (self._server.home / "jobs" / job / "launcher.log").read_text()
        rested = 0
        for rest, snapshot, beginning in re.findall(
                r"step (\d+): rests after|from the snapshot of step (\d+)|(training restarts from the beginning)", log):
            if rest:
                rested = int(rest)
                self.rested += 1
            elif rested:
                self.returned += bool(snapshot)
                wasted = rested if beginning else max(0, rested - int(snapshot))
                assert not wasted, f"{job} trained {wasted} steps again that it had trained before its rest"

    def _execs(self, name: str) -> list[dict[str, Any]]:
        with self._server.client() as client:
            return [dict(one) for one in client.execs(f"search={name}")]

    def _left(self) -> list[str]:
        return [one for one in super()._left() if not one.startswith("suggester")]
