"""Tables: aligned, and cut to the width of a terminal."""

from __future__ import annotations

from unittest import mock

from client_desk import Desk
from fake_server import FakeServer, exec_object
from hypothesis import given
from hypothesis import strategies as st

from dlicmd.cli.show.table import column_width, grid, table

LONG = "a very long name of an application " * 3


def test_a_list_fits_a_narrow_terminal_and_keeps_its_ids(desk: Desk, local: FakeServer) -> None:
    local.execs |= {name: exec_object(name, appName=LONG) for name in ("cpd-1", "cpd-1234")}
    lines = desk.on_a_terminal("--exec-get-all", NO_COLOR="1").splitlines()
    assert len(lines) == 3 and max(map(len, lines)) <= 80, lines
    assert [line.split()[0] for line in lines] == ["id", *local.execs]
    assert "…" in lines[1]


def test_a_list_in_a_pipe_is_complete(desk: Desk, local: FakeServer) -> None:
    desk.environment["COLUMNS"] = "64"
    local.execs["cpd-1"] = exec_object("cpd-1", appName=LONG)
    done = desk.run("--exec-get-all")
    assert LONG.strip() in done.out and "…" not in done.out


@given(st.lists(st.tuples(st.text("abc", min_size=1, max_size=10), st.text(max_size=40), st.text()), max_size=5),
       st.integers(10 + 2 * (2 + 11), 100))
def test_rows_fit_the_width_and_keep_their_ids(rows: list[tuple[str, str, str]], width: int) -> None:
    columns = ("id", "b", "c")
    terminal = mock.patch("dlicmd.cli.show.table.terminal_width", return_value=width)
    with mock.patch("sys.stdout.isatty", return_value=True), terminal:
        lines = table([dict(zip(columns, row, strict=True)) for row in rows], columns).split("\n")
    assert [line.partition(" ")[0] for line in lines] == ["id", *(row[0] for row in rows)]
    assert all(column_width(line) <= width for line in lines), lines


@given(st.lists(st.lists(st.text(), max_size=30), max_size=5), st.integers(8, 100))
def test_a_grid_of_any_rows_fits_the_width(rows: list[list[str]], width: int) -> None:
    terminal = mock.patch("dlicmd.cli.show.table.terminal_width", return_value=width)
    with mock.patch("sys.stdout.isatty", return_value=True), terminal:
        lines = grid(rows).split("\n")
    assert len(lines) == (len(rows) if any(rows) else 1) and all(column_width(line) <= width for line in lines), lines


def test_columns_that_do_not_fit_are_replaced_by_an_ellipsis() -> None:
    rows = [["id", "a long heading", *"abcdefgh"], ["7", "x", *(["0.25"] * 8)]]
    narrow = mock.patch("dlicmd.cli.show.table.terminal_width", return_value=24)
    with mock.patch("sys.stdout.isatty", return_value=True), narrow:
        assert grid(rows) == "id  a lo…  a     b     …\n7   x      0.25  0.25  …"
    with mock.patch("sys.stdout.isatty", return_value=False), narrow:
        assert "…" not in grid(rows), "a table in a pipe must be complete"


def test_a_list_leaves_out_columns_before_it_cuts_names_short(desk: Desk, local: FakeServer) -> None:
    local.execs["cpd-1"] = exec_object("cpd-1", appName="a name with 26 characters!")
    head, line = desk.on_a_terminal("--exec-get-all", NO_COLOR="1").splitlines()
    assert max(len(head), len(line)) <= 80 and "a name with 26 …" in line
    assert "type" not in head.split() and {"id", "name", "state", "submit"} <= set(head.split())
