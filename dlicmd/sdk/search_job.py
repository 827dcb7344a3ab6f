"""`SearchJob`: a handle that sends the calls about one search. `Search` is the data of the search at one moment."""

from __future__ import annotations

from typing import Any

from dlicmd.sdk import experiments, notebook
from dlicmd.sdk.search_calls import SearchCalls
from dlicmd.sdk.search_objects import Experiment, Search

#: Most experiments in a notebook.
_SHOWN = 20


class SearchJob:
    """A search of a server: a handle that sends the calls about one search.

    A SearchJob is not data. `SearchJob.search` is the data: the `Search` that the server returned last. `refresh`,
    `wait`, `stop` and `restart` replace it; nothing else changes a SearchJob.

    `Client.search` with a program and `Client.search_job` return search jobs. Every method raises the errors that
    `Client` lists, and `NoSuchSearch` if the search was deleted.

    Attributes:
        client: SearchCalls that sends the calls.
        search: The search as the server returned it last.

    Examples:
        >>> found = client.search("train.py", {"lr": "log:1e-4..1e-1"}, "accuracy:maximize")
        >>> found.wait().best.parameters
        {'lr': 0.0123}
    """

    def __init__(self, client: SearchCalls, found: Search) -> None:
        """Make a handle for a search.

        Args:
            client: SearchCalls that sends the calls.
            found: The search, from `Client.search` or `Client.searches`.
        """
        self.client = client
        self.search = found

    @property
    def name(self) -> str:
        """Name of the search."""
        return self.search.name

    @property
    def state(self) -> str:
        """State of the search in `search`, such as `RUNNING`. `refresh` asks the server for the present state."""
        return self.search.state

    @property
    def best(self) -> Experiment | None:
        """Experiment with the best value in `search`. None before the first experiment has finished."""
        return self.search.best

    @property
    def experiments(self) -> list[Experiment]:
        """Experiments in `search`."""
        return self.search.experiments

    def refresh(self) -> SearchJob:
        """Ask the server for the present state, and return this search."""
        self.search = self.client.search(self.name)
        return self

    def wait(self, timeout: float | None = None) -> SearchJob:
        """Wait until the search has ended, and return it, whatever its last state is.

        Args:
            timeout: Seconds until WaitTimeout. None waits without a limit.

        Raises:
            WaitTimeout: The search has not ended after `timeout` seconds. The search continues.
        """
        if not self.search.has_ended:
            for found in experiments.watch(self.client, self.name, experiments.clock_for(self.name, timeout)):
                self.search = found
        return self

    def stop(self, force: bool = False) -> SearchJob:
        """Stop the search and its running experiments, and return this search. A search that has already ended stays as
        it is.

        Args:
            force: Whether experiments end at once, without time to write files.
        """
        if not self.refresh().search.has_ended:
            self.client.stop_search(self.name, force)
            self.refresh()
        return self

    def restart(self) -> SearchJob:
        """Continue a stopped search, and return this search. Experiments that have finished are kept."""
        self.client.restart_search(self.name)
        return self.refresh()

    def delete(self) -> None:
        """Delete the search. The jobs of its experiments remain."""
        self.client.delete_search(self.name)

    def importances(self) -> dict[str, float]:
        """Return the importance of each parameter: its share in the differences between the values."""
        return self.client.importances(self.name)

    def to_dataframe(self) -> Any:
        """Return the experiments in `search` as a table with a row for each experiment.

        Returns:
            A `pandas.DataFrame` if pandas is installed, else a list of dictionaries. The columns are `id`, `state`,
            `value` (that of the metric), the parameters, additional metrics, and `exec`, `startTime` and `endTime`.

        Examples:
            >>> found.to_dataframe().sort_values("value")
        """
        made = experiments.table(self.search)
        try:
            import pandas  # not a dependency
        except ImportError:
            return made.rows
        return pandas.DataFrame(made.rows, columns=made.columns)

    def __repr__(self) -> str:
        best = self.best
        value = "" if best is None or best.metric_val is None else f" best {best.metric_val:.6g}"
        progress = f" {self.search.progress}" if self.search.progress else ""
        return f"<SearchJob {self.name} {self.state or 'SUBMITTED'}{progress}{value}>"

    def _repr_html_(self) -> str:
        made = experiments.table(self.search)
        rows = [{name: notebook.cell(row[name]) for name in made.columns}
                for row in experiments.best_first(self.search, made.rows)]
        more = f"<p>{len(rows) - _SHOWN:,} more experiments</p>" if len(rows) > _SHOWN else ""
        return f"<p>{notebook.escaped(repr(self)[1:-1])}</p>{notebook.table(rows[:_SHOWN])}{more}"
