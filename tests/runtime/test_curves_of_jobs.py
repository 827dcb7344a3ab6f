"""Curves of whole jobs: what programs log and print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from runtime_support import Bench
from support import eventually

from dlicmd.contract import wire
from dlicmd.contract.states import FINISHED
from local_backend.curves.file import read

#: Files that loggers have written.
FILES = Path(__file__).parent.parent / "data" / "curves"
Curves = dict[str, tuple[str, list[tuple[float, float]]]]


def curves(bench: Bench, exec_id: str) -> Curves:
    """Return the curves of an exec: name → source, and step and value of each point."""
    path = bench.paths(exec_id).curves
    if not path.exists():
        return {}
    with path.open("rb") as file:
        found = read(file, "", ())
    return {one["name"]: (one["source"], [(step, value) for step, value, _ in one["points"]]) for one in found.curves}


def last(bench: Bench, exec_id: str) -> dict[str, Any]:
    progress = json.loads(bench.row(exec_id).progress or "{}")
    return {name: (one["value"], one["step"]) for name, one in progress[wire.LAST_METRICS].items()}


def test_a_short_program_has_its_curves_at_its_end(cold: Bench) -> None:
    one = cold.submit("import dlicmd\ndlicmd.log(loss=0.5, step=1)\ndlicmd.log(loss=0.25, step=2)\n"
                      "print('Epoch 1 acc=0.9')\nprint('test accuracy: 0.8', end='')")
    assert cold.wait(one).state == FINISHED
    assert curves(cold, one) == {
        "loss": ("dlicmd.log", [(1, 0.5), (2, 0.25)]), "acc": ("printed", [(1, 0.9)]),
        "test accuracy": ("printed", [(1, 0.8)])}
    assert last(cold, one) == {"loss": (0.25, 2), "acc": (0.9, 1), "test accuracy": (0.8, 1)}


def test_curves_grow_while_a_program_runs(cold: Bench) -> None:
    one = cold.submit("import time\nprint('loss: 0.5', flush=True)\ntime.sleep(600)")
    eventually(lambda: (cold.told(one, wire.LAST_METRICS) or {}).get("loss") == {
        "value": 0.5, "step": 1, "stepUnit": "line"}, "a value")
    assert curves(cold, one) == {"loss": ("printed", [(1, 0.5)])}
    cold.stop(one)
    cold.wait(one)


def test_submitted_files_are_left_out_unless_they_change(cold: Bench) -> None:
    state = json.dumps({"log_history": [{"step": 1, "loss": 0.5}]})
    one = cold.submit({"main.py": "text = open('old/trainer_state.json').read()\n"
                                  "open('new/trainer_state.json', 'w').write(text.replace('1', '2'))",
                       "old/trainer_state.json": state, "new/readme": ""})
    cold.wait(one)
    assert curves(cold, one) == {"loss": ("huggingface", [(2, 0.5)])}


def test_copies_that_keep_an_old_time_are_read(cold: Bench) -> None:
    one = cold.submit(f"import os, shutil\nshutil.copyfile({str(FILES / 'simple.tfevents')!r}, 'a.tfevents.1')\n"
                      "os.utime('a.tfevents.1', (1e9, 1e9))")
    cold.wait(one)
    assert curves(cold, one)["train/loss"][0] == "tensorboard"


def test_only_rank_0_of_a_distributed_job_counts(cold: Bench) -> None:
    one = cold.submit("import os, dlicmd\nrank = int(os.environ['RANK'])\ndlicmd.log(loss=rank, step=1)\n"
                      "print('acc:', rank)", framework="distPyTorch", num_worker=2)
    cold.wait(one)
    assert curves(cold, one) == {"loss": ("dlicmd.log", [(1, 0)]), "acc": ("printed", [(1, 0)])}


def test_an_unreadable_file_of_curves_harms_no_job(cold: Bench) -> None:
    one = cold.submit("import os, dlicmd\nos.makedirs(os.environ['STATE'] + '/curves.jsonl')\ndlicmd.log(loss=1)",
                      variables={"STATE": str(cold.settings.paths.jobs / "local-999")})
    assert cold.wait(one).state == FINISHED
    two = cold.submit("import pathlib, os\nhome = pathlib.Path(os.environ['FABRIC_HOME']).parent\n"
                      "(home / 'jobs' / os.environ['DLI_EXECID'] / 'curves.jsonl').mkdir()\nprint('loss: 1')")
    assert cold.wait(two).state == FINISHED
    assert "cannot keep the curves" in cold.launcher_log(two)


def test_hostile_files_harm_no_job(cold: Bench) -> None:
    program = """
import os, pathlib
log = pathlib.Path(os.environ["LOG_DIR"])
for number in range(50):
    (log / f"events.out.tfevents.{number}").write_bytes(os.urandom(5000))
    (log / f"run-{number}.wandb").write_bytes(b":W&B" + os.urandom(5000))
lines = [b"[" * 100_000, b'{"s": 1e999, "v": {"a": 1}}', b'{"s": 1, "v": {"b": 1}}', b""]
(log / "dlicmd-log.jsonl").write_bytes(b"\\n".join(lines))
(log / "trainer_state.json").write_text('{"log_history": {"step": 1}}')
(log / "metrics.csv").write_bytes(b"step,loss\\n1,\\0\\n2,0.5\\n")
os.symlink("/etc/passwd", log / "evaluation-metrics.txt")
os.mkfifo(log / "other.wandb")
print("loss: 0.5")
"""
    one = cold.submit(program)
    assert cold.wait(one).state == FINISHED
    found = curves(cold, one)
    assert found["b"] == ("dlicmd.log", [(1, 1)]) and "loss" in found
    assert "no further curves" not in cold.launcher_log(one)


def test_much_output_is_read_to_its_end(cold: Bench) -> None:
    one = cold.submit("for step in range(60_000): print(f'step {step} loss {step}')")
    assert cold.wait(one).state == FINISHED
    assert last(cold, one) == {"loss": (59_999, 59_999)}


def test_the_files_of_loggers_are_found(cold: Bench) -> None:
    """Files of the real libraries, in the folders where these write them."""
    files = {
        "runs/a/events.out.tfevents.1.host.1": "simple.tfevents",
        "runs/b/events.out.tfevents.2.host.1": "tensors.tfevents",
        "wandb/offline-run-1-x/run-x.wandb": "run.wandb", "mlruns/0/abc/metrics/mlflow/loss": "mlflow_loss",
        "out/checkpoint-20/trainer_state.json": "trainer_state.json", "logs/version_0/metrics.csv": "metrics.csv",
    }
    program = f"""
import os, pathlib, shutil
for name, source in {files!r}.items():
    path = pathlib.Path(os.environ["RESULT_DIR"] if name.startswith("runs/b") else ".", name)
    path.parent.mkdir(parents=True)
    shutil.copyfile(pathlib.Path({str(FILES)!r}, source), path)
pathlib.Path("mlruns/0/abc/meta.yaml").write_text("")
pathlib.Path(os.environ["LOG_DIR"], "evaluation-metrics.txt").write_text(
    '{{"meta": {{"time": 5000}}, "grouplabel": "x", "values": {{"y": {{"type": 3, "value": "0.5"}}}}}}')
"""
    one = cold.submit(program)
    assert cold.wait(one).state == FINISHED
    found = curves(cold, one)
    assert {name: source for name, (source, _) in found.items() if source != "huggingface"} == {
        "train/loss": "tensorboard", "val/loss": "tensorboard", "b/epoch_loss": "tensorboard", "val.acc": "wandb",
        "mlflow/loss": "mlflow", "x/y": "emetrics"}
    assert found["eval_loss"] == ("huggingface", [(20, 1.25)]) and found["x/y"][1] == [(1, 0.5)]
    assert found["val.acc"][1] == [(step, step / 10) for step in range(5)]


def test_the_first_of_several_runs_keeps_its_names(cold: Bench) -> None:
    """The folder of a run of TensorBoard may contain the folders of others; ids of runs of MLflow have no order."""
    program = f"""
import json, os, pathlib, shutil, time
now = time.time()
for name in ("events.out.tfevents.1.host.1", "1700000000.5/events.out.tfevents.2.host.1"):
    path = pathlib.Path("runs/x", name)
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(pathlib.Path({str(FILES)!r}, "simple.tfevents"), path)
for order, run in enumerate(("a", "b")):
    path = pathlib.Path("mlruns/0", run, "metrics/recall")
    path.parent.mkdir(parents=True)
    path.write_text(f"5000 {{order}} 1\\n")
    pathlib.Path("mlruns/0", run, "meta.yaml").touch()
    os.utime(path, (now + 2 - order, now + 2 - order))
for step in (16, 8):
    path = pathlib.Path(f"out/checkpoint-{{step}}/trainer_state.json")
    path.parent.mkdir(parents=True)
    history = [{{"step": one, "eval_f1": one / 100}} for one in (8, 16) if one <= step]
    path.write_text(json.dumps({{"log_history": history}}))
    os.utime(path, (now + step, now + step))
"""
    one = cold.submit(program)
    assert cold.wait(one).state == FINISHED
    found = curves(cold, one)
    assert {"train/loss", "1700000000.5/train/loss"} <= set(found)
    assert found["recall"][1] == [(1, 1)] and found["a/recall"][1] == [(1, 0)]
    assert last(cold, one)["eval_f1"] == (0.16, 16)
