"""Ways in which sharing slots goes wrong over time: endless moves, starvation, promises made twice."""

from dataclasses import replace

import pytest
from world import World, cpu_slots, job

from local_backend.scheduler.model import GPU, WHOLE, Plan, Slot
from local_backend.scheduler.policy import decide

HOUR = 3600.0
HALF = WHOLE // 2
A, B = ("local", "a"), ("local", "b")


def tree(*children):
    return Plan("local", children=children)


def stream(world, hours, priority=5000, **values):
    """Every ten minutes a new job of one slot comes, and the oldest of those that run ends; True once local-1 runs,
    with slots."""
    for number in range(int(hours * 6)):
        world.submit(job(1000 + number, since=world.now, priority=priority, **values))
        world.turn()
        world.wait(600)
        running = sorted((one for one in world.jobs.values() if one.running and one.exec_id != "local-1"),
                         key=lambda one: one.started)
        if running:
            world.end(running[0].exec_id)
        world.turn()
        if world.jobs["local-1"].slots:
            return True
    return False


# --- endless moves


@pytest.mark.parametrize(("slots", "jobs"), [(3, 2), (5, 2), (7, 3), (5, 3)])
@pytest.mark.parametrize("pause", [0.0, 0.5, 2.0])
def test_the_odd_slot_changes_hands_now_and_then_and_not_all_the_time(slots, jobs, pause):
    world = World(slots)
    world.submit(*(job(n, 1, 8, since=0.0, pause=pause, step=0.2) for n in range(1, jobs + 1)))
    world.turn()
    world.settle(HOUR)
    assert 20 <= world.moves <= 100, "two moves for about every 60 slot-seconds of difference"


def test_workers_that_are_kept_for_a_while_keep_their_memory():
    world = World(4, tree(Plan("a", weight=0.5), Plan("b")), memory=6)
    world.submit(job(1, 1, 4, memory=2, plan=A, since=0.0), job(2, 1, 4, memory=2, pause=2.0, plan=B, since=0.0))
    world.turn()
    world.settle(600)
    assert world.moves <= 20


def test_nobody_is_stopped_for_an_owner_who_would_not_get_the_slot():
    world = World(1, tree(Plan("a"), Plan("b", reclaim_grace=120.0)))
    world.submit(job(1, plan=B, since=0.0))
    world.turn()
    world.submit(job(2, plan=A, since=1.0))
    for _ in range(10):
        world.wait(121)
        world.turn()
        assert not world.decision.reclaim
    assert world.jobs["local-1"].running != world.jobs["local-2"].running


def test_nobody_is_stopped_when_the_head_of_the_queue_would_be_in_the_way():
    grace = Plan("c", reclaim_grace=0.0)
    world = World(4, tree(Plan("a"), Plan("b"), grace))
    world.submit(*(job(n, plan=("local", "c")) for n in range(1, 5)))
    world.turn()
    world.submit(job(8, 4, plan=A), job(9, 1, plan=B))
    for _ in range(3):
        world.wait(100)
        world.turn()
    assert sum(one.running for one in world.jobs.values()) == 4, "no slot is idle"


def test_what_is_out_of_service_is_no_gain():
    world = World(4, tree(Plan("a", reserved=2), Plan("b", reclaim_grace=0.0)))
    world.submit(*(job(n, plan=B) for n in range(1, 5)))
    world.turn()
    lost = [slot for n in (3, 4) for slot in world.jobs[f"local-{n}"].slots]
    world.machine = replace(world.machine, drained=dict.fromkeys(lost, "lost"))
    world.wait(9)
    world.submit(job(9, plan=A, since=world.now))
    decision = decide(world.machine, world.plans, world.jobs.values(), world.now)
    assert list(decision.reclaim) == ["local-2"], "the youngest on a slot that can be used"


def test_whoever_begins_or_is_leaving_already_is_not_stopped_for_others():
    world = World(2, tree(Plan("a"), Plan("b", reclaim_grace=0.0)))
    world.submit(job(1, plan=B), job(2, plan=B))
    world.turn()
    world.submit(job(3, plan=A))
    one, two = world.jobs["local-1"], world.jobs["local-2"]
    for changes, expected in [
        ({}, ["local-2"]), ({"movable": False}, ["local-1"]), ({"movable": False, "leaving": True}, []),
        ({"movable": False, "elastic": True}, ["local-1"]),
    ]:
        jobs = [one, replace(two, **changes), world.jobs["local-3"]]
        assert list(decide(world.machine, world.plans, jobs, 9.0).reclaim) == expected


# --- what is reserved


def test_what_is_reserved_for_a_plan_is_not_given_to_fixed_jobs_while_it_is_used():
    world = World(4, tree(Plan("a", reserved=4), Plan("b")))
    world.submit(job(1, 1, 8, plan=A))
    world.turn()
    world.submit(*(job(n, plan=B) for n in (2, 3)), job(4, 1, 4, plan=B))
    world.turn()
    assert world.slots(1) == 4
    assert {world.decision.waiting[f"local-{n}"].code for n in (2, 3, 4)} == {"RESERVED"}
    world.end("local-1")
    world.turn()
    assert [world.slots(n) for n in (2, 3, 4)] == [1, 1, 2]


def test_a_plan_gets_back_what_is_reserved_for_it_after_the_grace_when_its_job_is_elastic():
    world = World(4, tree(Plan("a", reserved=3), Plan("b", reclaim_grace=60.0)))
    world.submit(*(job(n, plan=B) for n in (2, 3, 4)))
    world.turn()
    world.submit(job(1, 1, 8, plan=A, since=world.now))
    world.turn()
    assert world.slots(1) == 1
    assert world.decision.again == 60.0
    world.wait(61)
    world.turn()
    assert world.slots(1) == 3
    assert sum(world.slots(n) for n in (2, 3, 4)) == 1


def test_reservations_below_a_plan_are_its_own():
    world = World(4, tree(Plan("a", children=(Plan("v", reserved=4),)), Plan("b")))
    world.submit(job(1, 4, plan=B, since=0.0), job(2, 1, 4, plan=("local", "a", "v"), since=1.0))
    world.turn()
    assert world.slots(2) == 4
    assert not world.jobs["local-1"].running


def test_two_plans_that_are_promised_more_than_there_is_do_not_block_each_other():
    world = World(4, tree(Plan("a", reserved=4), Plan("b", reserved=4)))
    world.submit(job(1, 3, plan=A), job(2, 3, plan=B))
    world.turn()
    assert sum(one.running for one in world.jobs.values()) == 1


def test_a_reservation_holds_below_a_plan_by_priority():
    world = World(4, tree(Plan("p", by_priority=True, children=(Plan("x", reserved=3), Plan("y")))))
    world.submit(job(1, 1, 4, plan=("local", "p", "x")), job(2, 1, 4, plan=("local", "p", "y"), priority=9000))
    world.turn()
    assert world.slots(1) == 3


@pytest.mark.parametrize("limits", [{"user_most": 1}, {"most": 4}])
def test_what_is_reserved_and_cannot_be_used_is_lent(limits):
    world = World(4, tree(Plan("a", reserved=4, **limits), Plan("b")), memory=2)
    world.submit(job(1, 1, 8, plan=A, memory=2), job(2, plan=B), job(3, 1, 4, plan=B))
    world.turn()
    assert [world.slots(n) for n in (1, 2, 3)] == [1, 1, 2]


def test_an_elastic_job_begins_on_what_is_kept_for_a_large_one():
    world = World(5, tree(Plan("a"), Plan("b", reserved=2)))
    world.submit(job(1, 4, plan=A))
    world.turn()
    world.submit(job(2, 2, plan=B), job(3, 1, 4, plan=A), job(4, plan=A))
    world.turn()
    assert (world.slots(3), world.decision.waiting["local-4"].code) == (1, "RESERVED")
    world.end("local-1")
    world.turn()
    assert world.slots(2) == 2


def test_reclaim_goes_on_though_an_elastic_job_waits_too():
    world = World(4, tree(Plan("a"), Plan("b", reclaim_grace=60.0)))
    world.submit(*(job(n, plan=B, since=0.0) for n in range(1, 5)))
    world.turn()
    world.submit(job(5, plan=A, since=0.0), job(6, 1, 4, plan=A, since=0.0))
    for _ in range(5):
        world.wait(61)
        world.turn()
    assert world.slots(5) + world.slots(6) == 2


def test_a_job_with_fixed_slots_keeps_what_is_not_reserved():
    world = World(4, tree(Plan("a", reserved=2), Plan("b")))
    world.submit(job(1, 1, 4, plan=B))
    world.turn()
    world.jobs["local-1"] = replace(world.jobs["local-1"], least=4, most=4, pinned=True)
    world.submit(job(2, 1, 4, plan=A))
    world.turn()
    assert (world.slots(1), world.slots(2)) == (2, 2)


# --- limits


def test_jobs_that_keep_their_slots_for_a_while_stay_within_the_limits():
    world = World(8, tree(Plan("training", most=4)))
    world.submit(job(1, 1, 8, step=10.0))
    world.turn()
    world.wait(1)
    world.submit(job(2, 1, 4, since=1.0))
    world.turn()
    assert world.slots(1) + world.slots(2) == 4
    world.plans = tree(Plan("training", most=2))
    world.turn()
    assert world.slots(1) + world.slots(2) == 2


@pytest.mark.parametrize(
    "world", [World(8, tree(Plan("training", most=2))), World(2), World(8, tree(Plan("training")), memory=2)]
)
def test_a_job_with_fixed_slots_gets_as_many_of_them_as_there_can_be(world):
    world.submit(job(1, 1, 8, memory=1))
    world.turn()
    one = world.jobs["local-1"]
    world.jobs["local-1"] = replace(one, least=4, most=4, pinned=True)
    world.turn()
    assert world.slots(1) == 2


def test_users_of_a_plan_with_others_below_it_compete_by_urgency_among_themselves():
    world = World(2, tree(Plan("x"), Plan("y")))
    world.submit(job(1, plan=("local",), user="ann"), job(2, plan=("local",), user="bob"))
    world.turn()
    world.submit(job(3, plan=("local",), user="ann", priority=5000), job(4, plan=("local",), user="ann", priority=9000))
    world.end("local-2")
    world.turn()
    assert world.jobs["local-4"].running


def test_who_asks_for_more_than_its_limit_is_told_to_change_that():
    world = World(8, tree(Plan("training", user_most=2)))
    world.submit(job(1, 4), job(2, 2), job(3, 2))
    waiting = world.turn().waiting
    assert [(waiting[f"local-{n}"].code, waiting[f"local-{n}"].advice) for n in (1, 3)] == [
        ("USER_LIMIT", "change"), ("USER_LIMIT", "wait")]


# --- nobody waits for ever


def test_a_parked_job_gets_more_urgent_and_keeps_that():
    world = World(1)
    world.submit(job(1, 1, 1, since=0.0))
    world.turn()
    world.wait(10)
    world.submit(job(2, 1, 1, since=10.0, priority=6000))
    had = 0.0
    for _ in range(24 * 60):
        world.turn()
        world.wait(60)
        had += 60 * world.slots(1)
    assert had > 6 * HOUR, "half of what is left when its hours of waiting have made up for its priority"
    assert world.moves <= 40


def test_it_is_looked_at_again_when_a_parked_job_gets_more_urgent():
    world = World(1)
    world.submit(job(1, 1, 1, since=0.0))
    world.turn()
    world.wait(10)
    world.submit(job(2, 1, 1, since=10.0, priority=6000))
    assert world.turn().again == 10 + HOUR


def test_a_parked_job_that_needs_two_slots_at_once_is_not_starved_by_small_ones():
    world = World(2)
    world.submit(job(1, 1, 1, per_worker=2))
    world.turn()
    world.submit(job(2, priority=9000))
    world.turn()
    assert not world.slots(1)
    world.end("local-2")
    world.submit(*(job(n) for n in (3, 4)))
    assert stream(world, hours=6)


def test_a_job_that_waits_for_memory_is_not_starved():
    world = World(8, memory=4)
    world.submit(*(job(n, memory=1, since=0.0) for n in range(2, 6)))
    world.turn()
    world.submit(job(1, memory=4, since=0.0, priority=9000))
    assert stream(world, hours=6, memory=1)


def test_a_job_that_waits_for_room_in_its_plan_is_not_starved():
    world = World(8, tree(Plan("training", most=2)))
    world.submit(*(job(n, since=0.0) for n in range(2, 4)))
    world.turn()
    world.submit(job(1, 2, since=0.0, priority=9000))
    assert stream(world, hours=6)


def test_when_the_head_of_the_queue_gives_up_others_begin_at_once():
    world = World(4)
    world.submit(job(1))
    world.turn()
    world.submit(job(2, 4, since=1.0, patience=50.0), job(3, 2, since=2.0))
    world.turn()
    world.wait(51)
    decision = decide(world.machine, world.plans, world.jobs.values(), world.now)
    assert list(decision.expired) == ["local-2"]
    assert list(decision.start) == ["local-3"]


def test_a_job_that_is_queued_again_has_its_patience_again():
    again = job(1, since=0.0, patience=300.0, requeued=3000.0)
    holder = replace(job(2), running=True, slots=("cpu-0",), held=("cpu-0",))
    machine = World(1).machine
    assert not decide(machine, World(1).plans, [again, holder], 3200.0).expired
    assert decide(machine, World(1).plans, [again, holder], 3300.0).expired


# --- memory


def test_a_job_that_begins_has_the_memory_of_all_its_workers():
    world = World(8, memory=4)
    world.submit(job(1, 1, 4, memory=1))
    world.turn()
    world.jobs["local-1"] = replace(world.jobs["local-1"], movable=False)
    world.submit(job(2, memory=1))
    assert world.turn().waiting["local-2"].code == "MEMORY"


def test_the_memory_of_workers_that_are_leaving_is_theirs_until_they_have_left():
    world = World(8, memory=4)
    world.slow = True
    world.submit(job(1, 1, 4, memory=1))
    world.turn()
    world.submit(job(2, memory=2))
    assert world.turn().waiting["local-2"].code == "LEAVING"
    world.release("local-1")
    world.turn()
    assert world.slots(2) == 1


def test_jobs_on_one_kind_of_slot_grow_only_into_memory_that_others_do_not_need():
    world = World((*cpu_slots(8), Slot("gpu-0", GPU, "0")), memory=8)
    world.submit(job(1, 1, 8, memory=1))
    world.turn()
    world.submit(job(2, kind=GPU, memory=1))
    world.turn()
    assert (world.slots(1), world.slots(2)) == (7, 1)


def test_who_asks_for_no_memory_does_not_suffer_from_a_lack_of_it():
    world = World(4, memory=4)
    world.submit(job(1, memory=4), job(2, 1, 2))
    world.turn()
    world.machine = replace(world.machine, memory=3)
    world.submit(job(3))
    assert not decide(world.machine, world.plans, world.jobs.values(), 1.0).waiting


# --- while something is under way


def test_what_a_job_can_use_soon_is_kept_for_it():
    """It has just been given other slots, and keeps these for a while; then it gets what has come free."""
    world = World(16)
    world.submit(*(job(n, user="ann") for n in range(1, 9)), *(job(n, user="eve") for n in range(11, 18)),
                 job(100, 1, 16, user="bob", step=1.0, pause=2.0))
    world.turn()
    world.submit(*(job(n, user="ann", since=1.0) for n in range(200, 230)))
    for number in range(11, 18):
        world.wait(1.0)
        world.end(f"local-{number}")
        world.turn()
    world.settle(100)
    assert world.slots(100) == 8


def test_a_job_that_cannot_be_told_yet_gets_what_comes_free_when_it_can():
    world = World(8)
    world.submit(*(job(n, user="ann") for n in range(1, 5)), *(job(n, user="eve") for n in (11, 12)),
                 job(100, 1, 8, user="bob"))
    world.turn()
    world.submit(*(job(n, user="ann", since=1.0) for n in range(200, 230)))
    world.jobs["local-100"] = replace(world.jobs["local-100"], movable=False)
    world.end("local-11")
    world.end("local-12")
    world.turn()
    world.jobs["local-100"] = replace(world.jobs["local-100"], movable=True)
    world.turn()
    assert world.slots(100) == 4


# --- users


def test_a_user_does_not_get_more_by_submitting_more():
    world = World(8)
    world.submit(*(job(n, 1, 2, user="ann") for n in range(1, 4)), job(100, 1, 8, user="bob"))
    world.turn()
    world.submit(*(job(n, 1, 2, user="ann") for n in range(4, 40)))
    world.turn()
    assert world.slots(100) == 4
    reason = world.decision.waiting["local-30"]
    assert (reason.code, reason.advice) == ("SHARE", "wait")
    assert reason.sentence == "waiting for 1 CPU slot; ann has the part that is due, and others want theirs"
    world.submit(job(200, 2, user="ann", priority=9000))
    world.turn()
    assert world.slots(200) == 2, "unless it is more urgent"
    world.end("local-100")
    world.turn()
    assert sum(len(one.slots) for one in world.jobs.values()) == 8, "what nobody else wants is for everybody"


@pytest.mark.parametrize("priority", [4999, 5000])
def test_a_lower_priority_does_not_get_more_than_a_fair_part_by_waiting(priority):
    world = World(8)
    world.submit(*(job(n, user="ann", priority=priority) for n in range(1, 5)), job(100, 1, 8, user="bob"))
    world.turn()
    world.submit(*(job(n, user="ann", since=1.0, priority=priority) for n in range(200, 220)))
    for _ in range(6):
        world.wait(HOUR)
        world.turn()
        assert world.slots(100) == 4


def test_jobs_on_slots_that_are_out_of_service_do_not_keep_others_from_theirs():
    world = World(6)
    world.submit(*(job(n, user="ann") for n in (1, 2, 3)), job(100, 1, 3, user="eve"))
    world.turn()
    lost = [slot for n in (1, 2, 3) for slot in world.jobs[f"local-{n}"].slots]
    world.machine = replace(world.machine, drained=dict.fromkeys(lost, "lost"))
    world.submit(job(200, user="bob"))
    world.turn()
    assert world.slots(200) == 1


def test_ones_own_elastic_jobs_do_not_hold_one_back():
    world = World(6)
    world.submit(job(1, 3, user="ann"), job(2, 1, 2, user="ann", priority=6000), job(3, 1, 8, user="bob"))
    world.turn()
    world.submit(job(4, user="ann", priority=6000))
    world.turn()
    assert world.slots(4) == 1


def test_a_part_of_a_slot_that_is_shared_already_is_nobody_elses_to_grow_into():
    world = World(3)
    world.submit(job(1, share=HALF, user="ann"), *(job(10 + n, 1, 3, user=f"u{n}") for n in range(2)))
    world.turn()
    world.submit(job(2, share=HALF, user="ann"))
    world.turn()
    assert world.slots(2) == 1


def test_who_has_nothing_is_not_told_of_a_part():
    world = World(4)
    world.submit(job(1, 4, user="ann"))
    world.turn()
    world.submit(job(2, 1, 4, user="bob"), job(3, user="eve"))
    waiting = world.turn().waiting
    assert [waiting[f"local-{n}"].code for n in (2, 3)] == ["SLOTS", "QUEUE"]


def test_a_pack_counts_as_the_slot_that_is_all_its_own():
    world = World(8, tree(Plan("training", user_most=1)))
    world.submit(*(job(n, share=100, pack=f"ann/{n}") for n in range(1, 4)))
    world.turn()
    assert sum(one.running for one in world.jobs.values()) == 1
    world.submit(job(5, share=100, pack="ann/1"))
    world.turn()
    assert world.slots(5) == 1, "whoever joins takes nothing more"


def test_what_others_cannot_use_is_not_left_idle_for_their_sake():
    world = World(4, memory=2)
    world.submit(job(1, 1, 4, user="bob", memory=2))
    world.turn()
    assert world.slots(1) == 1, "there is no memory for more"
    world.submit(*(job(n, user="ann") for n in range(2, 8)))
    world.turn()
    assert sum(len(one.slots) for one in world.jobs.values()) == 4


def test_a_large_job_of_somebody_with_less_than_his_part_begins_though_it_is_more():
    world = World(4)
    world.submit(job(1, 1, 4, user="bob"))
    world.turn()
    world.submit(job(2, 3, user="ann"))
    world.turn()
    assert (world.slots(1), world.slots(2)) == (1, 3)
