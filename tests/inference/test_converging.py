"""Decisions about the revisions of a model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from local_backend.inference.control import KernelLoad, RevisionLoad
from local_backend.inference.converging import (
    Convergence,
    KernelsSeen,
    decide,
    for_gateway,
    least_kernels,
    shown_state,
)
from local_backend.inference.profile import ModelProfile
from local_backend.store.models import DRAINING, FAILED, SERVING, STARTING, STORED, ModelRow, RevisionRow

PROFILE = ModelProfile()


def model(started: bool = True, **weights: int) -> ModelRow:
    traffic = json.dumps({name.removeprefix("r"): weight for name, weight in weights.items()})
    return ModelRow(1, "m", "alice", "[]", "{}", "", started, traffic, None, 0.0, 0.0, None, None)


def revision(number: int, state: str, exec_id: str | None = "") -> RevisionRow:
    found = f"local-{number}" if exec_id == "" else exec_id
    return RevisionRow(1, number, "{}", "d" * 64, 1, "alice", 0.0, state, found, None, None)


def seen(ready: int = 0, **more: Any) -> KernelsSeen:
    kernels = tuple(KernelLoad(number + 1, 100 + number, True) for number in range(ready))
    return KernelsSeen(**{"alive": True, "load": RevisionLoad(kernels=kernels)} | more)


GONE = KernelsSeen()


def decided(row: ModelRow, *pairs: tuple[RevisionRow, KernelsSeen], profile: ModelProfile = PROFILE) -> Convergence:
    return decide(row, [one for one, _ in pairs], {one.number: found for one, found in pairs}, profile)


def states(found: Convergence) -> Mapping[int, str]:
    return {number: state for number, (state, _) in found.states.items()}


def test_a_started_model_starts_the_revisions_with_requests() -> None:
    found = decided(model(r1=0, r2=100), (revision(1, STORED, None), GONE), (revision(2, STORED, None), GONE))
    assert (states(found), found.submit) == ({2: STARTING}, {2})


def test_a_starting_revision_serves_when_its_kernels_are_ready() -> None:
    row = model(r1=100)
    assert not decided(row, (revision(1, STARTING), seen()))
    assert states(decided(row, (revision(1, STARTING), seen(1)))) == {1: SERVING}
    two = replace(PROFILE, kernel_min=2)
    assert not decided(row, (revision(1, STARTING), seen(1)), profile=two)
    assert states(decided(row, (revision(1, STARTING), seen(2)), profile=two)) == {1: SERVING}


def test_a_model_at_zero_serves_without_a_kernel() -> None:
    found = decided(model(r1=100), (revision(1, STARTING), seen()), profile=replace(PROFILE, kernel_min=0))
    assert states(found) == {1: SERVING}


def test_a_new_revision_takes_over_when_it_is_ready_and_the_old_one_drains() -> None:
    row, old = model(r1=100), (revision(1, SERVING), seen(1))
    assert not decided(row, old, (revision(2, STARTING), seen()))
    # Also of a model that may be at zero: the new revision must prove that it works.
    assert not decided(row, old, (revision(2, STARTING), seen()), profile=replace(PROFILE, kernel_min=0))
    found = decided(row, old, (revision(2, STARTING), seen(1)))
    assert (states(found), found.traffic) == ({1: DRAINING, 2: SERVING}, {2: 100})


def test_the_old_revision_goes_on_when_the_new_one_fails() -> None:
    found = decided(model(r1=100), (revision(1, SERVING), seen(1)),
                    (revision(2, STARTING), KernelsSeen(failure="no module named x")))
    assert (found.states, found.traffic, found.stop) == ({2: (FAILED, "no module named x")}, None, frozenset())


def test_a_drained_revision_is_stopped_and_then_stored() -> None:
    row, new = model(r2=100), (revision(2, SERVING), seen(1))
    assert not decided(row, (revision(1, DRAINING), seen(1)), new)
    assert decided(row, (revision(1, DRAINING), seen(1, drained=True)), new).stop == {1}
    assert not decided(row, (revision(1, DRAINING), seen(1, drained=True, stopping=True)), new)
    assert states(decided(row, (revision(1, DRAINING), KernelsSeen(failure="stopped")), new)) == {1: STORED}


def test_a_revision_that_gets_requests_again_stops_draining() -> None:
    assert states(decided(model(r1=100), (revision(1, DRAINING), seen(1)))) == {1: SERVING}
    assert not decided(model(r1=100), (revision(1, DRAINING), seen(1, stopping=True)))


def test_a_split_waits_for_all_its_revisions() -> None:
    row = model(r2=50, r3=50)
    waiting = decided(row, (revision(1, SERVING), seen(1)), (revision(2, STARTING), seen()),
                      (revision(3, SERVING), seen(1)))
    assert not waiting
    found = decided(row, (revision(1, SERVING), seen(1)), (revision(2, STARTING), seen(1)),
                    (revision(3, SERVING), seen(1)))
    assert states(found) == {1: DRAINING, 2: SERVING}


def test_a_stopped_model_drains() -> None:
    found = decided(model(False, r1=100), (revision(1, SERVING), seen(1)), (revision(2, STARTING), seen()))
    assert states(found) == {1: DRAINING, 2: DRAINING}


def test_a_revision_that_served_gets_another_exec_and_one_that_never_did_fails() -> None:
    row = model(r1=100)
    again = decided(row, (revision(1, SERVING), KernelsSeen(failure="killed")))
    assert (again.states, again.submit) == ({1: (STARTING, "killed")}, {1})
    never = decided(row, (revision(1, SERVING), KernelsSeen(failure="broken", proved=False)))
    assert never.states == {1: (FAILED, "broken")}
    assert decided(row, (revision(1, FAILED), GONE)) == Convergence()


def test_the_exec_of_a_failed_revision_is_stopped() -> None:
    assert decided(model(r1=100), (revision(1, FAILED), seen())).stop == {1}


def gateway_of(row: ModelRow, *rows: RevisionRow) -> dict[int, tuple[str, int]]:
    keys = {one.number: f"key-{one.number}" for one in rows}
    return {one.number: (one.state, one.weight) for one in for_gateway(row, rows, keys, {})}


def test_a_revision_gets_no_requests_before_it_is_ready_while_others_serve() -> None:
    assert gateway_of(model(r1=90, r2=10), revision(1, SERVING), revision(2, STARTING)) == {
        1: ("serving", 90), 2: ("starting", 0)}
    assert gateway_of(model(r1=90, r2=10), revision(1, STARTING), revision(2, STARTING)) == {
        1: ("starting", 90), 2: ("starting", 10)}


def test_the_old_revision_gets_all_requests_until_the_promoted_one_is_ready() -> None:
    assert gateway_of(model(r2=100), revision(1, SERVING), revision(2, STARTING)) == {
        1: ("serving", 100), 2: ("starting", 0)}
    assert gateway_of(model(r1=100), revision(1, STORED), revision(2, STARTING, None)) == {}


def test_a_new_revision_begins_with_as_many_kernels_as_the_old_one_has() -> None:
    rows = [revision(1, SERVING), revision(2, STARTING)]
    found = {1: seen(3), 2: seen()}
    assert least_kernels(rows[1], rows, found, PROFILE) == 3
    assert least_kernels(rows[1], rows, found, replace(PROFILE, kernel_max=2)) == 2
    assert least_kernels(rows[0], rows, found, PROFILE) == 1
    zero = replace(PROFILE, kernel_min=0)
    assert least_kernels(rows[1], rows, {1: seen(0), 2: seen()}, zero) == 1
    assert least_kernels(rows[1], rows[1:], {2: seen()}, zero) == 0


@pytest.mark.parametrize(("started", "found", "shown"), [
    (False, [STORED], STORED), (False, [DRAINING], SERVING), (True, [STARTING], STARTING), (True, [SERVING], SERVING),
    (True, [FAILED], FAILED), (True, [STORED], STARTING),
])
def test_the_state_of_a_model(started: bool, found: list[str], shown: str) -> None:
    rows = [revision(number, state) for number, state in enumerate(found, 1)]
    assert shown_state(model(started, r1=100), rows) == shown
