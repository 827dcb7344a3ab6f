"""The calls about labels of execs: notes, tags and favorites."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from dlicmd.contract import wire
from dlicmd.contract.reading import number, words
from dlicmd.sdk.calls import JSON, UNKNOWN, Calls, a_list, checked, content
from dlicmd.sdk.errors import NoSuchExec
from dlicmd.sdk.objects import Labelled


class LabelCalls(Calls):
    """Calls about labels of execs."""

    def label_execs(
        self, exec_ids: Sequence[str], *, add: Sequence[str] = (), remove: Sequence[str] = (), note: str | None = None,
        favorite: bool | None = None,
    ) -> list[Labelled]:
        """Change the labels of all these execs, or of none (extension `labels`).

        Notes and tags belong to the exec: all users see them that see the exec. Favorites belong to the user of this
        client.

        Args:
            exec_ids: Ids of 1 to 1,000 execs.
            add: Tags to add, of 1 to 40 characters, without spaces, commas and quotes. An exec has at most 30.
            remove: Tags to remove before that.
            note: New note of at most 10,000 characters. An empty text removes the note. None leaves the note.
            favorite: Whether the execs are favorites. None leaves them what they are.

        Returns:
            The labels of each exec, in the order of `exec_ids`.

        Raises:
            NoSuchExec: No exec has one of these ids. No label was changed.
            ServerError: A tag or the note is not possible (HTTP 400). No label was changed.

        Examples:
            >>> client.label_execs(["local-7"], add=["best"], note="lower rate, same seed")[0].tags
            ['best']
        """
        asked: dict[str, Any] = {wire.IDS: list(exec_ids), wire.ADD: list(add), wire.REMOVE: list(remove),
                                 wire.NOTE: note, wire.FAVORITE: favorite}
        body = json.dumps({name: value for name, value in asked.items() if value is not None}).encode()
        answer = self._send("POST", wire.LABELS, {"Content-Type": JSON}, body)
        if answer.status in UNKNOWN and answer.code == NoSuchExec.code:
            missing = next((name for name in exec_ids if f"'{name}'" in content(answer)), ", ".join(exec_ids))
            raise NoSuchExec(missing, answer.status, content(answer))
        return [Labelled(one) for one in a_list(checked(answer, "to change labels"))]

    def tags(self) -> dict[str, int]:
        """Return the most frequent tags of your execs, with the number of execs that have each (extension `labels`)."""
        found = a_list(self._call("GET", wire.LABELS))
        return {words(one.get(wire.TAG)): int(number(one.get(wire.COUNT)) or 0) for one in found}
