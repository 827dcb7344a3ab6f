"""`local-backend resize` with a real server and a real job."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from puppets import FILES, Driver, Strings, strings
from support import eventually
from user import User

pytestmark = pytest.mark.integration

SLEEP = "import time\ntime.sleep(600)\n"


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    one = User(tmp_path / "home")
    yield one
    one.backend("stop", "--jobs")
    eventually(lambda: not one.processes(), "all processes of the user have ended")


@pytest.fixture
def held() -> Iterator[Strings]:
    with strings() as found:
        yield found


def submit(user: User, held: Strings) -> tuple[str, Driver]:
    """Submit a job with at most 3 workers; return its id and its driver when the job runs on 2 slots."""
    folder = user.folder / "model"
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    words = ["edtPyTorch", "--numWorker", "3", "--model-dir", str(folder), "--model-main", "main.py", "--"]
    job = user.submit(*words, str(held.port))
    driver = held.driver()
    assert driver.hello() == ["cpu-0", "cpu-1"]
    running(user, job)
    return job, driver


def running(user: User, job: str) -> None:
    eventually(lambda: user.run("--exec-get", job).json["state"] == "RUNNING", f"{job} runs")


def test_a_job_is_resized(user: User, held: Strings) -> None:
    job, driver = submit(user, held)
    done = user.backend("resize", job, "1")
    assert (done.code, done.out, done.err) == (0, f"{job}: 2 → 1 slots\n", "")
    assert driver.allocation() == ["cpu-0"]
    done = user.backend("resize", job, "2", "--output", "json")
    assert done.code == 0 and done.json == {"id": job, "before": 1, "slots": 2}
    assert driver.allocation() == ["cpu-0", "cpu-1"]
    shown = user.run("--exec-get", job).json
    assert (shown["slots"], shown["workers"]) == (2, 0)
    driver.close()


def test_wait_returns_when_the_job_trains_on_its_slots(user: User, held: Strings) -> None:
    job, driver = submit(user, held)
    waiting = user.start("resize", job, "1", "--wait", program="local_backend.cli")
    assert driver.allocation() == ["cpu-0"]
    driver.spawn(1, "cpu-0")
    worker = held.worker()
    out, err = waiting.communicate(timeout=150)
    assert (waiting.returncode, out, err) == (0, f"{job}: 2 → 1 slots\n{job}: trains on 1 slot\n", "")
    driver.say(op="progress", workers=0, step=3)
    done = user.backend("resize", job, "1", "--wait", "--wait-timeout", "1")
    assert done.code == 7
    assert done.err == f"local-backend: timeout after 1 s: {job} is RUNNING; workers: 0, slots: 1\n"
    driver.say(op="progress", workers=1, recovering=True)
    eventually(lambda: user.run("--exec-get", job).json.get("recovering"), f"{job} recovers")
    done = user.backend("resize", job, "1", "--wait", "--wait-timeout", "1")
    assert done.code == 7, "a recovering job does not train"
    driver.say(op="progress", workers=0, recovering=False)
    worker.close()
    driver.hear()
    done = user.backend("resize", job, "0", "--wait", "--output", "json")
    assert done.json == {"id": job, "before": 1, "slots": 0, "state": "RUNNING", "workers": 0}
    waiting = user.start("resize", job, "2", "--wait", program="local_backend.cli")
    assert driver.allocation() == []
    assert driver.allocation() == ["cpu-0", "cpu-1"]
    driver.close()
    out, err = waiting.communicate(timeout=150)
    assert waiting.returncode == 1 and err == f"local-backend: {job} ended with state FINISHED\n"


def test_an_impossible_resize_prints_one_line(user: User, held: Strings) -> None:
    done = user.backend("resize", "local-1", "1")
    assert done.code == 1 and done.err.count("\n") == 1
    assert done.err.startswith("local-backend: no server is running on ")
    job, driver = submit(user, held)
    for words, code, sentence in (
        (["local-9", "1"], 6, "Exec 'local-9' is not found"),
        (["../x", "1"], 6, "Exec '../x' is not found"),
        ([job, "4"], 1, f"Exec {job} cannot have 4 slots: it was submitted for at most 3"),
        ([job, "3"], 1, f"Exec {job} cannot have 3 slots: it has 2, and 0 more CPU slots are free"),
    ):
        done = user.backend("resize", *words)
        assert (done.code, done.out, done.err) == (code, "", f"local-backend: {sentence}\n")
    for words in ([job, "-1"], [job, "many"], [job]):
        assert user.backend("resize", *words).code == 2
    assert "'many' is not a number of slots; use a whole number >= 0" in user.backend("resize", job, "many").err
    assert user.run("--exec-get", job).json["slots"] == 2
    driver.close()
    assert json.loads(user.run("--wait", job, "-o", "json").out)["state"] == "FINISHED"
