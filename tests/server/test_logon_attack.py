"""Many guesses of passwords at once, against a real server, and the logons of honest users.

The server computes cheaper hashes than usual. They still take longer than the rest of a call, so guesses queue up.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner
from support import PATIENCE

from dlicmd.contract import wire
from local_backend.commands.users import user

ATTACKERS, HONEST = 70, [f"user{number}" for number in range(8)]
SECRET = "a long pass:word"
EVIL, HOME = "127.0.0.2", "127.0.0.3"
SERVE = """
from argon2 import PasswordHasher
from local_backend import cli, password_hash

password_hash._HASHER = PasswordHasher(time_cost=1, memory_cost=8192, parallelism=1)
cli.main()
"""


class Team:
    """A server with users, as a process."""

    def __init__(self, home: Path) -> None:
        self.home = home
        environment = {name: value for name, value in os.environ.items() if not name.startswith("DLI")}
        self._environment = environment | {"DLICMD_HOME": str(home), "DLI_USER_PASSWORD": SECRET,
                                           "DLI_NURSERY_IDLE": "0"}
        with pytest.MonkeyPatch.context() as patched:
            for name, value in (("DLICMD_HOME", str(home)), ("DLI_USER_PASSWORD", SECRET)):
                patched.setenv(name, value)
            for name in HONEST:
                assert CliRunner().invoke(user, ["add", name]).exit_code == 0
        self._process = subprocess.Popen([sys.executable, "-c", SERVE, "serve", "--host", "127.0.0.1"],
                                         env=self._environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert self._process.stdout is not None and b"serving" in self._process.stdout.readline()
        self.port = int(json.loads((home / "backend.json").read_text())["url"].rpartition(":")[2])

    def logon(self, name: str, password: str, source: str) -> int:
        """Try to log on from an address; return the status."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, PATIENCE, source_address=(source, 0))
        try:
            pair = base64.b64encode(f"{name}:{password}".encode()).decode()
            connection.request("GET", wire.LOGON, headers={"Authorization": f"Basic {pair}"})
            return connection.getresponse().status
        finally:
            connection.close()

    def close(self) -> None:
        """End the server, which writes its logs."""
        self._process.terminate()
        self._process.wait(PATIENCE)


@pytest.fixture
def team(tmp_path: Path) -> Iterator[Team]:
    running = Team(tmp_path / "home")
    yield running
    running.close()


@pytest.mark.integration
@pytest.mark.parametrize("aim", ["names of its own", "the honest accounts"])
def test_honest_logons_get_through_an_attack(team: Team, aim: str) -> None:
    """Attackers share one address. Honest users log on for the first time from another address; from the address of the
    attackers, too, unless these have used up the tries of exactly this account there."""
    enough, attacked = threading.Event(), threading.Barrier(ATTACKERS + 1)
    answers: Counter[int] = Counter()

    def attack(number: int) -> None:
        for count in range(10_000):
            name = HONEST[number % 8] if aim == "the honest accounts" else f"root{number}.{count}"
            answers[team.logon(name, f"guess {number} {count}", EVIL)] += 1
            if count == 0:
                attacked.wait(PATIENCE)
            if enough.is_set():
                return

    with ThreadPoolExecutor(ATTACKERS + 8) as pool:
        attackers = [pool.submit(attack, number) for number in range(ATTACKERS)]
        try:
            attacked.wait(PATIENCE)
            addresses = [HOME] if aim == "the honest accounts" else [EVIL, HOME]
            for address in addresses:
                assert list(pool.map(lambda name, a=address: team.logon(name, SECRET, a), HONEST)) == [200] * 8, address
        finally:
            enough.set()
        for attacker in attackers:
            attacker.result()
    assert set(answers) <= {401, 429} and sum(answers.values()) >= ATTACKERS
    team.close()
    lines = [json.loads(line) for line in (team.home / "audit.log").read_text().splitlines()]
    logons = [line["user"] for line in lines if line["action"] == "auth.logon" and line["outcome"] == "done"]
    assert sorted(logons) == sorted(HONEST * len(addresses))
    counted = [json.loads(line) for line in (team.home / "refused-logons.log").read_text().splitlines()]
    assert sum(line["count"] for line in counted) == sum(answers.values())
