"""Words that a user types, and contents of files, cannot become a header or a second request."""

from __future__ import annotations

import pytest
from client_desk import Desk
from fake_server import FakeServer

BREAK = "x\r\nX-Injected: 1\r\n\r\nDELETE /platform/rest/deeplearning/v1/execs HTTP/1.1\r\n"


@pytest.mark.parametrize(("words", "code"), [
    (["--exec-get", BREAK], 6), (["--exec-get-all", "--query-args", BREAK], 0),
    (["--exec-get-all", "--query-args", "a b\nc"], 0), (["--app-get", BREAK], 6), (["--rp-get", BREAK], 6),
    (["--k8s-obj-get", BREAK, BREAK], 0), (["--hpo-get", BREAK], 6),
    (["--exec-start", "PyTorch", "--user-cmd", "--appName", BREAK, "--", BREAK], 0),
    (["--exec-deploy", "w-1", "--kernel", BREAK], 6),
], ids=lambda given: given[0] if isinstance(given, list) else "")
def test_line_breaks_in_words_do_not_become_headers(
    desk: Desk, fake: FakeServer, remote: list[str], words: list[str], code: int
) -> None:
    own = words.index("--") if "--" in words else len(words)
    done = desk.run(*words[:own], *remote, *words[own:])
    assert done.code == code and "Traceback" not in done.err, done
    assert not fake.requests("DELETE") and not any("x-injected" in seen.headers for seen in fake.seen)


@pytest.mark.parametrize("where", ["--jwt-token", "DLICMD_TOKEN", "file"])
def test_a_token_of_several_lines_is_refused(desk: Desk, fake: FakeServer, where: str) -> None:
    words = ["--rest-host", "127.0.0.1", "--rest-port", str(fake.port), "--http"]
    if where == "file":
        (desk.home / ".dlicmd").write_bytes(BREAK.encode())
    elif where == "DLICMD_TOKEN":
        desk.environment[where] = BREAK
    else:
        words += [where, BREAK]
    done = desk.run("--exec-get-all", *words)
    assert done.code == 9 and len(done.err.splitlines()) == 1 and not fake.seen, done


@pytest.mark.parametrize("host", ["127.0.0.1\r\nX-Injected: 1", "127.0.0.1/x", "a@127.0.0.1", "127.0.0.1?x", "#", " "])
def test_a_host_with_other_characters_is_refused(desk: Desk, fake: FakeServer, host: str) -> None:
    done = desk.run("--exec-get-all", "--rest-host", host, "--rest-port", str(fake.port), "--http", "--jwt-token", "t")
    assert done.code == 2 and len(done.err.splitlines()) == 1 and not fake.seen, done
