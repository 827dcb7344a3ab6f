"""Words in place of an exec's id: `last` for the newest exec of the calling user; with verbs also the number in an id,
and the name of a job."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from dlicmd.cli.show.execs import application_id
from dlicmd.contract import wire
from dlicmd.contract.options import LAST
from dlicmd.sdk.client import Client
from dlicmd.sdk.errors import ServerError, UsageProblem
from dlicmd.sdk.messages import inert, info
from dlicmd.sdk.newest import newest


def resolved(client: Client, ids: Sequence[str], of_applications: bool = False) -> list[str]:
    """Return the ids with `last` replaced by the id of the newest exec, or of its application, and report that id.
    Raises NoExecYet."""
    if LAST not in ids:
        return list(ids)
    found = newest(client)
    named = (application_id(found) if of_applications else None) or str(found[wire.ID])
    info(f"{LAST} is {named}")
    return [named if name == LAST else name for name in ids]


#: Ids that are used as they are, without a call.
_ID = re.compile(r"(local|wmla)-[0-9]+")


def is_id(word: str) -> bool:
    """Return whether a word has the form of an id."""
    return _ID.fullmatch(word) is not None


class Named(NamedTuple):
    """The ids of jobs that words name, and the words among them that name no job."""

    ids: list[str]
    unknown: list[str]


def named(client: Callable[[], Client], words: Sequence[str]) -> Named:
    """Return the ids of the jobs that words of a verb name, and report those of `last` and of names.

    A word is an id, `last`, the number at the end of an id, or a name that only one job has. A number is never a name:
    after job 7 is deleted, `rm 7` must not delete a job with the name 7. A word that names no job is returned
    unchanged: the server refuses it. Raises NoExecYet, and UsageProblem for a word that names several jobs.
    """
    ids: list[str] = []
    unknown: list[str] = []
    known: Sequence[Mapping[str, Any]] | None = None
    for word in words:
        if word == LAST:
            ids += resolved(client(), [word])
        elif _ID.fullmatch(word):
            ids.append(word)
        else:
            known = client().execs() if known is None else known
            ids.append(_meant(word, known))
            if ids[-1] == word and not any(item.get(wire.ID) == word for item in known):
                unknown.append(word)
    return Named(ids, unknown)


def is_search(client: Client, word: str) -> bool:
    """Return whether a word that names no job is the name of a search."""
    try:
        client.search(word)
    except ServerError:
        return False
    return True


def _meant(word: str, known: Sequence[Mapping[str, Any]]) -> str:
    """Return the id that a word means among these execs, or the word. Raises UsageProblem."""
    ids = [str(item.get(wire.ID)) for item in known]
    if word in ids:
        return word
    is_number = word.isdecimal()
    if is_number:
        found, what = [name for name in ids if name.endswith(f"-{word}")], "number"
    else:
        found, what = [str(item.get(wire.ID)) for item in known if item.get(wire.APP_NAME) == word], "name"
    if len(found) > 1:
        shown = ", ".join(sorted(found, key=lambda name: (len(name), name), reverse=True)[:10])
        raise UsageProblem(f"{len(found)} jobs have the {what} '{inert(word)}': {inert(shown)}; give an id")
    if found and not is_number:
        info(f"{inert(word)} is {inert(found[0])}")
    return found[0] if found else word
