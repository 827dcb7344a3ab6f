"""The rules of the password throttle with a fake clock, and the fair queue of attempts."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import examples

from local_backend.errors import Busy
from local_backend.services import throttle, turns
from local_backend.services.throttle import Throttle
from local_backend.services.turns import Turns

HERE, THERE = "192.0.2.1", "192.0.2.2"


class Clock:
    """A clock that only `pass_` moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def pass_(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def gate(clock: Clock) -> Throttle:
    return Throttle(clock)


def guess(gate: Throttle, clock: Clock, user: str, address: str, seconds: float) -> int:
    """Guess passwords for some time, as fast as the throttle permits. Return the number of comparisons."""
    end, count = clock.now + seconds, 0
    while clock.now < end:
        wait = gate.wait(user, address)
        if wait > 0:
            clock.pass_(wait)
            continue
        gate.failed(user, address)
        count += 1
    return count


def test_waits_grow_and_expire(gate: Throttle, clock: Clock) -> None:
    waits = []
    for _ in range(throttle.FREE + 12):
        gate.failed("bob", HERE)
        waits.append(gate.wait("bob", HERE))
    assert waits[: throttle.FREE + 2] == [0.0] * (throttle.FREE - 1) + [1.0, 2.0, 4.0]
    assert waits[-1] == throttle.LONGEST and waits == sorted(waits)
    assert gate.wait("bob", THERE) == gate.wait("carol", HERE) == 0.0
    clock.pass_(throttle.FORGOTTEN + 1)
    assert gate.wait("bob", HERE) == 0.0


@pytest.mark.parametrize(("one", "other"), [
    ("2001:db8::1", "2001:db8::ffff:2"), ("fe80::1%eth0", "fe80::2%eth1"), ("::ffff:192.0.2.1", "192.0.2.1"),
])
def test_addresses_of_one_machine_count_together(gate: Throttle, one: str, other: str) -> None:
    for _ in range(throttle.FREE):
        gate.failed("bob", one)
    assert gate.wait("bob", other) > 0
    gate.passed("bob", other)
    assert gate.wait("bob", one) == 0.0


def test_one_address_cannot_guess_more_than_a_few_passwords_a_day(gate: Throttle, clock: Clock) -> None:
    assert guess(gate, clock, "bob", HERE, 86_400) < 400


def test_guesses_from_another_address_do_not_delay_a_first_logon(gate: Throttle, clock: Clock) -> None:
    guess(gate, clock, "bob", THERE, 86_400)
    assert gate.wait("bob", HERE) == 0.0


def test_many_addresses_cannot_guess_one_account_freely_nor_lock_out_a_trusted_address(
    gate: Throttle, clock: Clock
) -> None:
    gate.passed("bob", HERE)
    end, count = clock.now + 3600, 0
    while clock.now < end:
        clock.pass_(0.5)
        for number in range(50):
            if gate.wait("bob", f"198.51.100.{number}") == 0.0:
                gate.failed("bob", f"198.51.100.{number}")
                count += 1
        assert gate.wait("bob", HERE) == 0.0
    assert count < throttle.FREE_ACCOUNT + 10 + 3600 / throttle.LONGEST_ACCOUNT
    assert gate.wait("bob", "203.0.113.1") > 0, "an address without a logon must wait"


def test_trust_ends(gate: Throttle, clock: Clock) -> None:
    gate.passed("bob", HERE)
    for _ in range(throttle.FREE):
        gate.failed("bob", HERE)
    assert gate.wait("bob", HERE) == 0.0
    clock.pass_(throttle.TRUSTED)
    for _ in range(throttle.FREE):
        gate.failed("bob", HERE)
    clock.pass_(0.1)
    assert gate.wait("bob", HERE) > 0


def test_failures_of_an_address_delay_answers_but_refuse_nothing(gate: Throttle) -> None:
    delays = [gate.failed(f"user {number}", HERE) for number in range(1000)]
    assert delays[: throttle.FREE_ADDRESS + 2] == [1.0] * throttle.FREE_ADDRESS + [2.0, 4.0]
    assert delays[-1] == throttle.LONGEST_DELAY and delays == sorted(delays)
    assert gate.wait("bob", HERE) == 0.0


def test_memory_is_bounded(gate: Throttle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throttle, "MOST", 100)
    for number in range(1000):
        address = f"10.0.{number // 256}.{number % 256}"
        gate.failed(f"user {number}" * 100, address)
        gate.passed(f"user {number}" * 100, address)
    assert all(len(kept) <= 100 for kept in (gate._pairs, gate._accounts, gate._addresses, gate._trusted))


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([HERE, THERE]), st.booleans(), st.floats(0, 600))))
def test_a_wait_ends_when_it_says_and_a_right_password_ends_it(steps: list[tuple[str, str, bool, float]]) -> None:
    clock = Clock()
    gate = Throttle(clock)
    for user, address, right, seconds in steps:
        wait = gate.wait(user, address)
        assert 0.0 <= wait <= throttle.LONGEST
        clock.pass_(wait + 1e-6)
        assert gate.wait(user, address) == 0.0
        if right:
            gate.passed(user, address)
            assert gate.wait(user, address) == 0.0
        else:
            assert throttle.DELAY <= gate.failed(user, address) <= throttle.LONGEST_DELAY
        clock.pass_(seconds)


async def served(queue: Turns, attempts: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the attempts in the order of their turns. All arrive while another one has the turn."""
    order: list[tuple[str, str]] = []

    async def one(address: str, account: str) -> None:
        async with queue.turn(address, account):
            order.append((address, account))

    async with queue.turn("holder", "holder"):
        tasks = [asyncio.ensure_future(one(*attempt)) for attempt in attempts]
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    return order


def test_an_attempt_waits_for_one_of_each_other_address_and_account() -> None:
    flood = [("evil", "root")] * 100 + [("evil", f"name {number}") for number in range(50)]
    order = asyncio.run(served(Turns(1), [*flood, ("home", "bob"), ("evil", "carol")]))
    assert len(order) == 152 and Counter(order) == Counter([*flood, ("home", "bob"), ("evil", "carol")])
    assert order.index(("home", "bob")) == 1
    others = {account for address, account in order[: order.index(("evil", "carol"))] if address == "evil"}
    assert order[: order.index(("evil", "carol"))].count(("evil", "root")) == 1 and len(others) == 51


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xyz")), max_size=60))
def test_addresses_take_turns(attempts: list[tuple[str, str]]) -> None:
    order = asyncio.run(served(Turns(1), attempts))
    assert Counter(order) == Counter(attempts)
    left = Counter(address for address, _ in attempts)
    since: Counter[str] = Counter()
    for address, _ in order:
        left[address] -= 1
        since[address] = 0
        for other in left:
            if other != address and left[other]:
                since[other] += 1
                assert since[other] < len(left), "an address waited for two attempts of another one"


def test_the_queue_is_bounded_and_a_new_address_still_gets_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "MOST", 20)
    monkeypatch.setattr(turns, "MOST_OF_ADDRESS", 15)

    async def work() -> tuple[Counter[str], list[object]]:
        queue, done = Turns(1), Counter[str]()

        async def one(address: str, account: str) -> None:
            async with queue.turn(address, account):
                done[address] += 1

        async with queue.turn("holder", ""):
            tasks = [asyncio.ensure_future(one("evil", f"{number}")) for number in range(30)]
            tasks += [asyncio.ensure_future(one(f"host {number}", "bob")) for number in range(8)]
            await asyncio.sleep(0)
            assert queue.length == 20
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert queue.length == 0
        return done, [one for one in found if one is not None]

    done, refused = asyncio.run(work())
    assert done == Counter({"evil": 12, **{f"host {number}": 1 for number in range(8)}})
    assert len(refused) == 18 and all(isinstance(one, Busy) and one.retry_after == 1 for one in refused)


def test_a_cancelled_attempt_gives_its_turn_away() -> None:
    async def work() -> list[str]:
        queue, order = Turns(1), []

        async def one(name: str) -> None:
            async with queue.turn("here", name):
                order.append(name)

        async with queue.turn("here", "holder"):
            tasks = [asyncio.ensure_future(one(name)) for name in "abc"]
            await asyncio.sleep(0)
            tasks[0].cancel()
        tasks[1].cancel()  # it has the turn, and has not run yet
        await asyncio.gather(*tasks, return_exceptions=True)
        async with queue.turn("here", "last"):
            return order

    assert asyncio.run(work()) == ["c"]
