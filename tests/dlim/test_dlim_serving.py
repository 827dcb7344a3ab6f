"""dlim with the real local backend: a model from its folder to its deletion."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import eventually
from user import Done, User

from dlicmd.sdk.paths import samples_dir

pytestmark = pytest.mark.integration
PINGPONG = samples_dir() / "inference" / "pingpong"


class Server(User):
    """A user whose commands are those of dlim."""

    def dlim(self, *words: str) -> Done:
        """Run dlim until it ends."""
        return self.run(*words, program="dlicmd.dlim")


@pytest.fixture
def user(tmp_path: Path) -> Iterator[Server]:
    user = Server(tmp_path / "home")
    yield user
    user.close()


def test_a_model_lives_from_run_to_undeploy(user: Server) -> None:
    done = user.dlim("run", str(PINGPONG))
    assert done.code == 0, done
    assert "pingpong answers at http" in done.out
    answer = user.dlim("invoke", "pingpong", str(PINGPONG / "input.json"))
    assert json.loads(answer.out) == json.loads((PINGPONG / "input.json").read_text()), answer
    lines = user.dlim("model", "view", "pingpong", "-s", "-a").out.splitlines()
    assert "State:            Started" in lines and "Status: IDLE" in lines
    assert user.dlim("model", "undeploy", "pingpong", "-f").err == "The model cannot be removed if it's started.\n"

    again = user.dlim("model", "deploy", "-p", str(PINGPONG), "-f")
    assert again.out.splitlines()[-1] == "Model <pingpong> is deployed successfully"
    assert user.dlim("model", "start", "pingpong", "--wait").code == 0
    assert user.dlim("model", "rollback", "pingpong").code == 0
    assert user.dlim("model", "stop", "pingpong", "--wait").code == 0
    assert user.dlim("model", "undeploy", "pingpong").code == 0
    assert user.dlim("model", "view", "pingpong").code == 6


def test_the_printed_curl_command_works(user: Server) -> None:
    told = user.dlim("run", str(PINGPONG)).out
    url = told.split("answers at ")[1].split()[0]
    token = user.dlim("config", "-s").out.strip()
    request = urllib.request.Request(url, b'{"seq": 7}', {"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert json.loads(answer.read()) == {"seq": 7}


def test_a_profile_changes_while_the_model_runs(user: Server, tmp_path: Path) -> None:
    assert user.dlim("run", str(PINGPONG)).code == 0
    profile = json.loads(user.dlim("model", "viewprofile", "pingpong", "-j").out)
    profile["policy"]["kernel_max"] = 2
    (tmp_path / "profile.json").write_text(json.dumps(profile))
    done = user.dlim("model", "updateprofile", "pingpong", "-f", str(tmp_path / "profile.json"))
    assert done.out == "Model is updated successfully\n"
    profile["policy"]["kernel_max"] = "many"
    (tmp_path / "profile.json").write_text(json.dumps(profile))
    refused = user.dlim("model", "updateprofile", "pingpong", "-f", str(tmp_path / "profile.json"))
    assert refused.code == 2 and "kernel_max" in refused.err


def test_a_kernel_that_cannot_start_is_explained(user: Server, tmp_path: Path) -> None:
    folder = tmp_path / "broken"
    folder.mkdir()
    described = json.loads((PINGPONG / "model.json").read_text())
    (folder / "model.json").write_text(json.dumps(described | {"name": "broken", "kernel_path": "kernel.py"}))
    (folder / "README.md").write_text("# Broken\n")
    (folder / "kernel.py").write_text("import no_such_module_at_all\n")
    done = user.dlim("run", str(folder), "--wait-timeout", "90")
    assert done.code in (3, 7)
    eventually(lambda: "no_such_module_at_all" in user.dlim("logs", "broken").out, "the log of the kernel")


def test_debug_calls_the_kernel_without_a_server(user: Server) -> None:
    done = user.dlim("debug", str(PINGPONG))
    assert done.code == 0 and done.out.count("Response data: ") == 5
    several = ("--input", str(PINGPONG / "input.json"), f"--input={PINGPONG / 'input.json'}")
    done = user.dlim("debug", str(PINGPONG), *several)
    assert done.code == 0 and done.out.count("Response data: ") == 2
    assert not (user.home / "backend.json").exists()
