"""Searches for hyper-parameters, their experiments and algorithms as Python objects."""

from __future__ import annotations

from dlicmd.contract import states, wire
from dlicmd.contract.reading import number, objects, words
from dlicmd.sdk.records import Key, Record, all_of, an_object, texts, truth, whole_number


class HyperParameter(Record):
    """A hyper-parameter with its value in one experiment."""

    name = Key(wire.NAME, words)
    """Name of the parameter."""
    data_type = Key(wire.DATA_TYPE, words)
    """`int`, `double` or `str`."""
    fixed_val = Key(wire.FIXED_VAL, words)
    """Value as a text."""

    @property
    def value(self) -> int | float | str:
        """Value of the parameter with its type."""
        found = number(self.fixed_val) if self.data_type.lower() in ("int", "double") else None
        return self.fixed_val if found is None else int(found) if self.data_type.lower() == "int" else found


class MetricRange(Record):
    """The values of an additional metric of an experiment."""

    name = Key(wire.NAME, words)
    """Name of the metric."""
    min = Key("min", number)
    """Least value."""
    max = Key("max", number)
    """Largest value."""
    latest = Key("latest", number)
    """Last value."""


class Experiment(Record):
    """One trial of a search. Times are those of the server's clock."""

    id = Key(wire.ID, words)
    """Id of the experiment."""
    hyper_params = Key(wire.HYPER_PARAMS, all_of(HyperParameter))
    """Hyper-parameters of the experiment."""
    app_id = Key(wire.APP_ID, words)
    """Id of the exec of the experiment. "" before its submission."""
    driver_id = Key("driverId", words)
    """Id of the driver, on servers of the first product generation."""
    state = Key(wire.STATE, words)
    """State of the experiment, such as `RUNNING`. `WAITING`: it rests at a rung, without slots."""
    metric_val = Key(wire.METRIC_VAL, number)
    """Value of the metric that the search optimizes. A failed experiment has 9999.99 or -9999.99."""
    metrics = Key("metrics", all_of(MetricRange))
    """Additional metrics."""
    max_iteration = Key("maxiteration", whole_number)
    """Largest number of iterations, on servers of the first product generation."""
    start_time = Key(wire.START_TIME, words)
    """Time at which the experiment started."""
    end_time = Key(wire.END_TIME, words)
    """Time at which the experiment ended. "" before that."""
    message = Key(wire.MESSAGE, words)
    """Reason why the experiment failed, as a sentence."""
    resource = Key(wire.RESOURCE, whole_number)
    """Amount of the resource that the experiment may use so far, such as a number of epochs."""
    rung = Key(wire.RUNG, whole_number)
    """Number of the rung of the experiment, from 0."""
    bracket = Key("bracket", whole_number)
    """Number of the bracket of the experiment, from 0."""
    objectives = Key("objectives", an_object)
    """Values of all metrics of a search with several objectives, or with constraints."""

    @property
    def parameters(self) -> dict[str, int | float | str]:
        """Values of the hyper-parameters by name."""
        return {one.name: one.value for one in self.hyper_params}

    @property
    def value(self) -> float | None:
        """Value of the metric. None while it is unknown, and for an experiment that failed or was stopped."""
        return self.metric_val if self.state in (states.FINISHED, states.RUNNING, states.WAITING) else None


class Search(Record):
    """A search for hyper-parameters. Times are those of the server's clock."""

    hpo_name = Key(wire.SEARCH_NAME, words)
    """Name of the search."""
    state = Key(wire.STATE, words)
    """State of the search: `SUBMITTED`, `RUNNING`, `FINISHED`, `FAILED` or `STOPPED`."""
    running = Key("running", whole_number)
    """Number of experiments that run."""
    complete = Key(wire.COMPLETE_COUNT, whole_number)
    """Number of experiments that have ended, with those that failed."""
    failed = Key(wire.FAILED_COUNT, whole_number)
    """Number of experiments that failed."""
    progress = Key(wire.PROGRESS, words)
    """Ended experiments and all experiments, such as `3/20`."""
    createtime = Key(wire.CREATED_AT, words)
    """Time of the submission."""
    creator = Key(wire.CREATOR, words)
    """User that submitted the search."""
    duration = Key(wire.DURATION, words)
    """Time since the submission, or until the end, such as `00:02:55`."""
    experiments = Key(wire.EXPERIMENTS, all_of(Experiment))
    """Experiments of the search."""
    algo_def = Key(wire.ALGO_DEF, an_object)
    """Algorithm with its parameters, as submitted."""
    hyper_params = Key(wire.HYPER_PARAMS, objects)
    """Hyper-parameters with their possible values."""
    message = Key(wire.MESSAGE, words)
    """Reason for the state, as a sentence."""
    pareto = Key(wire.PARETO, texts)
    """Ids of the experiments that no other one surpasses in all objectives. Empty for one objective."""

    @property
    def name(self) -> str:
        """Name of the search."""
        return self.hpo_name

    @property
    def algorithm(self) -> str:
        """Name of the algorithm."""
        return words(self.json.get(wire.ALGORITHM)) or words(self.algo_def.get("algorithm"))

    @property
    def metric(self) -> str:
        """Name of the metric that the search optimizes."""
        return words(self.json.get(wire.METRIC)) or words(self.algo_def.get("objectiveMetric"))

    @property
    def is_maximized(self) -> bool:
        """Whether a larger value of the metric is better."""
        way = words(self.json.get(wire.OBJECTIVE)) or words(self.algo_def.get("objective"))
        return way.lower() == "maximize"

    @property
    def best(self) -> Experiment | None:
        """Experiment with the best value. None before the first experiment has finished."""
        found = self.json.get(wire.BEST)
        return Experiment(found) if isinstance(found, dict) and found else None

    @property
    def has_ended(self) -> bool:
        """Whether the state is final. A stopped search can be restarted."""
        return bool(self.state) and self.state not in states.SEARCHING


class Algorithm(Record):
    """An algorithm for searches."""

    name = Key(wire.NAME, words)
    """Name of the algorithm."""
    type = Key(wire.TYPE, words)
    """`BUILD_IN` or `USER_PLUGIN`."""
    creator = Key(wire.CREATOR, words)
    """User that installed the algorithm."""
    createtime = Key(wire.CREATED_AT, words)
    """Time of the installation."""
    path = Key(wire.PATH, words)
    """Folder of an installed algorithm on the server."""
    conda_home = Key(wire.CONDA_HOME, words)
    """Installation folder of conda for an installed algorithm."""
    conda_env = Key(wire.CONDA_ENV, words)
    """Conda environment of an installed algorithm."""
    log_level = Key(wire.LOG_LEVEL, words)
    """Level of the log of an installed algorithm."""
    remote_exec = Key(wire.REMOTE_EXEC, truth)
    """Value of the key `remoteExec`."""
