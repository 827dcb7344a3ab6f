"""Programs that use the Python client with the local backend, as a user writes them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from user import DEADLINE, User

pytestmark = pytest.mark.integration


def printed(user: User, folder: Path, script: str) -> Any:
    """Run a script in a folder and return the JSON value in the last line of its output."""
    (folder / "script.py").write_text(script)
    done = subprocess.run([sys.executable, "script.py"], cwd=folder, env=user.environment, capture_output=True,
                          text=True, timeout=DEADLINE, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


FUNCTIONS = """
import json, os, sys, time
from functools import partial
import dlicmd, numpy, near

class Model:
    def __init__(self, size): self.weights = numpy.ones(size)

def train(size, rate=1.0):
    print("training", size)
    model = Model(size)
    model.weights *= near.scaled(rate)
    return model

def fail(): raise LookupError("no data")

def meet(mine, other):
    # Ends only if both jobs run at the same time.
    open(mine, "w").close()
    while not os.path.exists(other): time.sleep(0.05)
    return mine

def rank(): return os.environ["RANK"], os.environ["WORLD_SIZE"]

def sleep(): time.sleep(600)

found = {}
with dlicmd.Client() as client:
    job = client.submit(train, 1_000_000, rate=2.0)
    model = job.result()
    found["large"] = [type(model) is Model, float(model.weights.sum()), job.logs().strip(), job.state, job.name]

    failed = client.submit(fail)
    try:
        failed.result()
    except LookupError as problem:
        found["failed"] = [str(problem), failed.state, "in fail" in str(problem.__cause__)]
    try:
        failed.check()
    except dlicmd.JobFailed as problem:
        found["check"] = [problem.state, problem.lines[-1]]

    here = os.getcwd()
    one, two = (client.run(partial(meet, f"{here}/{a}", f"{here}/{b}")) for a, b in (("a", "b"), ("b", "a")))
    found["both"] = [os.path.basename(job.result()) for job in (one, two)]

    found["ddp"] = client.run(rank, kind="ddp", workers=2).result()

    long = client.submit(sleep)
    try:
        long.wait(timeout=0.5)
    except dlicmd.WaitTimeout:
        found["timeout"] = True
    long.stop().wait()
    try:
        long.result()
    except dlicmd.JobFailed as problem:
        found["stopped"] = problem.state
    long.delete()
    found["again"] = client.job(job.id).result().weights.shape[0]
    found["last"] = client.job("last").id == client.jobs(limit=1)[0].id
    found["killed"] = [one.id for one in client.jobs(state="KILLED")]
print(json.dumps(found))
"""


def test_functions_run_as_jobs(user: User) -> None:
    folder = user.model("functions", near="def scaled(x): return 3 * x\n")
    assert printed(user, folder, FUNCTIONS) == {
        "large": [True, 6_000_000.0, "training 1000000", "FINISHED", "train"], "failed": ["no data", "ERROR", True],
        "check": ["ERROR", "LookupError: no data"], "both": ["a", "b"], "ddp": ["0", "2"], "timeout": True,
        "stopped": "KILLED", "again": 1_000_000, "last": True, "killed": [],
    }


PROGRAM = """
import json
from pathlib import Path
import dlicmd

with dlicmd.Client() as client:
    job = client.run("model", ["--size", 3], name="trial", env={"WORD": "hello"})
    lines = list(job.logs(follow=True))
    files = [file.path for file in job.check().result_files()]
    stored = job.fetch("out/numbers.txt", to="fetched")
    print(json.dumps([job.name, lines, files, stored.as_posix(), stored.read_text(), job.exec.framework]))
"""
TRAIN = """
import os, sys
os.mkdir("out")
open("out/numbers.txt", "w").write(sys.argv[2])
print(os.environ["WORD"])
"""


def test_a_program_runs_as_a_job(user: User) -> None:
    user.model("desk/model", train=TRAIN)
    assert printed(user, user.folder / "desk", PROGRAM) == [
        "trial", ["hello"], ["out/numbers.txt"], "fetched/numbers.txt", "3", "PyTorch"]


ASYNC = """
import asyncio, json
import dlicmd

def square(x): return x * x

async def main():
    async with dlicmd.AsyncClient() as client:
        jobs = [await client.submit(square, number) for number in range(3)]
        squares = await asyncio.gather(*(job.result() for job in jobs))
        lines = [line async for line in (await client.submit(print, "one")).logs(follow=True)]
        long = await client.submit(__import__("time").sleep, 600)
        try:
            await asyncio.wait_for(long.wait(), 0.5)
        except asyncio.TimeoutError:
            state = (await (await long.stop()).wait()).state
    return [squares, lines, state]

print(json.dumps(asyncio.run(main())))
"""


def test_jobs_with_asyncio(user: User) -> None:
    assert printed(user, user.model("async"), ASYNC) == [[0, 1, 4], ["one"], "KILLED"]
