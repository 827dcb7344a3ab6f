"""Two people, two browsers, four slots: both build an experiment and run it, the slots go 4, 2 and 2, 4 on the
overview, curves grow, the logs of workers open, and one saves the model. No command is typed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import isolation
import pytest
from click.testing import CliRunner
from support import PATIENCE

from local_backend.commands.users import user
from local_backend.console import places

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator
    from playwright.sync_api import Page as Tab

pytestmark = pytest.mark.integration

SECRET, SLOTS, WAIT = "a long password", 4, PATIENCE * 1000
#: A training with steps of 0.2 s and more, until the file `hurry` is in its folder.
PROGRAM = '''
import os, time, torch
from fabric_model import FabricModel
from torch import nn
from torch.utils.data import Dataset

class Samples(Dataset):
    def __len__(self):
        return 1024
    def __getitem__(self, i):
        if not os.path.exists("hurry"):
            time.sleep(0.05)
        return torch.full((8,), i % 7 / 7), i % 2

print("a worker begins")
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
FabricModel(model, lambda: (Samples(), Samples()), nn.functional.cross_entropy, optimizer).train({epochs}, 16, 4)
'''
#: Whether the overview shows these numbers of slots of the user and of others, whose names it does not tell.
HELD = """([name, own, others]) => {
  const texts = [...document.querySelectorAll('#slots .slot')].map((one) => one.textContent);
  return texts.filter((one) => one.includes(`· ${name}`)).length === own
    && texts.filter((one) => one.includes('another user')).length === others;
}"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """The address of a server for ada and bob."""
    home = tmp_path / "home"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DLI")}
    environment |= isolation.environment() | {"DLICMD_HOME": str(home), "DLI_SLOTS": str(SLOTS), "OMP_NUM_THREADS": "1"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("DLICMD_HOME", str(home)), ("DLI_USER_PASSWORD", SECRET)):
            patch.setenv(name, value)
        for name in ("ada", "bob"):
            assert CliRunner().invoke(user, ["add", name]).exit_code == 0
    process = subprocess.Popen([sys.executable, "-m", "local_backend.cli", "serve", "--host", "127.0.0.1"],
                               env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None and b"serving" in process.stdout.readline()
    try:
        yield str(json.loads((home / "backend.json").read_text())["url"])
    finally:
        subprocess.run([sys.executable, "-m", "local_backend.cli", "stop", "--jobs"], env=environment, check=False,
                       capture_output=True)
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE)


class Person:
    """A user in a browser of their own."""

    def __init__(self, browser: Browser, server: str, name: str) -> None:
        self.name = name
        self.context = browser.new_context(base_url=server)
        self.context.set_default_timeout(WAIT)
        self.context.set_default_navigation_timeout(WAIT)
        self.tab: Tab = self.context.new_page()
        self.tab.goto(places.HOME)
        self.tab.get_by_label("User").fill(name)
        self.tab.get_by_label("Password").fill(SECRET)
        self.tab.get_by_role("button", name="Log on").click()
        self.tab.get_by_role("heading", name="Overview").wait_for()

    def close(self) -> None:
        self.context.close()

    def run_experiment(self, program: Path) -> str:
        """Upload a program in the builder, create an elastic experiment and run it. Return the path of the run."""
        tab = self.tab
        tab.goto(places.NEW_EXPERIMENT)
        tab.locator("input[name=new-name]").fill(f"model-of-{self.name}")
        tab.locator("select[name=new-framework]").select_option("edtPyTorch")
        tab.locator("input[name=archive]").set_input_files(program)
        tab.get_by_role("button", name="Upload and add").click()
        part = tab.locator(".part-row")
        part.wait_for()
        changed(tab, part.locator("select[name$=-nodes]"), "elastic")
        changed(tab, part.locator("input[name$=-count]"), str(SLOTS))
        changed(tab, tab.locator("#name"), f"plan-of-{self.name}")
        tab.get_by_role("button", name="Create and run").click()
        tab.get_by_role("heading", name=f"plan-of-{self.name}").wait_for()
        run = tab.locator("#runs a[href*='/runs/']").first
        run.wait_for()
        return str(run.get_attribute("href"))

    def sees(self, own: int, others: int = 0) -> None:
        """Wait until the open overview shows that runs of this user, and of others, hold these numbers of slots."""
        self.tab.wait_for_function(HELD, arg=[self.name, own, others])


def changed(tab: Tab, field: Locator, value: str) -> None:
    """Change a field of the builder, and wait until the form has come back from the server."""
    with tab.expect_response(lambda answer: answer.url.endswith(places.EXPERIMENT_FORM)):
        if field.evaluate("(one) => one.tagName") == "SELECT":
            field.select_option(value)
        else:
            field.fill(value)
            field.press("Tab")
    tab.wait_for_function("() => !document.querySelector('.htmx-request')")


def last_step(answer: Any) -> float:
    """Return the last step of the curves in an answer, 0 for another answer."""
    if "/curves?" not in answer.url:
        return 0
    return max((max(one["x"], default=0) for one in answer.json()["series"]), default=0)


def hurry(home: Path, run: str) -> None:
    """Let a run train as fast as it can."""
    found = [path for path in home.rglob("train.py") if run in path.parts]
    assert found
    for path in found:
        path.with_name("hurry").touch()


def test_two_people_share_the_slots_in_two_browsers(browser: Browser, server: str, tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(PROGRAM.format(epochs=20))
    with closing(Person(browser, server, "ada")) as ada, closing(Person(browser, server, "bob")) as bob:
        first = ada.run_experiment(program)
        ada.tab.goto(places.HOME)
        ada.sees(SLOTS)
        second = bob.run_experiment(program)
        ada.sees(SLOTS // 2, SLOTS // 2)

        bob.tab.goto(second)
        with bob.tab.expect_response(lambda answer: last_step(answer) > 0) as drawn:
            pass
        with bob.tab.expect_response(lambda answer: last_step(answer) > last_step(drawn.value)):
            pass
        bob.tab.locator(".plot canvas").first.wait_for()

        bob.tab.get_by_role("link", name="Logs").click()
        logs = bob.tab.locator("select[name=log] option")
        logs.first.wait_for(state="attached")
        workers = [one for one in logs.all_inner_texts() if "worker" in one.lower()]
        assert len(workers) >= 2, workers

        bob.tab.get_by_role("button", name="Stop").click()
        bob.tab.get_by_role("button", name="Yes").click()
        bob.tab.locator(".state.ended").first.wait_for()
        ada.sees(SLOTS)

        hurry(tmp_path / "home", first.rpartition("/")[2])
        ada.tab.goto(first)
        ada.tab.get_by_role("button", name="Save model").click()
        ada.tab.locator("#save-model").get_by_label("Name").fill("the-model")
        ada.tab.locator("#save-model").get_by_role("button", name="Save").click()
        ada.tab.wait_for_url(f"**{places.SAVED}**")
        ada.tab.get_by_text("the-model").first.wait_for()
