"""The paths where the program of a model folder may be."""

from __future__ import annotations


def program_places(main: str, folder_name: str | None) -> list[str]:
    """Return paths relative to the model folder where `--model-main main` may be, in order.

    The paths are: as typed, below the folder's own name if the path goes through it, and the base name. No path leads
    outside the folder.
    """
    parts = [part for part in main.split("/") if part not in {"", "."}]
    places = [parts]
    if folder_name in parts:
        places.append(parts[parts.index(folder_name) + 1 :])
    places.append(parts[-1:])
    return list(dict.fromkeys("/".join(place) for place in places if place and ".." not in place))
