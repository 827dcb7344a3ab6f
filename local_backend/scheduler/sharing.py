"""Weighted max-min fair shares of whole slots between claims with bounds. Pure arithmetic, without jobs.

Max-min fairness: no claim can get more unless another claim that has less, per weight, gets even less (Bertsekas and
Gallager, Data Networks, 2nd edition, section 6.5.2). With bounds, one level λ decides: each claim gets weight·λ, but
not less than `least` and not more than `most`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

#: Numbers of slots that differ by less than this are equal.
NEARLY = 1e-9


@dataclass(frozen=True, slots=True)
class Claim:
    """The minimum and maximum slots of one claimant, with least ≤ most."""

    least: float
    most: float
    weight: float = 1.0
    #: Of claims that are otherwise equal, the claim with the lowest rank gets the slot that cannot be split. A claim
    #: that already `has` this slot counts as lower by `edge`.
    rank: float = 0.0
    has: int = 0


def share(capacity: int, claims: Sequence[Claim], edge: float = 0.0) -> list[int]:
    """Return whole slots for each claim, in total `capacity` or all that the claims can use.

    Each claim gets its `least`, even when that exceeds the capacity.
    """
    exact = parts(capacity, claims)
    shares = [math.floor(value + NEARLY) for value in exact]
    rest = capacity - sum(shares)
    if rest <= 0:
        return shares

    def precedence(number: int) -> tuple[float, float, int]:
        # First the claim that lacks the largest part of a slot, then the lowest rank, then the order of the claims.
        claim = claims[number]
        rank = claim.rank - (edge if claim.has > shares[number] else 0.0)
        return -round(exact[number] - shares[number], 6), rank, number

    hungry = sorted((n for n in range(len(claims)) if shares[n] < claims[n].most), key=precedence)
    for number in hungry[:rest]:
        shares[number] += 1
    return shares


def parts(capacity: float, claims: Sequence[Claim]) -> list[float]:
    """Return the same shares as `share`, but with fractions of slots."""
    if sum(claim.most for claim in claims) <= capacity:
        return [claim.most for claim in claims]
    height = level(capacity, claims)
    return [min(max(claim.weight * height, claim.least), claim.most) for claim in claims]


def level(capacity: float, claims: Sequence[Claim]) -> float:
    """Return the level λ at which the claims take `capacity`; 0 if `least` alone does, infinite if no level does."""
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
