"""Model definitions, hardware specifications and experiments of the experiment builder as Python objects."""

from __future__ import annotations

from dlicmd.contract import wire
from dlicmd.contract.reading import items, words
from dlicmd.sdk.records import Key, Record, all_of, an_object, texts, truth, whole_number


class SavedDefinition(Record):
    """A version of a model definition."""

    name = Key(wire.NAME, words)
    """Name of the definition."""
    owner = Key(wire.OWNER, words)
    """User that it belongs to."""
    version = Key(wire.VERSION, whole_number)
    """Number of this version, from 1."""
    versions = Key(wire.VERSIONS, whole_number)
    """Number of the newest version."""
    description = Key(wire.DESCRIPTION, words)
    """What the definition is for."""
    framework = Key(wire.FRAMEWORK, words)
    """Framework, as `--exec-start` names it."""
    command = Key(wire.COMMAND, words)
    """Execution command. "": `main.py`, `train.py`, or the only Python file."""
    program = Key(wire.PROGRAM, words)
    """The file of the code that runs. "" for another command."""
    conda_env = Key(wire.CONDA_ENVIRONMENT, words)
    """Name or path of the conda environment. "" for that of the server."""
    environment = Key(wire.ENVIRONMENT, an_object)
    """Environment variables of the program."""
    bytes = Key(wire.BYTES, whole_number)
    """Bytes of the code."""
    shared_with = Key(wire.SHARED_WITH, lambda value: value if value == wire.EVERYBODY else texts(value))
    """Other users who may use it, or `everybody`."""
    created = Key(wire.CREATED, words)
    """Time at which the definition was made."""
    changed = Key("changed", words)
    """Time at which this version was made."""


class SavedHardware(Record):
    """A version of a hardware specification."""

    name = Key(wire.NAME, words)
    """Name of the specification."""
    owner = Key(wire.OWNER, words)
    """User that it belongs to. "" if it is predefined."""
    version = Key(wire.VERSION, whole_number)
    """Number of this version, from 1."""
    versions = Key(wire.VERSIONS, whole_number)
    """Number of the newest version."""
    description = Key(wire.DESCRIPTION, words)
    """What the specification is for."""
    spec = Key(wire.HARDWARE_SPEC, an_object)
    """The specification as `hardwareSpec` of a submission."""
    predefined = Key(wire.PREDEFINED, truth)
    """Whether it is predefined."""
    usable = Key(wire.USABLE_HERE, truth)
    """Whether the machine of the server has what it names."""
    message = Key(wire.MESSAGE, words)
    """Why it is not usable."""
    shared_with = Key(wire.SHARED_WITH, lambda value: value if value == wire.EVERYBODY else texts(value))
    """Other users who may use it, or `everybody`."""


class RunMember(Record):
    """A model definition in a run of an experiment."""

    definition = Key(wire.DEFINITION, words)
    """OWNER/NAME of the model definition."""
    version = Key(wire.VERSION, whole_number)
    """Version of the definition."""
    exec_id = Key(wire.EXEC_ID, words)
    """Id of the exec. "" if there is none."""
    state = Key(wire.STATE, words)
    """State of the exec. "" if there is none, or if it was deleted."""
    code = Key("code", words)
    """Code of the error that refused the exec."""
    message = Key(wire.MESSAGE, words)
    """Why the exec was refused."""


class RunOfExperiment(Record):
    """A run of an experiment."""

    run = Key(wire.RUN, whole_number)
    """Number of the run."""
    experiment = Key("experiment", words)
    """OWNER/NAME of the experiment."""
    version = Key(wire.VERSION, whole_number)
    """Version of the experiment that ran."""
    creator = Key(wire.CREATOR, words)
    """User that began the run."""
    created = Key(wire.CREATED, words)
    """Time at which the run began."""
    complete = Key(wire.COMPLETE, truth)
    """Whether each model definition has an exec."""
    parts = Key(wire.PARTS, all_of(RunMember))
    """The model definitions in the order of the experiment."""
    warning = Key(wire.WARNING, words)
    """Warnings for the user that began the run."""


class SavedExperiment(Record):
    """A version of an experiment: data, and model definitions with the hardware for each."""

    name = Key(wire.NAME, words)
    """Name of the experiment."""
    owner = Key(wire.OWNER, words)
    """User that it belongs to."""
    version = Key(wire.VERSION, whole_number)
    """Number of this version, from 1."""
    versions = Key(wire.VERSIONS, whole_number)
    """Number of the newest version."""
    description = Key(wire.DESCRIPTION, words)
    """What the experiment is for."""
    data_source = Key(wire.DATA_SOURCE, items)
    """Data sources of all model definitions."""
    command = Key(wire.COMMAND, words)
    """Execution command for the model definitions that have no own command here."""
    definitions = Key(wire.DEFINITIONS_OF, items)
    """The model definitions, each as an object."""
    shared_with = Key(wire.SHARED_WITH, lambda value: value if value == wire.EVERYBODY else texts(value))
    """Other users who may use it, or `everybody`."""
    created = Key(wire.CREATED, words)
    """Time at which the experiment was made."""
    changed = Key("changed", words)
    """Time at which this version was made."""
    last_run = Key(wire.LAST_RUN, lambda value: RunOfExperiment(value) if isinstance(value, dict) else None)
    """The last run that you began; None if there is none."""


class PlanMistakes(Record):
    """The mistakes in an experiment, and what would run."""

    problems = Key("problems", items)
    """The mistakes, each with `field`, `code` and `message`. Without one, the experiment can be saved."""
    definitions = Key(wire.DEFINITIONS_OF, items)
    """For each model definition what would run, such as `elastic, 2 to 4 slots, PyTorch`; None if it has mistakes."""
