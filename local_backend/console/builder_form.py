"""The form of the experiment builder: its fields as texts, and the experiment that they describe. Pure.

Each row has a key that it keeps while other rows come and go, so that a page can be changed in place."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import reduce
from typing import Any, TypeVar

from dlicmd.contract import strict_json
from dlicmd.contract.data_sources import (
    ACCESS,
    CONNECTED,
    CONNECTION,
    FS,
    LOCATION,
    NAME,
    PATH,
    PATHS,
    STREAM,
    TARGET,
    TYPE,
    VOLUME,
)
from local_backend.services.experiment_plans import PlanDraft, PlanPart, PlanProblem

R = TypeVar("R", "DataRow", "PartRow")
#: The most rows of one kind that a form has.
MOST_ROWS = 100
#: Kinds of data rows: on the server, in a volume, behind a connection, and anything else as JSON.
FOLDER, IN_VOLUME, BEHIND, AS_JSON = DATA_KINDS = ("folder", "volume", "connection", "json")
#: Users that may use a new version: only its owner, all users, or the listed users.
PRIVATE, EVERYBODY, LISTED = SHARING = ("me", "everybody", "users")
#: Choice of hardware that the fields below it describe.
CUSTOM = "custom"
_WHOLE = "is not a whole number of at least 1"


@dataclass(frozen=True)
class DataRow:
    """Data of all model definitions. All values are texts of fields."""

    key: int
    kind: str = FOLDER
    path: str = ""
    volume: str = ""
    connection: str = ""
    bucket: str = ""
    #: How the program gets data of a connection: see `_ACCESS`, or `volume:NAME`.
    deliver: str = ""
    json: str = ""


@dataclass(frozen=True)
class PartRow:
    """A model definition of the experiment. All values are texts of fields."""

    key: int
    definition: str = ""
    version: str = ""
    nodes: str = ""
    count: str = ""
    least: str = ""
    device: str = ""
    hardware: str = ""
    hardware_version: str = ""
    gpus: str = ""
    memory: str = ""
    #: A specification that the two fields above cannot express, as JSON.
    spec: str = ""
    mig: str = ""
    command: str = ""


@dataclass(frozen=True)
class BuilderForm:
    """The whole form."""

    name: str = ""
    description: str = ""
    command: str = ""
    share: str = PRIVATE
    users: str = ""
    create: bool = False
    data: Sequence[DataRow] = ()
    parts: Sequence[PartRow] = ()
    #: Key of the data row whose folder is open for a choice; empty for none.
    browsing: str = ""

    def changed_by(self, ops: Iterable[str]) -> BuilderForm:
        """Return the form after some buttons, in their order."""
        return reduce(BuilderForm.changed, ops, self)

    def changed(self, op: str) -> BuilderForm:
        """Return the form after a button: `add-data`, `add-part`, `drop-data-KEY`, `drop-part-KEY`, `browse-KEY`,
        `path-KEY:PATH`, which chooses a path, and `use-OWNER/NAME` after the upload of a model definition."""
        action, _, rest = op.partition("-")
        if action == "use":
            return self._with_definition(rest)
        if action in ("browse", "path"):
            return self._browsed(action, rest)
        rows, _, key = rest.partition("-")
        return self._data_changed(action, key) if rows == "data" else self._parts_changed(action, key)

    def _data_changed(self, action: str, key: str) -> BuilderForm:
        if action == "add" and len(self.data) < MOST_ROWS:
            return replace(self, data=[*self.data, DataRow(_next(self.data))])
        return replace(self, data=[row for row in self.data if action != "drop" or str(row.key) != key])

    def _parts_changed(self, action: str, key: str) -> BuilderForm:
        if action == "add" and len(self.parts) < MOST_ROWS:
            return replace(self, parts=[*self.parts, PartRow(_next(self.parts))])
        return replace(self, parts=[row for row in self.parts if action != "drop" or str(row.key) != key])

    def _browsed(self, what: str, rest: str) -> BuilderForm:
        key, _, path = rest.partition(":")
        if what == "browse":
            return replace(self, browsing="" if key == self.browsing else key)
        return replace(self, data=[replace(row, path=path) if str(row.key) == key else row for row in self.data])

    def choosing_data(self) -> BuilderForm:
        """Return the form with a data row, whose folder is open."""
        rows = self.data or [DataRow(1)]
        return replace(self, data=rows, browsing=str(rows[0].key))

    def _with_definition(self, label: str) -> BuilderForm:
        """Return the form with one more model definition, in the first row that names none."""
        empty = next((row for row in self.parts if not row.definition), None)
        if empty is None:
            return replace(self, parts=[*self.parts, PartRow(_next(self.parts), definition=label)])
        return replace(self, parts=[replace(row, definition=label) if row is empty else row for row in self.parts])


@dataclass(frozen=True)
class FormReading:
    """The experiment that a form describes, and the mistakes that keep fields from being read."""

    draft: PlanDraft
    problems: Sequence[PlanProblem] = field(default_factory=list)


def form_of(values: Mapping[str, str]) -> BuilderForm:
    """Return the form with these fields. `data-rows` and `part-rows` name the keys of the rows."""
    def text(name: str) -> str:
        return values.get(name, "").strip()

    return BuilderForm(
        text("name"), text("description"), text("command"),
        text("share") if text("share") in SHARING else PRIVATE, text("users"), bool(text("create")),
        _rows(DataRow, "data", values), _rows(PartRow, "part", values), text("browsing"))


def _rows(kind: type[R], prefix: str, values: Mapping[str, str]) -> list[R]:
    keys = [word for word in values.get(f"{prefix}-rows", "").split() if word.isdecimal() and len(word) < 9]
    names = [one.name for one in fields(kind) if one.name != "key"]
    return [kind(int(key), **{name: values.get(f"{prefix}-{key}-{name}", "").strip() for name in names})
            for key in list(dict.fromkeys(keys))[:MOST_ROWS]]


def form_of_draft(draft: PlanDraft) -> BuilderForm:
    """Return the form that describes an experiment."""
    shared = draft.shared
    share = EVERYBODY if shared is True else LISTED if shared else PRIVATE
    users = "" if isinstance(shared, bool) or shared is None else ", ".join(shared)
    return BuilderForm(
        draft.name, draft.description, draft.command, share, users, draft.create_data,
        data_rows(draft.data),
        [_part_row(key, part) for key, part in enumerate(draft.parts, 1)])


def data_rows(sources: Sequence[Any]) -> list[DataRow]:
    """Return the rows of data sources."""
    return [_data_row(key, source) for key, source in enumerate(sources, 1)]


def read(form: BuilderForm) -> FormReading:
    """Return the experiment that a form describes."""
    problems: list[PlanProblem] = []
    data = sources_of(form.data, problems)
    parts = [_part(number, row, problems) for number, row in enumerate(form.parts)]
    return FormReading(PlanDraft(form.name, parts, form.description, data, form.create, form.command,
                                 shared_of(form.share, form.users)), problems)


def sources_of(rows: Sequence[DataRow], problems: list[PlanProblem]) -> list[Any]:
    """Return the data sources of rows. Mistakes are added to `problems`."""
    found = []
    for row in rows:
        try:
            found.append(source_of(row))
        except ValueError as problem:
            problems.append(PlanProblem("data", "submission.data_source", str(problem)))
    return found


def shared_of(share: str, users: str) -> Sequence[str] | bool:
    """Return the users of a choice and a list."""
    if share == EVERYBODY:
        return True
    return [name for name in users.replace(",", " ").split() if name] if share == LISTED else []


def source_of(row: DataRow) -> Any:
    """Return the data source of a row. Raises ValueError for a row that is no data source."""
    if row.kind == AS_JSON:
        try:
            return strict_json.read(row.json)
        except ValueError as problem:
            raise ValueError(f"the data source {problem}") from None
    if row.kind == BEHIND:
        place = {**({"bucket": row.bucket} if row.bucket else {}), **({PATH: row.path} if row.path else {})}
        return {TYPE: CONNECTED, CONNECTION: {NAME: row.connection}, LOCATION: place, **_delivery(row.deliver)}
    if row.kind == IN_VOLUME:
        return {TYPE: FS, LOCATION: {VOLUME: row.volume, PATHS: row.path}}
    return {TYPE: FS, LOCATION: {PATHS: row.path}}


def _delivery(deliver: str) -> dict[str, Any]:
    """Return the keys of a data source that say how the program gets it."""
    if deliver == STREAM:
        return {ACCESS: STREAM}
    volume = deliver.removeprefix("volume:")
    if volume != deliver:
        return {ACCESS: "download", TARGET: {VOLUME: volume}}
    return {ACCESS: "download", TARGET: deliver} if deliver in ("local", "shared") else {}


def _data_row(key: int, source: Any) -> DataRow:
    """Return the row of a data source: as JSON if the other kinds cannot express it."""
    place = source.get(LOCATION) if isinstance(source, dict) else None
    if isinstance(place, dict):
        target, reference = source.get(TARGET), source.get(CONNECTION)
        deliver = STREAM if source.get(ACCESS) == STREAM else (
            f"volume:{target.get(VOLUME)}" if isinstance(target, dict) else str(target or ""))
        name = reference.get(NAME, "") if isinstance(reference, dict) else ""
        for row in (DataRow(key, FOLDER, path=str(place.get(PATHS, ""))),
                    DataRow(key, IN_VOLUME, path=str(place.get(PATHS, "")), volume=str(place.get(VOLUME, ""))),
                    DataRow(key, BEHIND, path=str(place.get(PATH, "")), bucket=str(place.get("bucket", "")),
                            connection=str(name), deliver=deliver)):
            if source_of(row) == source:
                return row
    return DataRow(key, AS_JSON, json=json.dumps(source, indent=1))


def _part(number: int, row: PartRow, problems: list[PlanProblem]) -> PlanPart:
    def whole(name: str) -> int | None:
        text = getattr(row, name)
        if not text:
            return None
        if text.isdecimal() and 0 < int(text[:12]) <= 1_000_000:
            return int(text)
        problems.append(PlanProblem(f"definitions.{number}.{name}", "experiment.invalid", f"'{text[:40]}' {_WHOLE}"))
        return None

    hardware: str | Mapping[str, Any] | None = row.hardware or None
    if row.hardware == CUSTOM:
        hardware = _spec(number, row, problems)
    return PlanPart(
        row.definition, whole("version"), row.command, row.nodes or None, whole("count"), whole("least"),
        row.device or None, hardware, whole("hardware_version") if row.hardware not in ("", CUSTOM) else None,
        row.mig or None)


def _spec(number: int, row: PartRow, problems: list[PlanProblem]) -> Mapping[str, Any]:
    """Return the hardware specification of the fields of a row."""
    if row.spec:
        try:
            found = strict_json.read(row.spec)
        except ValueError:
            found = None
        if isinstance(found, dict):
            return found
        problems.append(PlanProblem(f"definitions.{number}.hardware", "hardware.invalid", "is not a JSON object"))
        return {}
    return spec_of(row.gpus, row.memory)


def spec_of(gpus: str, memory: str) -> dict[str, Any]:
    """Return the hardware specification for GPUs and memory per node, as texts; empty for any."""
    return {"nodes": {**({"gpu": {"num_gpu": gpus}} if gpus else {}), **({"mem": {"size": memory}} if memory else {})}}


def _part_row(key: int, part: PlanPart) -> PartRow:
    hardware, gpus, memory, spec = part.hardware, "", "", ""
    if isinstance(hardware, Mapping):
        nodes = hardware.get("nodes") or {}
        gpus = str((nodes.get("gpu") or {}).get("num_gpu") or "")
        memory = str((nodes.get("mem") or {}).get("size") or "")
        spec = "" if spec_of(gpus, memory) == hardware else json.dumps(hardware)
    return PartRow(
        key, part.definition, _shown(part.version), part.nodes or "", _shown(part.count), _shown(part.least),
        part.device or "", CUSTOM if isinstance(hardware, Mapping) else hardware or "", _shown(part.hardware_version),
        gpus, memory, spec, part.mig or "", part.command)


def _shown(value: int | None) -> str:
    return "" if value is None else str(value)


def _next(rows: Iterable[DataRow | PartRow]) -> int:
    return max((row.key for row in rows), default=0) + 1
