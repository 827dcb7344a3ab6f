"""The first tasks of a new user, at a terminal of 80 x 24: one command each, and its output leads to the next one.

The tests type the commands that the screen shows. They assert values and codes, and the commands that are offered.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from support import eventually
from terminal import COLUMNS, ROWS, Shown, Terminal
from user import DEADLINE, User

pytestmark = pytest.mark.integration

#: Prints a loss per epoch that ends near the first word, and writes a file.
TRAIN = """
import sys

best = float(sys.argv[1]) if len(sys.argv) > 1 else 0.25
for epoch in range(1, 5):
    print(f"epoch {epoch} loss {best + 1 / epoch**4:.4f}", flush=True)
with open("weights.bin", "wb") as file:
    file.write(b"weights")
"""
#: Prints a loss, and runs until a file with the name of the first word exists.
WAIT = """
import os, sys, time

print("epoch 1 loss 0.5000", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
"""


class Desk:
    """The desk of a new user: a folder with programs, and a terminal."""

    def __init__(self, user: User, folder: Path) -> None:
        self.user = user
        self.folder = folder
        folder.mkdir()
        (folder / "train.py").write_text(TRAIN)
        (folder / "wait.py").write_text(WAIT)
        self.terminal = Terminal(user.environment, folder)
        self._go: dict[str, Path] = {}

    def run(self, line: str, code: int = 0) -> Shown:
        """Type a line and wait for its end. Its exit code is `code`, and all rows fit the screen."""
        done = self.terminal.run(line)
        assert done.code == code, f"{line}: exit code {done.code}\n{done.text}"
        assert "Traceback" not in done.text
        return done

    def train(self, best: float, name: str = "trial") -> str:
        """Run the program until it ends, and return the id of its job."""
        done = self.run(f"dlicmd run train.py --name {name} --wait -- {best}")
        return first_id(done)

    def endless(self, name: str, *options: str) -> str:
        """Start a job that runs until the test ends, and return its id."""
        go = self.folder / f"go-{len(self._go)}"
        exec_id = first_id(self.run(f"dlicmd run wait.py --name {name} --no-follow {' '.join(options)} -- {go}"))
        self._go[exec_id] = go
        return exec_id

    def end(self, exec_id: str) -> None:
        """End a job that `endless` started."""
        self._go[exec_id].touch()

    def state(self, exec_id: str) -> str:
        return str(self.user.run("get", exec_id, "-o", "json").json["state"])

    def close(self) -> None:
        """End the jobs that `endless` started, and the terminal."""
        for exec_id in self._go:
            self.end(exec_id)
        self.terminal.close()


def first_id(shown: Shown) -> str:
    found = re.search(r"local-\d+", shown.text)
    assert found is not None, shown.text
    return found[0]


def table(shown: Shown) -> list[list[str]]:
    """Return the cells of the rows of a table, without its head. Each row is one line of the screen."""
    return [re.split(r"\s{2,}", row.strip()) for row in shown.rows if row.startswith("local-")]


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[User]:
    """A user with one local backend for all tests of this module. The commands are on PATH."""
    folder = tmp_path_factory.mktemp("new-user")
    tools = folder / "bin"
    tools.mkdir()
    for name, program in (("dlicmd", "dlicmd.cli"), ("local-backend", "local_backend.cli")):
        (tools / name).write_text(f"#!{sys.executable}\nimport sys\nfrom {program} import main\nsys.exit(main())\n")
        (tools / name).chmod(0o700)
    user = User(folder / "home").warm()
    user.environment |= {"DLI_SLOTS": "4", "PATH": f"{tools}:{os.environ['PATH']}"}
    yield user
    user.close()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def desk(user: User, tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(user, tmp_path / "project")
    try:
        yield desk
    finally:
        desk.close()


def test_no_command_leads_to_the_demo(desk: Desk) -> None:
    usage = desk.run("dlicmd", 2)
    assert len(usage.rows) < ROWS
    done = desk.run(usage.command("dlicmd demo"))
    assert "FINISHED" in done.text
    desk.run(done.command("dlicmd result"))
    assert (desk.folder / f"{first_id(done)}.zip").exists()


def test_an_own_program_runs_and_shows_what_it_printed(desk: Desk) -> None:
    done = desk.run("dlicmd run train.py")
    assert "epoch 4 loss 0.2539" in done.lines and f"{first_id(done)} FINISHED" in done.text
    drawn = desk.run(done.command("dlicmd plot"))
    assert "loss" in drawn.text and len(drawn.rows) < ROWS


def test_a_job_is_watched_and_left_and_watched_again(desk: Desk) -> None:
    go = desk.folder / "go"
    begun = desk.run(f"dlicmd run wait.py --no-follow -- {go}")
    desk.terminal.type(begun.command("dlicmd follow"))
    desk.terminal.until("epoch 1 loss 0.5000")
    desk.terminal.until("RUNNING")
    desk.terminal.press("\x03")
    left = desk.terminal.ended()
    assert left.code == 130
    desk.terminal.type(left.command("dlicmd follow"))
    desk.terminal.until("RUNNING")
    go.touch()
    assert desk.terminal.ended().code == 0
    assert desk.state(first_id(begun)) == "FINISHED"


def test_the_view_of_all_slots_ends_with_q_and_leaves_the_screen_as_it_was(desk: Desk) -> None:
    exec_id = desk.endless("shown")
    before = desk.terminal.screen
    desk.terminal.type("dlicmd top")
    desk.terminal.until(lambda: any("q quit" in row for row in desk.terminal.screen), "the keys")
    desk.terminal.until(lambda: any(row.startswith(exec_id) for row in desk.terminal.screen), "the job on the screen")
    desk.terminal.press("q")
    desk.terminal.until(lambda: desk.terminal.screen[0] == before[0], "the screen as it was")
    assert desk.terminal.ended().code == 0


def test_the_best_run_of_yesterday_is_found(desk: Desk, user: User) -> None:
    runs = {best: desk.train(best) for best in (0.5, 0.125, 0.25)}
    now = datetime.now()
    noon = now.replace(hour=12, minute=0) - timedelta(days=1)
    # A week ago was the best of all. The others ran yesterday.
    for best, started in ((0.125, noon - timedelta(days=6)), (0.25, noon), (0.5, noon)):
        backdate(user, runs[best], started.timestamp())
    found = desk.run("dlicmd ls --since yesterday --sort loss")
    rows = [cells for cells in table(found) if cells[0] in runs.values()]
    assert [cells[0] for cells in rows] == [runs[0.25], runs[0.5]]
    assert any("0.2539" in cell for cell in rows[0])
    shown = desk.run(f"dlicmd get {rows[0][0]}")
    assert "0.25" in shown.text


def backdate(user: User, exec_id: str, moment: float) -> None:
    """Move the times of an ended exec into the past: no test can wait for tomorrow."""
    with closing(sqlite3.connect(next(user.home.glob("*.db")))) as database, database:
        taken = database.execute(
            "update execs set create_time = ?, start_time = ?, end_time = ? where id = ?",
            (moment, moment + 1, moment + 2, exec_id))
        assert taken.rowcount == 1


def test_two_runs_are_drawn_together(desk: Desk) -> None:
    one, two = desk.train(0.5, "first"), desk.train(0.25, "second")
    drawn = desk.run(f"dlicmd plot {one} {two}")
    assert one in drawn.text and two in drawn.text
    assert len(drawn.rows) < ROWS and all(len(row) <= COLUMNS for row in drawn.rows)


def test_why_a_job_waits(desk: Desk) -> None:
    holders = [desk.endless(f"holder-{number}") for number in range(4)]
    waits = desk.endless("waiting")
    said = desk.run(f"dlicmd why {waits}")
    assert sum(f"{holder} holds 1 slot" in said.text for holder in holders) >= 1
    desk.terminal.type(said.command("dlicmd follow"))
    desk.terminal.until("PENDING")
    desk.end(holders[0])
    desk.terminal.until("epoch 1 loss 0.5000")
    desk.terminal.press("\x03")
    assert desk.terminal.ended().code == 130


def test_the_right_job_is_stopped(desk: Desk) -> None:
    wrong, right, other = (desk.endless(name) for name in ("wrong", "right", "other"))
    listed = desk.run("dlicmd ls --state RUNNING,PENDING")
    chosen = next(cells[0] for cells in table(listed) if cells[1] == "right")
    assert chosen == right
    desk.run(f"dlicmd stop {chosen}")
    eventually(lambda: desk.state(right) == "KILLED", "the job is stopped")
    assert {desk.state(wrong), desk.state(other)} <= {"RUNNING", "PENDING_CRD_SCHEDULER"}


def test_the_file_that_a_job_wrote_is_fetched(desk: Desk) -> None:
    done = desk.run("dlicmd run train.py")
    listed = desk.run(done.command("dlicmd result") + " --list")
    assert "weights.bin" in listed.text
    desk.run(listed.command("dlicmd result"))
    assert (desk.folder / "weights.bin").read_bytes() == b"weights"
    wrong = desk.run(f"dlicmd result {first_id(done)} weihgts.bin --to again", 1)
    desk.run(wrong.command("dlicmd result"))
    assert (desk.folder / "again" / "weights.bin").read_bytes() == b"weights"


def test_a_wrong_path_is_repaired(desk: Desk) -> None:
    done = desk.run("dlicmd run trian.py --name repaired -- 0.5", 2)
    assert "FINISHED" in desk.run(done.command("dlicmd run")).text


@pytest.mark.parametrize("typed", [
    "dlicmd rnu train.py --name typo -- 0.5",
    "dlicmd submit train.py --name typo -- 0.5",
    "dlicmd run train.py --nmae typo -- 0.5",
])
def test_a_typo_is_repaired(desk: Desk, typed: str) -> None:
    done = desk.run(typed, 2)
    assert "FINISHED" in desk.run(done.command("dlicmd run")).text


def test_a_missing_gpu_is_repaired(desk: Desk) -> None:
    done = desk.run("dlicmd run train.py --gpus 1 --follow -- 0.5", 10)
    assert "FINISHED" in desk.run(done.command("dlicmd run")).text


@pytest.mark.parametrize("typed", ["dlicmd run options.py --lr 0.5", "dlicmd run python options.py --lr 0.5"])
def test_forgotten_dashes_are_repaired(desk: Desk, typed: str) -> None:
    (desk.folder / "options.py").write_text("import sys\n\nprint('the program got', *sys.argv[1:])\n")
    done = desk.run(typed, 2)
    assert "the program got --lr 0.5" in desk.run(done.command("dlicmd run")).lines


@pytest.fixture
def second(tmp_path: Path) -> Iterator[tuple[User, str]]:
    """(a second server with the user ada, HOST:PORT)"""
    far = User(tmp_path / "far")
    added = subprocess.run(
        [sys.executable, "-m", "local_backend.cli", "user", "add", "ada", "--password-stdin"], env=far.environment,
        cwd=far.folder, input="correct horse\n", capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert added.returncode == 0, added
    process = far.serve("--host", "127.0.0.1", "--port", "0", "--tls-self-signed")
    try:
        eventually((far.home / "backend.json").exists, "the server serves")
        url = json.loads((far.home / "backend.json").read_text())["url"]
        yield far, f"localhost:{url.rpartition(':')[2].strip('/')}"
    finally:
        far.backend("stop", "--jobs")
        process.communicate(timeout=DEADLINE)


def test_a_second_server_is_used_and_left_when_it_is_off(desk: Desk, second: tuple[User, str]) -> None:
    far, address = second
    terminal = desk.terminal
    terminal.type(f"dlicmd login {address} --ca-cert {far.home / 'tls' / 'ca.pem'}")
    terminal.until("Username:")
    terminal.type("ada")
    terminal.until("Password:")
    terminal.type("correct horse")
    logged_on = terminal.ended()
    assert logged_on.code == 0 and "ada" in logged_on.text and "correct horse" not in terminal.text
    assert "ada" in desk.run("dlicmd whoami").text
    exec_id = desk.train(0.5)
    assert exec_id == "local-1"
    there = desk.run("dlicmd ls -o json").text
    assert len(json.loads(there)) == 1
    servers = desk.run("dlicmd server ls")
    assert address in servers.text
    far.backend("stop", "--jobs")
    off = desk.run("dlicmd ls", 8)
    desk.run(off.command("dlicmd server use"))
    assert desk.run("dlicmd ls -o json").text != there
