"""Where a submission names data of the user: paths in --cs-datastore-meta and --data-source."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from dlicmd.contract.data_sources import PATH_KEYS
from dlicmd.errors import UsageProblem


def change_meta(text: str, change: Callable[[str], str]) -> str:
    """The value of --cs-datastore-meta with its `data_path` changed."""
    items = [item.partition("=") for item in text.split(",")]
    return ",".join(
        key + equals + (change(value) if key.strip() == "data_path" else value) for key, equals, value in items
    )


def change_source(source: dict[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    """A data source of type fs with its paths changed; any other as it is, for example one on a volume."""
    location = source.get("location")
    if source.get("type") != "fs" or not isinstance(location, dict) or "volume" in location:
        return source
    changed = dict(location)
    for key in PATH_KEYS:
        value = location.get(key)
        if isinstance(value, str):
            paths = [path.strip() for path in value.split(",")]
            new = [change(path) for path in paths]
            changed[key] = value if new == paths else ",".join(new)
        elif isinstance(value, list):
            changed[key] = [change(item) if isinstance(item, str) else item for item in value]
    return {**source, "location": changed}


def names_place(text: str) -> bool:
    """Whether a path is one of the machine where it was typed: it starts with `./`, `../` or `~`."""
    return text in (".", "..") or text.startswith(("./", "../", "~"))


def local_path(text: str) -> str:
    """An absolute path for what names a place of this machine; any other stays.

    A bare name is relative to DLI_DATA_FS, and so may be one with a leading slash: the server knows. Raises
    UsageProblem when nothing is there.
    """
    if not names_place(text):
        return text
    path = os.path.abspath(os.path.expanduser(text))
    if not os.path.exists(path):
        raise UsageProblem(f"the data path '{text}' does not exist")
    return path
