"""Frames of the kernel protocol, and the program of docs/kernel-protocol.md, compiled as printed there."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from fake_gateway import KEY, FakeGateway
from hypothesis import given
from hypothesis import strategies as st
from support import PATIENCE

from local_backend.inference.kernel import frames
from local_backend.inference.kernel.frames import FrameReader, KernelTask, Malformed, Reply

PAGE = Path(__file__).parents[2] / "docs" / "kernel-protocol.md"
META = st.dictionaries(st.sampled_from(["content_type", "session", "deadline"]), st.text(max_size=5), max_size=2)
TASKS = st.lists(st.builds(KernelTask, st.integers(0, 2**64 - 1), st.binary(max_size=20), META), max_size=4)
REPLIES = st.builds(Reply, st.integers(0, 2**64 - 1), st.binary(max_size=20), st.booleans(), st.booleans(), META)


@given(TASKS, REPLIES, st.lists(st.integers(0, 2**64 - 1), max_size=3), st.data())
def test_frames_keep_their_values(tasks: list[KernelTask], reply: Reply, ids: list[int], data: st.DataObject) -> None:
    """However the bytes are cut."""
    sent = b"".join([frames.batch(tasks), frames.reply(reply), frames.unanswered(ids), frames.cancel(7),
                     frames.json_frame(frames.HELLO, {"key": "é"}), frames.frame(frames.READY)])
    reader, found, at = FrameReader(), [], 0
    while at < len(sent):
        end = at + data.draw(st.integers(1, len(sent)))
        found += reader.feed(sent[at:end])
        at = end
    kinds, (batch, answer, silent, cancelled, hello, ready) = [kind for kind, _ in found], [one for _, one in found]
    assert kinds == [frames.BATCH, frames.REPLY, frames.UNANSWERED, frames.CANCEL, frames.HELLO, frames.READY]
    assert list(frames.tasks_of(batch)) == tasks and frames.reply_of(answer) == reply
    assert frames.unanswered_of(silent) == ids and frames.cancelled(cancelled) == 7
    assert frames.object_of(hello) == {"key": "é"} and ready == b""


@given(TASKS.filter(bool), REPLIES, st.data())
def test_frames_that_are_cut_off_are_malformed(tasks: list[KernelTask], reply: Reply, data: st.DataObject) -> None:
    """They never give other tasks, and nothing but Malformed is raised."""
    whole = frames.batch(tasks)[5:]
    with pytest.raises(Malformed):
        list(frames.tasks_of(whole[:data.draw(st.integers(0, len(whole) - 1))]))
    payload = frames.reply(reply)[5:]
    for cut in (payload[:data.draw(st.integers(0, 8))], data.draw(st.binary(max_size=30))):
        try:
            assert frames.reply_of(cut).id >= 0 and len(cut) > 8
        except Malformed:
            pass
    for noise in (data.draw(st.binary(max_size=30)), b"\0\0\0\0"):
        try:
            FrameReader(limit=100).feed(noise)
            list(frames.tasks_of(noise))
        except Malformed:
            pass


@pytest.mark.integration
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_the_program_of_the_page_serves(gateway: FakeGateway) -> None:
    (source,) = re.findall(r"^```c\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    (gateway.folder / "echo_kernel.c").write_text(source)
    subprocess.run(["cc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", "echo_kernel", "echo_kernel.c"],
                   cwd=gateway.folder, check=True)
    process = gateway.start(command=[str(gateway.folder / "echo_kernel")])
    side = gateway.accept()
    hello = side.greet(parallel_size=1)
    assert (hello["version"], hello["key"], hello["kernel"]) == (frames.VERSION, KEY, 3)
    assert side.ask("a", "", "é" * 100_000, content_type="text/plain") == ["a", "", "é" * 100_000]
    side.socket.sendall(frames.frame(frames.BYE))
    assert side.receive() is None
    side = gateway.accept()
    side.greet()
    assert side.ask("b") == ["b"]
    process.send_signal(signal.SIGSTOP)
    process.send_signal(signal.SIGTERM)
    side.send("on its way", first=9)
    side.socket.sendall(frames.frame(frames.BYE))
    process.send_signal(signal.SIGCONT)
    side.expect(frames.LEAVING)
    assert side.answers(1) == {9: "on its way"}
    assert process.wait(PATIENCE) == 0
