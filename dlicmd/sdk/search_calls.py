"""The calls about searches for hyper-parameters, and about the algorithms of these searches."""

from __future__ import annotations

from dlicmd.contract import wire
from dlicmd.sdk.calls import (
    BAD_REQUEST,
    NOT_FOUND,
    SUBMIT_TIMEOUT,
    UNKNOWN,
    Calls,
    a_list,
    an_object,
    checked,
    checked_id,
    content,
    refused,
)
from dlicmd.sdk.errors import NoSuchObject, NoSuchSearch, SubmissionRefused
from dlicmd.sdk.objects import Algorithm, Search
from dlicmd.sdk.transport import Answer, Multipart


class SearchCalls(Calls):
    """Calls about searches."""

    def searches(self, query: str | None = None) -> list[Search]:
        """Return your searches with their experiments.

        The local backend has no searches. That server refuses all calls about searches and their algorithms (HTTP 501).

        Args:
            query: Query of the URL. The query is only escaped for the URL. None selects all searches.

        Raises:
            QueryRefused: The server refuses the query (HTTP 400).
        """
        return [Search(one) for one in a_list(self._listed(wire.SEARCHES, query))]

    def start_search(self, body: Multipart) -> Answer:
        """Submit a search for hyper-parameters.

        The local backend refuses this call (HTTP 501).

        Args:
            body: The packed model folder as a file, and the definition of the search as the field `data` (JSON).

        Returns:
            The success answer.

        Raises:
            SubmissionRefused: The server refuses the search (HTTP 400).
        """
        answer = self._send("POST", wire.SEARCHES, {"Content-Type": body.content_type}, body, SUBMIT_TIMEOUT)
        if answer.status == BAD_REQUEST:
            raise refused(SubmissionRefused, "the server refused the search", answer)
        return checked(answer, "the search")

    def search(self, name: str) -> Search:
        """Return one search with its experiments.

        Args:
            name: Name of the search.

        Raises:
            NoSuchSearch: No search has this name.
        """
        return Search(an_object(self._search_call("GET", name, "show {}")))

    def stop_search(self, name: str) -> Answer:
        """Ask the server to stop a search.

        Args:
            name: Name of the search.

        Returns:
            The success answer.

        Raises:
            NoSuchSearch: No search has this name.
        """
        return self._search_call("PUT", name, "stop {}")

    def restart_search(self, name: str) -> Answer:
        """Restart a stopped search.

        Args:
            name: Name of the search.

        Returns:
            The success answer.

        Raises:
            NoSuchSearch: No search has this name.
        """
        return self._search_call("PUT", name, "restart {}", wire.RESTART)

    def delete_search(self, name: str) -> Answer:
        """Delete a search.

        Args:
            name: Name of the search.

        Returns:
            The success answer.

        Raises:
            NoSuchSearch: No search has this name.
        """
        return self._search_call("DELETE", name, "delete {}")

    def delete_searches(self) -> Answer:
        """Delete all your searches.

        Returns:
            The success answer.
        """
        return self._call("DELETE", wire.SEARCHES)

    def algorithms(self) -> list[Algorithm]:
        """Return the algorithms for searches.

        The local backend refuses this call (HTTP 501).
        """
        return [Algorithm(one) for one in a_list(self._call("GET", wire.ALGORITHMS))]

    def algorithm(self, name: str) -> Algorithm:
        """Return one algorithm for searches.

        Args:
            name: Name of the algorithm.

        Raises:
            NoSuchObject: No algorithm has this name (HTTP 404).
        """
        return Algorithm(an_object(self._algorithm_call("GET", name)))

    def delete_algorithm(self, name: str) -> str:
        """Delete an installed algorithm.

        Args:
            name: Name of the algorithm.

        Returns:
            The text of the server's answer.

        Raises:
            NoSuchObject: No algorithm has this name (HTTP 404).
        """
        return self._algorithm_call("DELETE", name).text()

    def _algorithm_call(self, method: str, name: str) -> Answer:
        if not name.strip(". ") or not name.isprintable():
            raise NoSuchObject(f"there is no algorithm '{name}'", NOT_FOUND)
        answer = self._send(method, wire.algorithm_path(name))
        if answer.status == NOT_FOUND:
            raise refused(NoSuchObject, f"there is no algorithm '{name}'", answer)
        return checked(answer, f"the algorithm {name}")

    def _search_call(self, method: str, name: str, doing: str, action: str = "") -> Answer:
        """Send a call about one search. Servers answer 400 or 404 for an unknown name, and 400 for other reasons, too.
        Raises NoSuchSearch when the name is unknown."""
        path = wire.search_path(checked_id(name, NoSuchSearch))
        target = wire.search_path(name, action)
        answer = self._send(method, target, {"Content-Length": "0"} if method == "PUT" else None)
        if answer.status in UNKNOWN and (method == "GET" or self._send("GET", path).status in UNKNOWN):
            raise NoSuchSearch(name, answer.status, content(answer))
        return checked(answer, "to " + doing.format(name))
