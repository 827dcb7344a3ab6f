"""Each command of the original client in each manner: standard output, standard error and exit code."""

from __future__ import annotations

import re
from pathlib import Path
from unittest import mock

import pytest
from fake_server import BASE, Reply
from manner_desk import MannerDesk, ScriptedServer, Variant, address, as_json, store_token
from manner_rows import (
    ELASTIC,
    EXECS,
    LISTED,
    OPERANDS,
    PENDING,
    RESULT,
    ROWS,
    RUNNING,
    SENTENCES,
    TREE,
    Row,
    get,
)
from manner_rules import COMMANDS, DENIED, iso, pretty, table

COPYING = re.compile(r"Copying files and directories \.\.\.\nContent size: [0-9.]+K?\n")
#: Commands that send no token, or nothing at all.
WITHOUT_TOKEN = ("--logon", "--logoff")
EVERY_COMMAND = sorted(OPERANDS)


@pytest.fixture
def user(tmp_path: Path) -> MannerDesk:
    user = MannerDesk(tmp_path)
    store_token(user)
    (user.folder / "main.py").write_bytes(b"#" * 1946)
    (user.folder / "whole.py").write_bytes(b"#" * (2 << 20))
    (user.folder / "small.py").write_bytes(b"#" * 484)
    (user.folder / "search.json").write_text("{}")
    (user.folder / "search.yaml").write_text("{}")
    user.model(main="print(1)\n")
    return user


def words_of(row: str, server: ScriptedServer) -> list[str]:
    """Return a command line with the options that name the server, which precede a `--`."""
    own, dashes, program = row.partition(" -- ")
    named = address(server) if own not in ("", "-h") else []
    return [*own.split(), *named, *(["--", *program.split()] if dashes else [])]


def as_at_first(text: str) -> str:
    """Return a text with the age of BEGAN at the start of the tests: it may become one hour more while they run."""
    return re.sub(r"\b2d(,?)5h\b", r"2d\g<1>4h", text)


def is_like(found: str, expected: str | re.Pattern[str]) -> bool:
    """Return whether a text is the expected one, or begins as the pattern says."""
    return found == expected if isinstance(expected, str) else expected.match(found) is not None


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.title)
def test_output_and_exit_code(user: MannerDesk, server: ScriptedServer, row: Row) -> None:
    server.replies |= row.answers
    for variant in Variant:
        server.execs.clear()
        user.token.unlink(missing_ok=True)
        if row.token:
            store_token(user)
        done = user.call(variant, *words_of(row.words, server))
        out = as_at_first(done.out)
        if variant is Variant.ORIGINAL:
            assert (done.code, done.err) == (row.code, ""), (variant, done)
            assert is_like(out, row.out), f"{out}\nexpected:\n{row.out}"
            continue
        assert done.code == row.piped_code, (variant, done)
        assert row.error in done.err if row.error else not done.err, (variant, done)
        expected = row.out if row.piped_out is None else row.piped_out
        if variant is Variant.TERMINAL and row.view:
            assert all(piece in out for piece in row.view), out
            assert not out.startswith("--") and out != expected, out
        else:
            assert is_like(out, expected), f"{variant}:\n{out}\nexpected:\n{expected}"


def test_the_rows_are_about_all_commands_of_the_original() -> None:
    assert {row.words.split()[0] for row in ROWS if row.words.startswith("--")} - {"--no-such-command"} == COMMANDS
    assert OPERANDS.keys() == COMMANDS - {"--help"}, "rows about failures"


@pytest.mark.parametrize("command", EVERY_COMMAND)
@pytest.mark.parametrize("body", [{"message": "bröken", "a": [1]}, "Error 500: broken\n"], ids=["JSON", "text"])
def test_a_refusal_of_the_server(user: MannerDesk, server: ScriptedServer, command: str, body: object) -> None:
    server.every = as_json(body, 500) if isinstance(body, dict) else Reply(500, str(body).encode())
    shown = pretty(body) if isinstance(body, dict) else f"{body}\n"
    for variant in Variant:
        store_token(user)
        done = user.call(variant, command, *OPERANDS[command].split(), *address(server))
        said = COPYING.sub("", done.out)
        assert (said == done.out) is (command not in ("--exec-start", "--hpo-start"))
        sentence = f"{SENTENCES[command]} w-1 failed. HTTP:500 " if command in SENTENCES else ""
        if variant is not Variant.ORIGINAL:
            assert (done.code, said) == (1, f"{sentence}\n" if sentence else ""), (variant, done)
            assert "br" in done.err and done.err.splitlines()[-1].startswith("dlicmd: "), done.err
        elif sentence:
            told = server.every.body.decode().strip()
            assert (done.code, said, done.err) == (0, f"{sentence}{told}\n", ""), done
        elif command == "--pj-get-all":
            assert (done.code, said, done.err) == (0, f"{shown}No result found\n", ""), done
        elif command == "--exec-deploy":
            assert (done.code, said, done.err) == (1, "{'kernel': 'k.py'}\nw-1\n" + shown, ""), done
        else:
            assert (done.code, said, done.err) == (1, shown, ""), done
    assert command != "--logoff" or not user.token.exists(), "a failed logoff removes the token, too"


@pytest.mark.parametrize("command", [name for name in EVERY_COMMAND if name not in WITHOUT_TOKEN])
def test_an_invalid_token(user: MannerDesk, server: ScriptedServer, command: str) -> None:
    body = "Error 401: Authentication failed.\n"
    server.every = Reply(401, body.encode())
    for variant in Variant:
        done = user.call(variant, command, *OPERANDS[command].split(), *address(server))
        said = COPYING.sub("", done.out)
        if variant is not Variant.ORIGINAL:
            assert done.code == 9 and "Log on again" in done.err, (variant, done)
        elif command == "--exec-deploy":
            assert (done.code, done.err) == (1, "") and said.endswith(f"\n{DENIED}{body}\n"), done
        else:
            assert (done.code, said, done.err) == (1, f"{DENIED}{body}\n", ""), done


@pytest.mark.parametrize("command", [name for name in EVERY_COMMAND if name not in WITHOUT_TOKEN])
def test_no_token(user: MannerDesk, server: ScriptedServer, command: str) -> None:
    user.token.unlink()
    for variant in Variant:
        done = user.call(variant, command, *OPERANDS[command].split(), *address(server))
        sentence = "Unable to find token from cookies. Please logon first."
        if variant is Variant.ORIGINAL:
            assert (done.code, done.err) == (1, "") and sentence in done.out, done
        else:
            assert done.code == 9 and sentence in done.err and sentence not in done.out, (variant, done)
    assert not server.seen


@pytest.mark.parametrize("command", EVERY_COMMAND)
def test_an_unreachable_server(user: MannerDesk, command: str) -> None:
    with ScriptedServer() as gone:
        nowhere = address(gone)
    for variant in Variant:
        store_token(user)
        done = user.call(variant, command, *OPERANDS[command].split(), *nowhere)
        assert "Traceback" not in done.err + done.out
        if variant is Variant.ORIGINAL:
            assert (done.code, done.err) == (1, "") and re.search(r"^\[Error\]: .*127\.0\.0\.1", done.out, re.M), done
        else:
            assert done.code == 8 and "127.0.0.1" in done.err and "127.0.0.1" not in done.out, (variant, done)


@pytest.mark.parametrize("command", [name for name, operands in OPERANDS.items() if operands and name not in (
    "--logon", "--k8s-obj-get", "--app-analyze")])
def test_a_missing_operand(user: MannerDesk, server: ScriptedServer, command: str) -> None:
    for variant in Variant:
        done = user.call(variant, command, *address(server))
        assert done.code == 2 and not server.seen, (variant, done)
        told, silent = (done.out, done.err) if variant is Variant.ORIGINAL else (done.err, done.out)
        assert command in told and not silent, (variant, done)


@pytest.mark.parametrize("variant", Variant)
def test_the_result_file(user: MannerDesk, server: ScriptedServer, variant: Variant) -> None:
    """The original client overwrites an existing file; the two other manners refuse without --force."""
    packed = b"PK\x05\x06" + b"\0" * 18
    server.replies |= get(f"{BASE}/execs/w-1", ELASTIC)
    server.replies["GET", f"{BASE}/execs/w-1/result"] = Reply(
        200, packed, {"Content-Disposition": f"attachment;filename={RESULT};size={len(packed)}"})
    words = ("--exec-trainresult", "w-1", *address(server))
    done = user.call(variant, *words)
    assert (done.code, done.out, done.err) == (0, f"Train result is saved to {RESULT}\n", "")
    assert (user.folder / RESULT).read_bytes() == packed
    (user.folder / RESULT).write_bytes(b"old")
    done = user.call(variant, *words, "-o", "json")
    if variant is Variant.ORIGINAL:
        assert (done.code, done.out, done.err) == (0, f"Train result is saved to {RESULT}\n", "")
        assert (user.folder / RESULT).read_bytes() == packed
    else:
        assert (done.code, done.out) == (1, "") and (user.folder / RESULT).read_bytes() == b"old"


@pytest.mark.parametrize("words", ["--exec-get-all", "--exec-stop w-1", "--rp-get-all", "--dl-frameworks"])
def test_the_original_prints_the_same_on_a_terminal(user: MannerDesk, server: ScriptedServer, words: str) -> None:
    server.replies |= {**get(f"{BASE}/execs/", [ELASTIC]), **get(f"{BASE}/resplans/resplantree", TREE)}
    found = [user.call(Variant.ORIGINAL, *words.split(), *address(server), on_terminal=terminal)
             for terminal in (True, False)]
    assert found[0] == found[1] and found[0].out


def test_borders_end_at_the_width_of_the_terminal(user: MannerDesk, server: ScriptedServer) -> None:
    server.replies |= get(f"{BASE}/execs/", [ELASTIC | {"appName": "x" * 100}])
    for columns, width in (("40", 40), (None, 80), ("10000", None)):
        user.environment.pop("COLUMNS", None)
        user.environment |= {"COLUMNS": columns} if columns else {}
        lines = user.call(Variant.ORIGINAL, "--exec-get-all", *address(server)).out.splitlines()
        assert lines[0] == lines[-1] == "-" * (width or len(lines[1])) and len(lines[1]) == len(lines[2]) > 100


def test_ages_have_two_units(user: MannerDesk, server: ScriptedServer) -> None:
    now = 1_700_000_000
    ages = {370 * 86400 + 3600: "1y,5d", 5 * 3600 + 6 * 60 + 30: "5h,6m", 3 * 86400 + 60: "3d,0h"}
    server.replies |= get(f"{BASE}/execs/", [ELASTIC | {"createTime": iso(now - ago)} for ago in ages])
    with mock.patch("dlicmd.cli.show.recorded.time.time", return_value=now):
        done = user.call(Variant.PIPED, "--exec-get-all", *address(server))
    assert [line.split()[-1] for line in done.out.splitlines()[2:-1]] == list(ages.values())


def test_row_numbers_are_as_wide_as_the_number_of_rows(user: MannerDesk, server: ScriptedServer) -> None:
    server.replies |= get(f"{BASE}/execs/", [{"id": f"w-{at}"} for at in range(12)])
    done = user.call(Variant.ORIGINAL, "--exec-get-all", *address(server))
    assert done.out == table(EXECS, *([f"w-{at}", *[None] * 8] for at in range(12)))


def test_members_of_a_pack_are_below_their_pack(user: MannerDesk, server: ScriptedServer) -> None:
    pack = RUNNING | {"id": "p-1", "is_packing": True, "task12n_num": 1}
    member = RUNNING | {"id": "w-5", "pack_id": "p-1"}
    server.replies |= {**get(f"{BASE}/resplans/resplantree", TREE), **get(LISTED, [member, PENDING, pack])}
    done = user.call(Variant.PIPED, "--rp-get-all", *address(server))
    lines = done.out.splitlines()
    at = next(number for number, line in enumerate(lines) if line.split()[0] == "p-1")
    assert lines[at].startswith(" " * 12 + "p-1") and lines[at + 1].startswith(" " * 14 + "w-5"), done.out


def test_without_the_jobs_the_tree_is_printed_nevertheless(user: MannerDesk, server: ScriptedServer) -> None:
    server.replies |= {**get(f"{BASE}/resplans/resplantree", TREE), ("GET", LISTED): Reply(500, b"Error 500: no\n")}
    done = user.call(Variant.ORIGINAL, "--rp-get-all", *address(server))
    assert done.code == 0 and done.out == "root\n|-- \x1b[32mplans\x1b[0m\n    |-- \x1b[32ma\x1b[0m\n"


OURS = {"--wait w-1": 4, "--follow w-1": 4, "--app-wait w-1 --wait-timeout 9": 4, "--app-wait w-1 --pass-exit-code": 4,
        "--exec-why w-1": 0, "--version": 0, "--config-show": 0,
        "--exec-start PyTorch --model-main main.py --dry-run": 0, "--hpo-get s-1 --wait": 4, "--hpo-plot s-1": 1,
        "--hpo-export s-1 out.csv": 0, "--hpo-start search.json --model-dir model --dry-run": 0,
        "--hpo-start --model-dir model --hpo-param a=1..2 --hpo-metric loss --dry-run": 0,
        "--hpo-algorithm-install absent.tar": 2}


@pytest.mark.parametrize("words", OURS)
def test_our_own_commands_are_the_same_in_all_manners(user: MannerDesk, server: ScriptedServer, words: str) -> None:
    server.replies |= {**get(f"{BASE}/execs/w-1", ELASTIC | {"state": "KILLED"}),
                       **get(f"{LISTED}/w-1", [RUNNING | {"state": "KILLED"}]),
                       **get(f"{BASE}/hypersearch/s-1", {"hpoName": "s-1", "state": "STOPPED", "experiments": []})}
    found = [user.call(variant, *words.split(), *address(server)) for variant in (Variant.ORIGINAL, Variant.PIPED)]
    for done in found:  # a dry run has a new boundary
        done.raw_out = re.sub(rb"tmp[0-9a-f]{8}|[0-9a-f-]{32,64}", b"", done.raw_out)
    assert found[0] == found[1] and found[0].code == OURS[words]


@pytest.mark.parametrize("words", ["--wait w-9", "--exec-why w-9", "--exec-start PyTorch --wait"])
def test_errors_of_our_own_commands_are_on_standard_error(
    user: MannerDesk, server: ScriptedServer, words: str,
) -> None:
    found = [user.call(variant, *words.split(), *address(server)) for variant in (Variant.ORIGINAL, Variant.PIPED)]
    assert found[0] == found[1] and found[0].code in (2, 6) and found[0].err and not found[0].out
