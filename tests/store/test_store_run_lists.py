"""Lists of execs equal those that a simple filter and sort in Python finds, on every database."""

from __future__ import annotations

import itertools
import json
import operator
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Connection
from workloads import workload

from dlicmd.contract.states import ERROR, FINISHED, KILLED, PENDING, RUNNING
from local_backend.run_values import KINDS, METRIC, PARAMETER, ValueName
from local_backend.store import execs, labels, run_lists
from local_backend.store.database import Database
from local_backend.store.run_lists import ListedExecs, Term, TermField

COUNT = 24
Check = Callable[[int], Any]


@pytest.fixture(scope="module")
def filled(shared: Database) -> Database:
    """A database for all tests that only read."""
    return fill(shared)


@pytest.fixture
def changing(database: Database) -> Database:
    """A database for one test."""
    return fill(database)


def fill(database: Database) -> Database:
    """Store execs of two users: every 3rd has finished with metrics, every 5th failed, the others wait."""

    def create(connection: Connection) -> None:
        for number in range(1, COUNT + 1):
            spec = workload(id=execs.exec_id(execs.next_number(connection)), creator=creator(number),
                            name=f"Run {number % 7}", arguments=arguments(number))
            row = execs.create(connection, number, spec, "args ", None, "/work")
            for state in states(number):
                values = {"progress": json.dumps(progress(number))} if state == FINISHED else {}
                execs.transition(connection, row.id, state, **values)
        labels.add_tags(connection, ["local-2", "local-9"], ["best", "b_%/"])
        labels.add_tags(connection, ["local-5"], ["Best2"])
        labels.write_note(connection, ["local-5"], "text")
        labels.like(connection, ["local-1", "local-5"], "ada", True)

    database.write(create)
    return database


def creator(number: int) -> str:
    return "ada" if number % 2 else "bob"


def loss(number: int) -> float:
    return (number * 7 % 11) / 10


def arguments(number: int) -> tuple[str, ...]:
    """Every exec has parameters with numbers, some a text or a number, or none."""
    mode = (("--mode", "fast"), ("--mode", f"{number}"), ("--mode",), ())[number % 4]
    return "--lr", f"0.{number:02}", f"--seed={number}", *mode


def progress(number: int) -> dict[str, Any]:
    last = {"F1": number / 10, "lr": 1 / number} if number % 2 else {"val accuracy": number / 100}
    return {"loss": loss(number), "lastMetrics": {name: {"value": value, "step": 1} for name, value in last.items()}}


def value(name: ValueName, number: int) -> float | str | None:
    """Return the value of an exec as a simple reader finds it."""
    if name.kind == PARAMETER:
        found = dict(zip(arguments(number)[3::2], arguments(number)[4::2], strict=False))
        known = {"lr": number / 100, "seed": float(number), "mode": found.get("--mode", "True")}
        mode = known["mode"] if "--mode" in arguments(number) else None
        known["mode"] = float(str(mode)) if str(mode).isdigit() else mode
        return known.get(name.name)
    if number % 3:
        return None
    one = progress(number)
    metrics = {key: metric["value"] for key, metric in one["lastMetrics"].items()} | {"loss": one["loss"]}
    return metrics.get(name.name, metrics.get("val accuracy") if name.name == "accuracy" else None)


NAMES = [*(ValueName(METRIC, name) for name in ("loss", "accuracy", "val accuracy", "F1", "lr", "none")),
         *(ValueName(PARAMETER, name) for name in ("lr", "seed", "mode", "F1"))]


def test_values_are_compared(filled: Database) -> None:
    """Also in another case of letters; without a kind, a metric counts before a parameter."""
    operators = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
    whole = range(1, COUNT + 1)

    def fits(name: ValueName, compare: Callable[[Any, Any], bool], limit: float, number: int) -> bool:
        kinds = [name.kind] if name.kind else KINDS
        one = next((found for kind in kinds if (found := value(ValueName(kind, name.name), number)) is not None), None)
        return isinstance(one, float) and compare(one, limit)

    names = [*NAMES, *(ValueName("", name.name) for name in NAMES)]
    for name, sign, limit, negated in itertools.product(names, operators, (0.05, 0.5, 1.5), (False, True)):
        term = Term(TermField.AMOUNT, (str(limit),), negated, name.name.swapcase(), sign, name.kind)
        expected = [number for number in whole if fits(name, operators[sign], limit, number) != negated]
        assert listed(filled, terms=(term,)) == (expected, len(expected)), term


def test_values_are_equal_as_numbers_and_as_texts(filled: Database) -> None:
    """In any case of letters, and in any spelling of a number; without a kind, metric and parameter count."""
    for name, wanted in itertools.product(NAMES, ("0.070", "7e-2", "FAST", "1", "none")):
        term = Term(TermField.VALUE, (wanted,), name=name.name.swapcase(), kind=name.kind)
        try:
            same = float(wanted).__eq__
        except ValueError:
            same = wanted.lower().__eq__
        expected = [number for number in range(1, COUNT + 1) if (one := value(name, number)) is not None
                    and same(one.lower() if isinstance(one, str) else one) is True]
        assert listed(filled, terms=(term,)) == (expected, len(expected)), term


@pytest.mark.parametrize("name", NAMES, ids=str)
@pytest.mark.parametrize("descending", [False, True])
def test_values_are_an_order(filled: Database, name: ValueName, descending: bool) -> None:
    """Numbers come before texts, and execs without the value last. Pages make the whole list."""
    for creator in (None, "ada"):
        numbers = [number for number in range(1, COUNT + 1) if creator is None or number % 2]
        known = {number: value(name, number) for number in numbers}
        amounts, texts = ([number for number in numbers if isinstance(known[number], kind)] for kind in (float, str))
        for some in (amounts, texts):
            some.sort(key=lambda number, known=known: known[number], reverse=descending)  # type: ignore[misc]
        expected = [*amounts, *texts, *(number for number in numbers if known[number] is None)]
        order = {"sort": name, "descending": descending, "creator": creator}
        assert listed(filled, **order) == (expected, len(numbers))
        for at in range(0, COUNT + 7, 7):
            assert listed(filled, **order, most=7, offset=at) == (expected[at : at + 7], len(numbers))
        assert listed(filled, **order, offset=20)[0] == expected[20:]


def test_the_names_of_values_are_counted(filled: Database) -> None:
    def names(newest: int = COUNT, **wanted: Any) -> dict[str, int]:
        found = filled.read(lambda c: run_lists.value_names(c, ListedExecs(**wanted), newest))
        return {str(name): count for name, count in found.items()}

    expected = {str(name): sum(value(name, number) is not None for number in range(1, COUNT + 1)) for name in NAMES}
    assert names() == {name: count for name, count in expected.items() if count}
    assert list(names(creator="ada").items())[:2] == [("param.lr", 12), ("param.seed", 12)]
    assert names(newest=1) == {"metric.loss": 1, "metric.accuracy": 1, "metric.val accuracy": 1, "param.lr": 1,
                               "param.seed": 1, "param.mode": 1}
    spelled = filled.read(lambda c: run_lists.value_spellings(c, ListedExecs(), "LR"))
    assert spelled == [ValueName(METRIC, "lr"), ValueName(PARAMETER, "lr")]


def test_metrics_replace_those_of_an_earlier_attempt(changing: Database) -> None:
    def count(name: ValueName) -> int:
        found = changing.read(lambda c: run_lists.value_names(c, ListedExecs(creator="new"), 9))
        return found.get(name, 0)

    spec = workload(id="local-25", creator="new", arguments=("--lr", "1"))
    changing.write(lambda c: execs.create(c, 25, spec, "", None, "/work"))
    for name, state in (("old", PENDING), ("new", FINISHED)):
        for to in (RUNNING, state):
            done = json.dumps({"lastMetrics": {name: {"value": 1, "step": 1}}}) if to == state else None
            changing.write(lambda c, to=to, done=done: execs.transition(c, "local-25", to, progress=done))
    assert (count(ValueName(METRIC, "old")), count(ValueName(METRIC, "new"))) == (0, 1)
    changing.write(lambda c: execs.remove(c, "local-25"))
    query = "SELECT count(*) FROM exec_values WHERE number = 25"
    assert changing.read(lambda c: c.exec_driver_sql(query).scalar()) == 0


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
    (Term(TermField.VALUE, ("0.07",), name="lr"), lambda n: n == 7),
    (Term(TermField.VALUE, ("1",), name="SEED"), lambda n: n == 1),
    (Term(TermField.VALUE, ("1.0",), name="SEED", kind="param"), lambda n: n == 1),
    (Term(TermField.VALUE, ("1.0",), name="SEED", kind="metric"), lambda n: False),
    (Term(TermField.TAG, ("best", "Best2")), lambda n: n in (2, 5, 9)),
    (Term(TermField.TAG, ("BEST",)), lambda n: False),
    (Term(TermField.STATE, (FINISHED, ERROR)), lambda n: n % 3 == 0 or n % 5 == 0),
    (Term(TermField.FAVORITE, ("favorite",)), lambda n: n in (1, 5)),
    (Term(TermField.FAVORITE, ("favorite",), negated=True), lambda n: n not in (1, 5)),
    (Term(TermField.AMOUNT, ("0.5",), name="Loss", operator="<="), lambda n: n % 3 == 0 and loss(n) <= 0.5),
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


#: How lists in an order begin.
BEGINS = {
    ("number", False): [1, 2, 3, 4], ("number", True): [24, 23, 22, 21], ("tag", False): [5, 2, 9, 1],
    ("tag", True): [2, 9, 5, 1], ("creator", True): [2, 4, 6, 8], ("app_name", False): [7, 14, 21, 1],
    ("favorite", True): [1, 5, 2, 3], ("state", False): [5, 10, 20, 3],
}


@pytest.mark.parametrize("sort", ["number", "state", "framework", "app_name", "start_time", "end_time", "creator",
                                  "num_worker", "duration", "tag", "favorite"])
@pytest.mark.parametrize("descending", [False, True])
def test_pages_of_every_order_make_the_whole_list(filled: Database, sort: str, descending: bool) -> None:
    whole, total = listed(filled, sort=sort, descending=descending)
    assert sorted(whole) == list(range(1, COUNT + 1)) and total == COUNT
    assert whole[:4] == BEGINS.get((sort, descending), whole[:4])
    paged = [listed(filled, sort=sort, descending=descending, most=7, offset=at) for at in range(0, COUNT, 7)]
    assert [number for page, _ in paged for number in page] == whole and {count for _, count in paged} == {COUNT}
    assert listed(filled, sort=sort, descending=descending, offset=20)[0] == whole[20:]


def test_other_selections(changing: Database) -> None:
    assert listed(changing, states=frozenset({ERROR}))[0] == [5, 10, 20]
    assert listed(changing, parents=frozenset()) == ([], 0)
    assert listed(changing, kind="service") == ([], 0)
    assert listed(changing, most=0) == ([], COUNT)
    changing.write(lambda c: execs.note(c, "local-5", deleted=True))
    assert 5 not in listed(changing)[0]
    assert changing.read(lambda c: labels.used_tags(c, None, 9)) == {"b_%/": 2, "best": 2}


def test_labels_are_those_of_each_user_and_go_with_the_exec(changing: Database) -> None:
    def seen(user: str) -> labels.Labels | None:
        return changing.read(lambda c: labels.of(c, ["local-5", "local-6"], user)).get("local-5")

    assert seen("ada") == labels.Labels("text", ("Best2",), True) and seen("bob") == labels.Labels("text", ("Best2",))
    changing.write(lambda c: execs.remove(c, "local-5"))
    assert seen("ada") is None and listed(changing, terms=(Term(TermField.WORD, ("0.05",)),)) == ([], 0)
