"""Hyperband and ASHA."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated import Simulation, rung_search

from local_backend.hypersearch import rungs
from local_backend.hypersearch.definition import Known, Value

TABLE = [[(81, 1), (27, 3), (9, 9), (3, 27), (1, 81)], [(34, 3), (11, 9), (3, 27), (1, 81)],
         [(15, 9), (5, 27), (1, 81)], [(8, 27), (2, 81)], [(5, 81)]]
resumes = pytest.mark.parametrize("resume", [False, True])


def loss(values: dict[str, Value], resource: int | None) -> float:
    return float(values["rate"]) + 1 / (resource or 1)


def failing(values: dict[str, Value], resource: int | None) -> float | None:
    return None if float(values["rate"]) > 0.7 else loss(values, resource)


def test_the_published_schedule() -> None:
    assert [[tuple(rung) for rung in bracket] for bracket in rungs.schedule(81, 1, 3.0)] == TABLE


@given(st.integers(1, 10_000), st.integers(1, 20), st.sampled_from([1.5, 2.0, 2.7, 3.0, 4.0]))
def test_every_bracket_ends_with_the_whole_resource(most: int, least: int, eta: float) -> None:
    for bracket in rungs.schedule(most, min(least, most), eta):
        assert bracket[-1].resource == most
        assert all(low.resource < high.resource and low.size >= high.size
                   for low, high in itertools.pairwise(bracket))
        assert bracket[0].resource >= min(least, most)


def test_few_experiments_stay_at_the_first_rung() -> None:
    """A recorded search with 8 experiments trained each for 1 epoch."""
    search = Simulation(rung_search("Hyperband", 81, maxJobNum=8, maxParalleJobNum=4), loss)
    assert [one.resource for one in search.run(random.Random(1))] == [1] * 8


def test_hyperband_runs_the_whole_schedule() -> None:
    search = Simulation(rung_search("Hyperband", 81, maxParalleJobNum=7), loss)
    known = search.run(random.Random(1))
    wanted = {(bracket, rung): size for bracket, row in enumerate(TABLE) for rung, (size, _) in enumerate(row)}
    assert Counter((one.bracket, one.rung) for one in known) == wanted
    for one in known:
        if one.origin is not None:
            before = known[one.origin]
            assert (before.parameters, before.bracket, before.rung) == (one.parameters, one.bracket, one.rung - 1)
    first = sorted((one for one in known if (one.bracket, one.rung) == (0, 0)), key=lambda one: (one.value, one.id))
    assert {one.origin for one in known if (one.bracket, one.rung) == (0, 1)} == {one.id for one in first[:27]}


@resumes
@given(seed=st.integers(0, 1000), parallel=st.integers(1, 9), most=st.none() | st.integers(1, 30))
def test_batches_do_not_depend_on_the_order_of_ends(resume: bool, seed: int, parallel: int, most: int | None) -> None:
    found = rung_search("Hyperband", 9, maxJobNum=most or -1, maxParalleJobNum=parallel, resume=resume)
    runs = [Simulation(found, failing) for _ in range(2)]
    tables = [[(one.id, one.parameters, one.resource, one.state, one.value) for one in search.run(random.Random(order))]
              for order, search in zip((seed, seed + 1), runs, strict=True)]
    assert tables[0] == tables[1]
    assert all(search.most_active <= parallel for search in runs)
    assert most is None or len(tables[0]) <= most


@given(seed=st.integers(0, 1000), parallel=st.integers(1, 9))
def test_resting_experiments_pass_the_same_rungs_as_new_trainings(seed: int, parallel: int) -> None:
    """With resume, each experiment stands for all its trainings."""
    order = random.Random(seed)
    again = Simulation(rung_search("Hyperband", 9, maxParalleJobNum=parallel), loss).run(order)
    same = Simulation(rung_search("Hyperband", 9, maxParalleJobNum=parallel, resume=True), loss).run(order)
    assert len(again) == 22 and len(same) == 9 + 5 + 3
    reached = {str(one.parameters): max(other.resource or 0 for other in again if other.parameters == one.parameters)
               for one in again}
    assert {str(one.parameters): one.resource for one in same} == reached


@resumes
@given(seed=st.integers(0, 1000), parallel=st.integers(1, 9), most=st.integers(1, 40))
def test_asha_promotes_only_the_best(resume: bool, seed: int, parallel: int, most: int) -> None:
    found = rung_search("ASHA", 9, maxJobNum=most, maxParalleJobNum=parallel, resume=resume)
    search = Simulation(found, failing)
    known = search.run(random.Random(seed))
    assert len(known) == most
    assert search.most_active <= parallel
    trained = Counter(rung for one in known for rung in range(one.rung + 1 if resume else 0))
    trained = trained if resume else Counter(one.rung for one in known)
    for rung in (1, 2):
        ended = sum(rungs.value_at(one, rung - 1) is not None for one in known if resume or one.rung == rung - 1)
        # One promotion for each eta results; the first eta of a rung give one.
        assert trained[rung] <= ended
        if resume and parallel == 1:
            assert trained[rung] >= ended // 3


def test_asha_prefers_the_highest_rung() -> None:
    found = rung_search("ASHA", 9, maxJobNum=50, maxParalleJobNum=2, resume=True)
    known = [Known(number, {"rate": number / 10}, "resting", resource=1, value=float(number), values=(float(number),))
             for number in range(3)]
    known += [Known(number, {"rate": number / 10}, "resting", resource=3, rung=1, value=float(number),
                    values=(float(number), float(number))) for number in range(3, 6)]
    moves = rungs.asha(found, 1, known)
    first, second = next(moves), next(moves)
    assert first.promote == (3, 2, 9)
    assert second.promote == (0, 1, 3)


def test_a_value_of_a_passed_rung_must_be_known() -> None:
    with pytest.raises(ValueError, match="rung 0"):
        rungs.value_at(Known(1, {}, "running", rung=1), 0)
