"""Weighted max-min fair shares of whole slots between claims with bounds. Pure arithmetic, no jobs here.

Max-min fairness: nobody can get more without somebody who has less, per weight, getting even less (Bertsekas and
Gallager, Data Networks, 2nd edition, section 6.5.2). With bounds it is one level λ: everybody gets weight·λ, but not
less than `least` and not more than `most`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

#: Numbers of slots that differ by less are the same.
NEARLY = 1e-9


@dataclass(frozen=True, slots=True)
class Claim:
    """What somebody gets at least and can use at most, in slots, with least ≤ most."""

    least: float
    most: float
    weight: float = 1.0
    #: Of claims that differ in nothing else, the lowest gets the slot that cannot be shared; who `has` it already
    #: counts as lower by `edge`.
    rank: float = 0.0
    has: int = 0


def share(capacity: int, claims: Sequence[Claim], edge: float = 0.0) -> list[int]:
    """Whole slots for each claim, together `capacity` or all that the claims can use.

    What `least` promises is given even when that is more than the capacity.
    """
    exact = parts(capacity, claims)
    shares = [math.floor(value + NEARLY) for value in exact]
    rest = capacity - sum(shares)
    if rest <= 0:
        return shares

    def precedence(number: int) -> tuple[float, float, int]:
        # Who lacks the largest part of a slot, then the rank, then the order.
        claim = claims[number]
        rank = claim.rank - (edge if claim.has > shares[number] else 0.0)
        return -round(exact[number] - shares[number], 6), rank, number

    hungry = sorted((n for n in range(len(claims)) if shares[n] < claims[n].most), key=precedence)
    for number in hungry[:rest]:
        shares[number] += 1
    return shares


def parts(capacity: float, claims: Sequence[Claim]) -> list[float]:
    """The same, in fractions of slots, too."""
    if sum(claim.most for claim in claims) <= capacity:
        return [claim.most for claim in claims]
    height = level(capacity, claims)
    return [min(max(claim.weight * height, claim.least), claim.most) for claim in claims]


def level(capacity: float, claims: Sequence[Claim]) -> float:
    """The level λ at which the claims take `capacity`; 0 when `least` alone takes it, infinite when they never do."""
    turns = sorted(
        turn
        for claim in claims
        for turn in ((claim.least / claim.weight, claim.weight), (claim.most / claim.weight, -claim.weight))
    )
    taken, slope, height = float(sum(claim.least for claim in claims)), 0.0, 0.0
    flat = NEARLY * min((claim.weight for claim in claims), default=1.0)
    if taken >= capacity:
        return 0.0
    for turn, change in turns:
        more = slope * (turn - height)
        if slope > flat and taken + more >= capacity:
            return height + (capacity - taken) / slope
        taken, height = taken + more, turn
        slope += change
    return math.inf
