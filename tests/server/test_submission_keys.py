"""A submission with an Idempotency-Key is accepted once, even if its first response is lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from live_server import Answer, Live, multipart, quoted, settings_for, tar

from local_backend.store import execs, submission_keys
from local_backend.submit import accept

ARGS = "--exec-start PyTorch --model-main main.py"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    running = Live(settings_for(tmp_path_factory.mktemp("keys") / "home"))
    yield running
    running.close()


def submit(
    live: Live, key: str | None, program: bytes = b"print(1)\n", args: str = ARGS, *, name: str = "main.py",
    boundary: str = "XbX",
) -> Answer:
    body, kind = multipart([("file", name, program)])
    headers = {"Content-Type": kind.replace("XbX", boundary)} | ({"Idempotency-Key": key} if key is not None else {})
    return live.call("POST", f"/execs/?args={quoted(args)}", body.replace(b"XbX", boundary.encode()), headers)


def count(live: Live) -> int:
    return len(live.database.read(execs.all_ids))


def test_a_repeated_submission_returns_the_same_exec(server: Live) -> None:
    before = count(server)
    first = submit(server, '"k-1"')
    assert first.status == 200
    for again in (submit(server, '"k-1"'), submit(server, "k-1"), submit(server, '"k-1"', boundary="other")):
        assert (again.status, again.json()["id"]) == (200, first.json()["id"])
    assert count(server) == before + 1
    assert submit(server, None).json()["id"] != submit(server, None).json()["id"]


def test_an_archive_with_another_file_name_is_the_same_submission(server: Live) -> None:
    packed = tar({"m/": b"", "m/main.py": b"print(1)\n"})
    args = "--exec-start PyTorch --model-dir m --model-main main.py"
    first, again = (submit(server, "k-tar", packed, args, name=f"tmp{n}.modelDir.tar") for n in (1, 2))
    assert first.status == 200 and first.json()["id"] == again.json()["id"]


def test_another_submission_with_the_same_key_is_refused(server: Live) -> None:
    first, before = submit(server, "k-2").json()["id"], count(server)
    for other in (
        submit(server, "k-2", b"print(2)\n"), submit(server, "k-2", args=ARGS + " --lr 1"),
        submit(server, "k-2", name="other.py", args=ARGS),
    ):
        assert other.error == (422, "submission.key_mismatch") and first in other.text
    assert count(server) == before


def test_a_refused_submission_leaves_its_key_free(server: Live) -> None:
    assert submit(server, "k-3", args="--exec-start NoSuch --model-main main.py").status == 400
    assert submit(server, "k-3").status == 200


def test_an_invalid_key_is_refused(server: Live) -> None:
    before = count(server)
    for key in ("", '""', '"open', "two words", "x" * 256, '"' + "x" * 256 + '"', '"\xe9"'):
        assert submit(server, key).status == 400, key
    assert count(server) == before
    assert submit(server, r'"a \"quoted\" \\ one"').status == 200


def test_the_key_of_a_deleted_exec_is_refused(server: Live) -> None:
    exec_id = submit(server, "k-4").json()["id"]
    assert server.call("DELETE", f"/execs/{exec_id}").status == 204
    before = count(server)
    again = submit(server, "k-4")
    assert again.error == (400, "submission.key_deleted") and exec_id in again.text and count(server) == before


def test_a_repetition_during_the_first_submission_gets_409(server: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    inside, go_on, place = threading.Event(), threading.Event(), accept.place

    def slow(*given: object, **named: object) -> object:
        inside.set()
        go_on.wait(60)
        return place(*given, **named)

    monkeypatch.setattr(accept, "place", slow)
    answers: list[Answer] = []
    first = threading.Thread(target=lambda: answers.append(submit(server, "k-5")))
    first.start()
    assert inside.wait(60)
    early = submit(server, "k-5")
    assert early.status == 409 and early.headers["retry-after"] == "1"
    go_on.set()
    first.join()
    assert answers[0].json()["id"] == submit(server, "k-5").json()["id"]


def test_a_key_belongs_to_its_user_and_expires(server: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    exec_id = submit(server, "k-6").json()["id"]

    def find(user: str) -> object:
        return server.database.read(lambda c: submission_keys.find(c, user, "k-6"))

    assert find("alice") and find("bob") is None
    monkeypatch.setattr(submission_keys, "KEPT", 0)
    assert find("alice") is None and submit(server, "k-6").json()["id"] != exec_id


def test_a_key_survives_a_restart_of_the_server(tmp_path_factory: pytest.TempPathFactory) -> None:
    settings = settings_for(tmp_path_factory.mktemp("again") / "home")
    first = Live(settings)
    exec_id = submit(first, "k-7").json()["id"]
    first.close()
    second = Live(settings)
    again = submit(second, "k-7").json()["id"]
    second.close()
    assert again == exec_id


def test_a_failed_submission_stores_no_key(server: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exec and key are stored in one transaction. If the exec cannot be stored, the key is free."""

    def broken(*_: object) -> object:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(execs, "create", broken)
        assert submit(server, "k-8").status == 507
    assert server.database.read(lambda c: submission_keys.find(c, "alice", "k-8")) is None
    assert submit(server, "k-8").status == 200
