"""The arithmetic of fair shares."""

from hypothesis import given
from hypothesis import strategies as st

from local_backend.scheduler.sharing import Claim, share


@st.composite
def claims(draw):
    found = []
    for _ in range(draw(st.integers(0, 8))):
        most = draw(st.integers(0, 12))
        found.append(Claim(draw(st.integers(0, most)), most, draw(st.sampled_from([0.5, 1.0, 1.0, 2.0, 3.0])),
                           draw(st.floats(-5, 5))))
    return found


@given(st.integers(0, 60), claims())
def test_all_slots_are_shared_within_the_bounds_of_the_claims(capacity, asked):
    shares = share(capacity, asked)
    assert all(claim.least <= got <= claim.most for claim, got in zip(asked, shares, strict=True))
    least, most = sum(claim.least for claim in asked), sum(claim.most for claim in asked)
    assert sum(shares) == max(least, min(most, capacity))


@given(st.integers(0, 60), claims())
def test_no_claim_exceeds_its_weighted_share_by_more_than_one_slot(capacity, asked):
    shares = share(capacity, asked)
    for claim, got in zip(asked, shares, strict=True):
        for other, less in zip(asked, shares, strict=True):
            if less < other.most and got > claim.least:
                assert (got - 1) / claim.weight <= (less + 1) / other.weight + 1e-9


@given(st.integers(1, 30), st.integers(1, 8), st.integers(1, 30))
def test_equal_claims_differ_by_one_slot_and_the_lowest_rank_has_more(capacity, count, most):
    shares = share(capacity, [Claim(0, most, rank=float(count - i)) for i in range(count)])
    assert max(shares) - min(shares) <= 1
    assert shares == sorted(shares)
