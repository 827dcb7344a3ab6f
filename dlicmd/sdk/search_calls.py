"""The calls about searches for hyper-parameters, and about the algorithms of these searches."""

from __future__ import annotations

import json
import os

from dlicmd.contract import wire
from dlicmd.contract.reading import number
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
from dlicmd.sdk.records import an_object as json_object
from dlicmd.sdk.search_objects import Algorithm, Experiment, Search
from dlicmd.sdk.transport import Answer, Multipart, Request


class SearchCalls(Calls):
    """Calls about searches."""

    def searches(self, query: str | None = None) -> list[Search]:
        """Return your searches with their experiments.

        Args:
            query: Query of the URL. The query is only escaped for the URL. None selects all searches.

        Raises:
            QueryRefused: The server refuses the query (HTTP 400).
        """
        return [Search(one) for one in a_list(self._listed(wire.SEARCHES, query))]

    def start_search(self, body: Multipart, *, strict: bool = True) -> Answer:
        """Submit a search for hyper-parameters with a definition of the contract. `search` writes the definition.

        Args:
            body: The packed model folder as a file, and the definition of the search as the field `data` (JSON).
            strict: As for `start_exec`.

        Returns:
            The success answer.

        Raises:
            SubmissionRefused: The server refuses the search (HTTP 400).
        """
        answer = self._sent(self.search_request(body, strict=strict))
        if answer.status == BAD_REQUEST:
            raise refused(SubmissionRefused, "the server refused the search", answer)
        return checked(answer, "the search")

    def search_request(self, body: Multipart, *, strict: bool = True) -> Request:
        """Return the request that `start_search` sends, without sending it.

        Args:
            body: As for `start_search`.
            strict: As for `start_exec`.
        """
        headers = {"Content-Type": body.content_type} | ({wire.PREFER: wire.STRICT} if strict else {})
        return self._request("POST", wire.SEARCHES, headers, body, SUBMIT_TIMEOUT)

    def importances(self, name: str) -> dict[str, float]:
        """Return the importance of each parameter of a search (extension of the local backend).

        Args:
            name: Name of the search.

        Returns:
            Name of the parameter → its share in the differences between the values of the experiments, the largest
                first. All shares sum up to 1. The mapping is empty while too few experiments have finished.

        Raises:
            NoSuchSearch: No search has this name.
        """
        found = an_object(self._search_call("GET", name, "show {}", wire.IMPORTANCES))
        shares = {key: number(value) for key, value in json_object(found.get(wire.IMPORTANCES)).items()}
        known = {key: share for key, share in shares.items() if share is not None}
        return dict(sorted(known.items(), key=lambda pair: -pair[1]))

    def search(self, name: str) -> Search:
        """Return one search with its experiments.

        Args:
            name: Name of the search.

        Raises:
            NoSuchSearch: No search has this name.
        """
        return Search(an_object(self._search_call("GET", name, "show {}")))

    def search_state(self, name: str) -> Search:
        """Return one search without its experiments, which can be many. Servers without this extension return them.

        Args:
            name: Name of the search.

        Raises:
            NoSuchSearch: No search has this name.
        """
        return Search(an_object(self._search_call("GET", name, "show {}", query=f"{wire.EXPERIMENTS}={wire.NONE}")))

    def search_experiments(self, name: str, query: str) -> list[Experiment]:
        """Return some experiments of a search (extension of the local backend).

        Args:
            name: Name of the search.
            query: Query of the URL, such as `sort=metricVal&limit=10`.

        Raises:
            NoSuchSearch: No search has this name.
        """
        return [Experiment(one) for one in a_list(self._search_call("GET", name, "show {}", wire.EXPERIMENTS, query))]

    def stop_search(self, name: str, force: bool = False) -> Answer:
        """Ask the server to stop a search. Its running experiments are stopped, too.

        Args:
            name: Name of the search.
            force: Whether experiments end at once, without time to write files.

        Returns:
            The success answer.

        Raises:
            NoSuchSearch: No search has this name.
        """
        return self._search_call("PUT", name, "stop {}", wire.FORCE if force else "")

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
        """Return the algorithms for searches."""
        return [Algorithm(one) for one in a_list(self._call("GET", wire.ALGORITHMS))]

    def algorithm(self, name: str) -> Algorithm:
        """Return one algorithm for searches.

        Args:
            name: Name of the algorithm.

        Raises:
            NoSuchObject: No algorithm has this name (HTTP 404).
        """
        return Algorithm(an_object(self._algorithm_call("GET", name)))

    def install_algorithm(
        self, path: str | os.PathLike[str], name: str | None = None, *, conda_home: str | None = None,
        conda_env: str | None = None, log_level: str | None = None,
    ) -> str:
        """Install an algorithm for searches: its `optimizer.py` has a class `PluginOptimizer`.

        Args:
            path: Folder whose files are sent, or a gzip-compressed tar file of such files.
            name: Name of the algorithm. The default is the name of the folder or file.
            conda_home: Installation folder of conda on the server.
            conda_env: Conda environment in which the algorithm runs.
            log_level: Level of the algorithm's log, such as `DEBUG`.

        Returns:
            The text of the server's answer.

        Raises:
            UsageProblem: There is no such folder or file, or the folder has no `optimizer.py`.
            SubmissionRefused: The server refuses the algorithm (HTTP 400).
        """
        from dlicmd.sdk.algorithm_files import packed  # packs, for this call alone

        part, named = packed(os.fspath(path))
        given = {wire.NAME: name or named, wire.CONDA_HOME: conda_home, wire.CONDA_ENV: conda_env,
                 wire.LOG_LEVEL: log_level}
        data = json.dumps({key: value for key, value in given.items() if value is not None})
        with part.file:
            body = Multipart([part], [(wire.PART_DATA, data)])
            answer = self._send("POST", wire.ALGORITHM_INSTALL, {"Content-Type": body.content_type}, body,
                                SUBMIT_TIMEOUT)
        if answer.status == BAD_REQUEST:
            raise refused(SubmissionRefused, "the server refused the algorithm", answer)
        return checked(answer, "to install the algorithm").text()

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

    def _search_call(
        self, method: str, name: str, doing: str, action: str = "", query: str = ""
    ) -> Answer:
        """Send a call about one search. Servers answer 400 or 404 for an unknown name, and 400 for other reasons, too.
        Raises NoSuchSearch when the name is unknown."""
        path = wire.search_path(checked_id(name, NoSuchSearch))
        target = wire.search_path(name, action) + (f"?{query}" if query else "")
        answer = self._send(method, target, {"Content-Length": "0"} if method == "PUT" else None)
        if answer.status in UNKNOWN and ((method == "GET" and not action) or self._send("GET", path).status in UNKNOWN):
            raise NoSuchSearch(name, answer.status, content(answer))
        return checked(answer, "to " + doing.format(name))
