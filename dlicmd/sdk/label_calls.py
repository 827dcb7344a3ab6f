"""The calls about labels of execs (notes, tags and favorites), and about saved views of lists of execs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from dlicmd.contract import wire
from dlicmd.contract.reading import number, words
from dlicmd.sdk.calls import JSON, UNKNOWN, Calls, a_list, an_object, checked, content
from dlicmd.sdk.errors import NoSuchExec
from dlicmd.sdk.model_store_calls import accepted
from dlicmd.sdk.objects import Labelled, SavedView


class LabelCalls(Calls):
    """Calls about labels of execs and saved views."""

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

    def saved_views(self) -> list[SavedView]:
        """Return your saved views of lists of execs, in the order of their names (extension `views`)."""
        return [SavedView(one) for one in a_list(self._call("GET", wire.VIEWS))]

    def save_view(
        self, name: str, *, find: str = "", state: str = "", sort_by: str = "", everyone: bool = False,
        columns: Sequence[str] = (),
    ) -> SavedView:
        """Save what a list of execs shows, under a name (extension `views`). A view of this name is replaced.

        Args:
            name: Name of 1 to 60 characters.
            find: Words that find execs, as `dlicmd ls --find` takes them.
            state: A state or a comma-separated list. "" for all.
            sort_by: `field[:asc|desc]`, where the field may be `metric.NAME` or `param.NAME`. "" for the newest first.
            everyone: Whether the view has the execs of all users, for administrators.
            columns: At most 20 metrics and parameters: `metric.NAME`, `param.NAME`. None for the usual columns.

        Raises:
            ServerError: A value is not possible, or you have 100 views (HTTP 400).

        Examples:
            >>> client.save_view("best", find="tag:best", sort_by="metric.f1:desc", columns=["param.lr"]).name
            'best'
        """
        body = {wire.NAME: name, wire.FIND: find, wire.STATE: state, wire.SORT_BY: sort_by, wire.ALL: everyone,
                wire.COLUMNS: list(columns)}
        answer = self._send("POST", wire.VIEWS, {"Content-Type": JSON}, json.dumps(body).encode())
        return SavedView(an_object(checked(answer, "to save the view")))

    def delete_view(self, name: str) -> None:
        """Delete a saved view (extension `views`).

        Raises:
            NoSuchObject: You have no view of this name.
        """
        accepted(self._send("DELETE", wire.view_path(name)), "to delete the view")
