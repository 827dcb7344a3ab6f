"""Previews of data sources."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field
from typing_extensions import NotRequired, TypedDict

from dlicmd.contract import wire
from local_backend.api.models.common import Body, Refusal, Time, described


class PreviewRequest(Body):
    """Data sources to preview."""

    dataSource: Annotated[
        list[Any],
        Field(json_schema_extra={"items": {"type": "object"}}),
        Refusal(f'The body must be a JSON object with a list "{wire.DATA_SOURCE}" of data sources'),
    ]
    """1 to 10 data sources"""


@described
class FoundFile(TypedDict):
    """A file of a data source."""

    path: str
    """Path of the file"""
    bytes: int | None
    """Size in bytes, null if unknown"""


@described
class UnreadableFile(TypedDict):
    """A file that jobs cannot read."""

    path: str
    """Path of the file"""
    message: str
    """Why not"""


@described
class Column(TypedDict):
    """A column of a table."""

    name: str
    """Name of the column"""
    type: str
    """Type of the column"""


@described
class PreviewObject(TypedDict):
    """What a data source contains."""

    name: str | None
    """Name of the source"""
    type: str
    """Type of the source"""
    access: str
    """How the data reaches the exec"""
    path: NotRequired[str]
    """Path on the server"""
    kind: NotRequired[str]
    """Kind of the connection"""
    ok: bool
    """Whether an exec could read the data"""
    message: NotRequired[str]
    """Why not"""
    files: NotRequired[int]
    """Number of files"""
    more: NotRequired[bool]
    """Whether there are more files than were counted"""
    bytes: NotRequired[int | None]
    """Size in bytes"""
    names: NotRequired[list[FoundFile]]
    """The first 10 files"""
    sample: NotRequired[str]
    """The file that `format`, `schema` and `rows` describe"""
    format: NotRequired[str]
    """Format of the data"""
    schema: NotRequired[list[Column]]
    """Columns"""
    rowCount: NotRequired[int | None]
    """Number of rows"""
    rowCountEstimated: NotRequired[bool]
    """Whether the number of rows is an estimate"""
    rows: NotRequired[list[list[Any]]]
    """The first 10 rows"""
    encoding: NotRequired[str]
    """`latin-1` if the text is not UTF-8, and is read as Latin-1"""
    shape: NotRequired[list[int]]
    """Shape of an array"""
    dtype: NotRequired[str]
    """Type of the elements of an array"""
    arrays: NotRequired[list[dict[str, Any]]]
    """The arrays of a NumPy archive"""
    unreadable: NotRequired[int]
    """Number of files that jobs cannot read"""
    unreadableNames: NotRequired[list[UnreadableFile]]
    """The first files that jobs cannot read"""


@described
class VolumeObject(TypedDict):
    """A storage volume."""

    name: str
    """Name of the volume"""
    exists: bool
    """Whether its folder exists"""


class DataUploadParts(TypedDict):
    """Files of data as multipart/form-data."""

    file: Annotated[str, Field(json_schema_extra={"format": "binary"})]
    """A file, any number of times. Its file name may be a path: the server creates the folders"""


@described
class StoredDataObject(TypedDict):
    """Stored files."""

    path: str
    """Their folder, as data sources name it: relative to the volume, or to DLI_DATA_FS"""
    files: int
    """Number of files"""
    bytes: int
    """Their size"""


@described
class EntryObject(TypedDict):
    """A file or folder."""

    name: str
    """Its name"""
    folder: bool
    """Whether it is a folder"""
    bytes: int
    """Size of a file"""
    modified: Time
    """Last change"""


@described
class PlaceObject(TypedDict):
    """What a path of data means."""

    folder: bool
    """Whether it is a folder"""
    bytes: int
    """Size of a file"""
    modified: Time
    """Last change"""
    more: bool
    """Whether the folder has more entries"""
    entries: list[EntryObject]
    """The first entries of a folder, folders first"""
