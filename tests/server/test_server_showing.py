"""Responses about finished execs are cached, and never out of date."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from live_server import Live, settings_for

from dlicmd.contract import wire
from dlicmd.contract.states import FINISHED, PENDING, RUNNING
from local_backend.api.showing import Endings
from local_backend.store import execs
from local_backend.store.execs import ExecRow


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    running = Live(settings_for(tmp_path_factory.mktemp("showing") / "home"))
    yield running
    running.close()


def shown(live: Live, exec_id: str) -> dict:
    """Return the exec as shown alone, which must equal its entry in the list."""
    one = live.call("GET", f"/execs/{exec_id}").json()
    (listed,) = [found for found in live.call("GET", "/execs").json() if found["id"] == exec_id]
    assert list(listed.items()) == list(one.items())
    return one


def ended(live: Live) -> str:
    exec_id = live.submitted()
    live.move(exec_id, PENDING, RUNNING)
    live.say(exec_id, {wire.LOSS: 0.5, wire.WORKERS: 2})
    assert shown(live, exec_id)[wire.LOSS] == 0.5
    live.move(exec_id, FINISHED, exit_code=0)
    return exec_id


def test_a_running_exec_is_read_again_for_every_response(server: Live) -> None:
    exec_id = server.submitted()
    server.move(exec_id, PENDING, RUNNING)
    for loss in (3.0, 2.0, 1.0):
        server.say(exec_id, {wire.LOSS: loss})
        assert shown(server, exec_id)[wire.LOSS] == loss
    server.move(exec_id, FINISHED)
    last = shown(server, exec_id)
    assert (last["state"], last[wire.LOSS], last[wire.HAS_RESULT]) == (FINISHED, 1.0, False)


def test_a_change_of_a_finished_exec_is_shown(server: Live) -> None:
    exec_id = ended(server)
    model = server.paths(exec_id).model
    assert not shown(server, exec_id)[wire.HAS_RESULT]
    model.mkdir(parents=True, exist_ok=True)
    (model / "weights").touch()
    assert shown(server, exec_id)[wire.HAS_RESULT]
    (model / "weights").unlink()
    assert not shown(server, exec_id)[wire.HAS_RESULT]
    assert wire.MESSAGE not in shown(server, exec_id)
    server.database.write(lambda c: execs.note(c, exec_id, message="its files were moved"))
    assert shown(server, exec_id)[wire.MESSAGE] == "its files were moved"


def test_the_response_has_the_address_of_the_request(server: Live) -> None:
    exec_id = ended(server)
    for name in ("localhost", "127.0.0.1", "localhost"):
        host = f"{name}:{server.port}"
        assert server.call("GET", f"/execs/{exec_id}", headers={"Host": host}).json()["schedulerUrl"] == f"http://{host}"


def test_a_deleted_exec_is_not_shown(server: Live) -> None:
    exec_id = ended(server)
    shown(server, exec_id)
    assert server.call("DELETE", f"/execs/{exec_id}").status == 204
    assert server.call("GET", f"/execs/{exec_id}").status == 400
    assert exec_id not in server.call("GET", "/execs").text


def test_the_cache_is_bounded_in_number_and_size(server: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Endings, "MOST", 3)
    monkeypatch.setattr(Endings, "LONGEST", 5000)
    row = server.row(ended(server))
    made: list[str] = []
    endings = Endings()

    def get(one: ExecRow, text: bytes = b"{}") -> bytes:
        return endings.get((one, "http://h", True, False), lambda: made.append(one.id) or text)

    for name in ("a", "b", "c", "a", "d", "a", "b"):  # d replaces b, the least recently used one.
        assert get(replace(row, id=name)) == b"{}"
    assert made == ["a", "b", "c", "d", "b"]
    for _ in range(2):
        get(replace(row, id="long"), b"x" * 5000)
    assert made[5:] == ["long", "long"]
