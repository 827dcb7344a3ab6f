"""Comparison of the data of two workers, by the hub. Pure functions.

A worker describes its data by names ("training sample 17") and digests. Names that only one of the two workers has sent
are not compared.
"""

from __future__ import annotations

from collections.abc import Mapping

#: Name → digest.
Description = Mapping[str, str]

#: First word of a name → likely cause.
_CAUSES = {
    "order": (
        "the indices of a sampler must depend only on the epoch and on the global random generators, which the engine "
        "seeds"
    ),
    "length": "datasets_function must return the same data in every worker",
}
_AT_START = (
    "datasets_function must return the same data in every worker: sort names from os.listdir, glob or a set, and draw "
    "random numbers only from generators that the script or the engine seeds"
)
_IN_EPOCH = (
    "a sample must depend only on its index and on seeded random numbers, not on the process, the time or earlier "
    "samples"
)


def difference(
    known: Description, described: Description, workers: tuple[int, int], epoch: int | None = None
) -> str | None:
    """Return the sentence that names the first difference between the data of two workers, None if there is none.

    `workers`: the numbers of the workers that sent `known` and `described`. `epoch`: the epoch that both workers have
    finished, None before training.
    """
    name = next((name for name in known if name in described and known[name] != described[name]), None)
    if name is None:
        return None
    when = "" if epoch is None else f" after epoch {epoch}"
    cause = _CAUSES.get(name.split()[0]) or (_AT_START if epoch is None else _IN_EPOCH)
    first, second = workers
    return (
        f"the data sets differ between workers{when}: {name} differs between worker {first} and worker {second}; "
        f"{cause}"
    )
