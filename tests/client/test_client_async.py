"""The asynchronous client: the same methods as coroutines, which a cancellation ends."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from fake_server import BASE, TOKEN, FakeServer, Reply, Seen, exec_object
from support import eventually

import dlicmd


def run(fake: FakeServer, work: Callable[[dlicmd.AsyncClient], Awaitable[Any]]) -> Any:
    async def whole() -> Any:
        async with dlicmd.AsyncClient("127.0.0.1", fake.port, http=True, token=TOKEN) as client:
            return await work(client)

    return asyncio.run(whole())


def threads() -> list[threading.Thread]:
    """Return the threads of calls in progress."""
    return [thread for thread in threading.enumerate() if thread.name == "dlicmd"]


def public(kind: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(kind) if name[0] != "_"}


def test_both_clients_have_the_same_methods() -> None:
    assert public(dlicmd.Client) - public(dlicmd.AsyncClient) == {"result", "file", "impatient"}
    assert public(dlicmd.AsyncClient) <= public(dlicmd.Client)
    assert public(dlicmd.Job) == public(dlicmd.AsyncJob) - {"exec"}
    for name in public(dlicmd.AsyncClient) - {"close"}:
        plain, other = (inspect.signature(getattr(kind, name)) for kind in (dlicmd.Client, dlicmd.AsyncClient))
        assert list(plain.parameters.values()) == list(other.parameters.values()), name


def test_calls_return_objects_and_errors(fake: FakeServer) -> None:
    fake.execs["w-1"] = exec_object("w-1", state="FINISHED", appName="digits")
    fake.logs["w-1"] = "one\ntwo\n"

    async def work(client: dlicmd.AsyncClient) -> None:
        [listed] = jobs = await client.jobs(limit=1)
        job = await client.job("w-1")
        assert isinstance(listed, dlicmd.AsyncJob)
        assert (job.id, job.name, job.exec.state) == ("w-1", "digits", "FINISHED")
        assert await job.wait() is job and await job.check() is job and repr(job) == repr(listed)
        assert "<table>" in job._repr_html_() and jobs._repr_html_() == job._repr_html_() and "digits" in repr(jobs)
        assert await job.logs() == "one\ntwo\n" and await job.logs(tail=1) == "two\n"
        assert [line async for line in job.logs(follow=True)] == ["one", "two"]
        assert (await client.train_log("w-1")).text() == "one\ntwo\n"
        assert [news.exec.id async for news in client.watch("w-1")] == ["w-1"]
        with pytest.raises(dlicmd.NoSuchExec):
            await client.exec("w-2")
        with pytest.raises(dlicmd.NoSuchExec):
            async for _ in client.watch("w-2"):
                pass
        await job.delete()
        assert await client.jobs() == []

    run(fake, work)


def test_a_job_is_run(fake: FakeServer, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "train.py").write_text("print(1)\n")

    async def work(client: dlicmd.AsyncClient) -> str:
        job = await client.run(tmp_path / "model" / "train.py", ["--epochs", 2], env={"A": 1})
        found = await client.submit("PyTorch", {"model-dir": tmp_path / "model", "model-main": "train.py"})
        assert isinstance(found, dlicmd.Exec)
        return job.id

    assert run(fake, work) == "wmla-1"


def test_many_waits_do_not_keep_other_calls_from_starting(fake: FakeServer) -> None:
    """All calls are in progress at the same time."""
    names = [f"w-{number}" for number in range(40)]
    together = threading.Barrier(len(names))

    def answer(seen: Seen) -> Reply:
        together.wait(60)
        return Reply(200, b'{"id": "%s"}' % seen.path.rpartition("/")[2].encode())

    fake.replies |= {("GET", f"{BASE}/execs/{name}"): answer for name in names}

    async def work(client: dlicmd.AsyncClient) -> list[str]:
        return [found.id for found in await asyncio.gather(*map(client.exec, names))]

    assert run(fake, work) == names


@pytest.mark.parametrize("extensions", ["", "follow"])
def test_a_cancellation_ends_the_call(fake: FakeServer, extensions: str) -> None:
    fake.execs["w-1"] = exec_object("w-1", state="RUNNING")
    fake.logs["w-1"] = "one\n"
    fake.conf["DLICMD_EXTENSIONS"] = extensions
    fake.news = [{"exec": fake.execs["w-1"], "lines": [{"text": "one"}], "cursor": "1"},
                 {"exec": fake.execs["w-1"], "lines": [], "cursor": "1"}]

    async def work(client: dlicmd.AsyncClient) -> None:
        job = await client.job("w-1")
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(job.wait(), 0.2)
        async for line in job.logs(follow=True):
            assert line == "one"
            break

        async def read() -> None:
            async for _ in job.logs(follow=True):
                pass

        reading = asyncio.create_task(read())
        await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert (await job.refresh()).state == "RUNNING"

    run(fake, work)
    eventually(lambda: not threads(), "all calls have ended")


def test_the_end_of_a_program_waits_for_no_call(fake: FakeServer) -> None:
    """The loop ends while a call waits for its answer."""
    asked, end = threading.Event(), threading.Event()

    def silent(_: Seen) -> Reply:
        asked.set()
        end.wait(60)
        return Reply(200, b"{}")

    fake.replies["GET", f"{BASE}/conf"] = silent

    async def work(client: dlicmd.AsyncClient) -> None:
        call = asyncio.create_task(client.conf())
        while not asked.is_set():
            await asyncio.sleep(0.01)
        call.cancel()

    run(fake, work)
    assert all(thread.daemon for thread in threads())
    end.set()
    eventually(lambda: not threads(), "the call has ended")
