"""The scheduling policy, as properties of a pure function."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from local_backend.scheduler.policy import CPU, GPU, Request, Slot, decide
from local_backend.scheduler.slots import cpu_slots, discover, usable_cores, visible

SLOTS = (*cpu_slots(4), *(Slot(f"gpu-{n}", GPU, f"GPU-{n}") for n in range(2)))


def job(name: str, workers: int = 1, **more: object) -> Request:
    values = {"exec_id": name, "kind": CPU, "per_worker": 1, "least": workers, "most": workers, "since": 0.0}
    return Request(**values | more)  # type: ignore[arg-type]


@st.composite
def requests(draw: st.DrawFn) -> list[Request]:
    found = []
    for number in range(draw(st.integers(0, 8))):
        most = draw(st.integers(1, 7))
        found.append(job(
            f"local-{number}", kind=draw(st.sampled_from([CPU, GPU])), per_worker=draw(st.integers(1, 3)),
            least=draw(st.sampled_from([1, most])), most=most, since=draw(st.floats(0, 100)),
            patience=draw(st.none() | st.floats(0, 50)),
        ))
    return found


free_slots = st.lists(st.sampled_from(SLOTS), unique=True)


@given(requests(), free_slots)
def test_every_job_gets_exactly_one_answer_and_no_slot_is_given_twice(jobs: list[Request], free: list[Slot]) -> None:
    decision = decide(jobs, free, SLOTS, 100.0)
    answers = [*decision.start, *decision.impossible, *decision.expired, *decision.waiting]
    assert sorted(answers) == sorted(job.exec_id for job in jobs)
    given_out = [slot for slots in decision.start.values() for slot in slots]
    assert len(given_out) == len(set(given_out))
    assert set(given_out) <= set(free)


@given(requests(), free_slots)
def test_a_started_job_has_slots_of_its_kind_for_whole_workers(jobs: list[Request], free: list[Slot]) -> None:
    decision = decide(jobs, free, SLOTS, 100.0)
    for one in jobs:
        slots = decision.start.get(one.exec_id)
        if slots is not None:
            assert {slot.kind for slot in slots} == {one.kind}
            workers, rest = divmod(len(slots), one.per_worker)
            assert rest == 0
            assert one.least <= workers <= one.most


@given(requests(), free_slots)
def test_nobody_overtakes_a_waiting_job_of_the_same_kind(jobs: list[Request], free: list[Slot]) -> None:
    decision = decide(jobs, free, SLOTS, 100.0)
    for kind in (CPU, GPU):
        names = [one.exec_id for one in jobs if one.kind == kind]
        waits = [name in decision.waiting for name in names]
        if any(waits):
            assert not any(name in decision.start for name in names[waits.index(True):])


@given(requests())
def test_an_empty_machine_runs_the_first_job_that_fits_it(jobs: list[Request]) -> None:
    decision = decide(jobs, SLOTS, SLOTS, 100.0)
    possible = [one.exec_id for one in jobs if one.exec_id not in decision.impossible]
    assert not possible or possible[0] in decision.start


def test_an_elastic_job_takes_what_is_free_and_a_fixed_one_waits_for_all() -> None:
    free = cpu_slots(4)[:3]
    assert len(decide([job("local-1", least=1, most=4)], free, SLOTS, 0).start["local-1"]) == 3
    assert decide([job("local-1", 4)], free, SLOTS, 0).waiting == {
        "local-1": "waiting for 4 CPU slots; 3 of 4 free"
    }


def test_a_blocked_cpu_job_does_not_hold_up_a_gpu_job() -> None:
    decision = decide([job("local-1", 4), job("local-2", kind=GPU)], SLOTS[1:], SLOTS, 0)
    assert list(decision.start) == ["local-2"]


def test_what_can_never_run_says_why_and_what_to_do() -> None:
    decision = decide([job("local-1", 5), job("local-2", kind=GPU, per_worker=3)], SLOTS, SLOTS, 0)
    assert decision.impossible == {
        "local-1": "asks for 5 CPU slots, and this machine has 4; use a smaller --numWorker, or a server started with "
                   "a larger DLI_SLOTS",
        "local-2": "asks for 3 GPU slots, and this machine has 2; use a smaller --workerDeviceNum",
    }


def test_a_job_that_waited_too_long_says_for_what() -> None:
    decision = decide([job("local-1", 2, since=10.0, patience=5.0)], [], SLOTS, 15.0)
    assert decision.expired == {
        "local-1": "waited longer than 5 s (--msd-pending-timeout) for 2 CPU slots"
    }


def test_the_number_of_slots_can_be_set() -> None:
    assert [slot.id for slot in discover(3)] == ["cpu-0", "cpu-1", "cpu-2"]
    assert sum(slot.kind == CPU for slot in discover()) == usable_cores()


def test_a_restriction_of_the_server_to_some_gpus_is_kept() -> None:
    devices = ["GPU-a1", "GPU-a2", "GPU-b"]
    assert visible(devices, None) == devices
    assert visible(devices, "") == []
    assert visible(devices, "2,0") == ["GPU-b", "GPU-a1"]
    assert visible(devices, "GPU-b, GPU-a2") == ["GPU-b", "GPU-a2"]
    assert visible(devices, "0,9,1") == ["GPU-a1"]
    assert visible(devices, "GPU-a") == []
