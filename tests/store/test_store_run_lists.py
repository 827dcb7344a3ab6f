"""Lists of execs equal those that a simple filter and sort in Python finds, on every database."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Connection
from workloads import workload

from dlicmd.contract.states import ERROR, FINISHED, KILLED, PENDING, RUNNING
from local_backend.store import execs, labels, run_lists
from local_backend.store.database import Database
from local_backend.store.run_lists import ListedExecs, Term, TermField

COUNT = 24
Check = Callable[[int], Any]


@pytest.fixture
def filled(database: Database) -> Database:
    """A database with execs of two users: every 3rd has finished with a loss, every 5th failed, the others wait."""

    def fill(connection: Connection) -> None:
        for number in range(1, COUNT + 1):
            spec = workload(id=execs.exec_id(execs.next_number(connection)), creator=creator(number),
                            name=f"Run {number % 7}", arguments=("--lr", f"0.{number:02}", f"--seed={number}"))
            row = execs.create(connection, number, spec, "args ", None, "/work")
            for state in states(number):
                values = {"progress": json.dumps({"loss": loss(number)})} if state == FINISHED else {}
                execs.transition(connection, row.id, state, **values)
        labels.add_tags(connection, ["local-2", "local-9"], ["best", "b_%/"])
        labels.add_tags(connection, ["local-5"], ["Best2"])
        labels.write_note(connection, ["local-5"], "text")
        labels.like(connection, ["local-1", "local-5"], "ada", True)

    database.write(fill)
    return database


def creator(number: int) -> str:
    return "ada" if number % 2 else "bob"


def loss(number: int) -> float:
    return (number * 7 % 11) / 10


def states(number: int) -> list[str]:
    if number % 3 == 0:
        return [PENDING, RUNNING, FINISHED]
    return [PENDING, RUNNING, ERROR] if number % 5 == 0 else [PENDING, KILLED] if number == 1 else []


def listed(database: Database, **wanted: Any) -> tuple[list[int], int]:
    rows, total = database.read(lambda c: run_lists.listed(c, ListedExecs(user="ada", **wanted)))
    return [row.number for row in rows], total


TERMS: list[tuple[Term, Check]] = [
    (Term(TermField.WORD, ("rUn 3",)), lambda n: n % 7 == 3),
    (Term(TermField.WORD, ("best",)), lambda n: n in (2, 5, 9)),
    (Term(TermField.WORD, ("b_%",)), lambda n: n in (2, 9)),
    (Term(TermField.WORD, ("FINI",)), lambda n: n % 3 == 0),
    (Term(TermField.WORD, ("--seed=1",)), lambda n: str(n).startswith("1")),
    (Term(TermField.WORD, ("ada",), negated=True), lambda n: n % 2 == 0),
    (Term(TermField.PARAMETER, ("0.07",), name="lr"), lambda n: n == 7),
    (Term(TermField.PARAMETER, ("1",), name="SEED"), lambda n: n == 1),
    (Term(TermField.TAG, ("best", "Best2")), lambda n: n in (2, 5, 9)),
    (Term(TermField.TAG, ("BEST",)), lambda n: False),
    (Term(TermField.STATE, (FINISHED, ERROR)), lambda n: n % 3 == 0 or n % 5 == 0),
    (Term(TermField.FAVORITE, ("favorite",)), lambda n: n in (1, 5)),
    (Term(TermField.FAVORITE, ("favorite",), negated=True), lambda n: n not in (1, 5)),
    (Term(TermField.AMOUNT, ("0.5",), name="loss", operator="<="), lambda n: n % 3 == 0 and loss(n) <= 0.5),
    (Term(TermField.NAME, ("uN 2",)), lambda n: n % 7 == 2),
    (Term(TermField.ID, ("7",)), lambda n: n == 7),
    (Term(TermField.ID, ("local-8",)), lambda n: n == 8),
    (Term(TermField.USER, ("ADA",)), lambda n: n % 2 == 1),
    (Term(TermField.FRAMEWORK, ("no",)), lambda n: False),
]


@pytest.mark.parametrize("at", range(len(TERMS)))
def test_a_term_selects(filled: Database, at: int) -> None:
    term, fits = TERMS[at]
    expected = [number for number in range(1, COUNT + 1) if fits(number)]
    assert listed(filled, terms=(term,)) == (expected, len(expected))
    both = [number for number in expected if number % 2]
    assert listed(filled, terms=(term,), creator="ada") == (both, len(both))
    assert listed(filled, terms=(term,), most=2, offset=1) == (expected[1:3], len(expected))
    counts = filled.read(lambda c: run_lists.counts(c, ListedExecs(terms=(term,), user="ada")))
    assert sum(counts.values()) == len(expected)


@pytest.mark.parametrize("sort", ["number", "state", "framework", "app_name", "start_time", "end_time", "creator",
                                  "num_worker", "duration", "loss", "accuracy", "tag", "favorite"])
@pytest.mark.parametrize("descending", [False, True])
def test_pages_of_every_order_make_the_whole_list(filled: Database, sort: str, descending: bool) -> None:
    whole, total = listed(filled, sort=sort, descending=descending)
    assert sorted(whole) == list(range(1, COUNT + 1)) and total == COUNT
    paged = [listed(filled, sort=sort, descending=descending, most=7, offset=at) for at in range(0, COUNT, 7)]
    assert [number for page, _ in paged for number in page] == whole and {count for _, count in paged} == {COUNT}
    assert listed(filled, sort=sort, descending=descending, offset=20)[0] == whole[20:]
    if sort == "loss":
        known = [loss(number) for number in whole[:8]]
        assert known == sorted(known, reverse=descending) and all(number % 3 for number in whole[8:])


def test_other_selections(filled: Database) -> None:
    assert listed(filled, states=frozenset({ERROR}))[0] == [5, 10, 20]
    assert listed(filled, parents=frozenset()) == ([], 0)
    assert listed(filled, kind="service") == ([], 0)
    assert listed(filled, most=0) == ([], COUNT)
    filled.write(lambda c: execs.note(c, "local-5", deleted=True))
    assert 5 not in listed(filled)[0] and filled.read(lambda c: labels.used_tags(c, None, 9)) == {"b_%/": 2, "best": 2}


def test_labels_are_those_of_each_user_and_go_with_the_exec(filled: Database) -> None:
    def seen(user: str) -> labels.Labels | None:
        return filled.read(lambda c: labels.of(c, ["local-5", "local-6"], user)).get("local-5")

    assert seen("ada") == labels.Labels("text", ("Best2",), True) and seen("bob") == labels.Labels("text", ("Best2",))
    filled.write(lambda c: execs.remove(c, "local-5"))
    assert seen("ada") is None and listed(filled, terms=(Term(TermField.WORD, ("0.05",)),)) == ([], 0)
