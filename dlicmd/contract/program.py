"""Where the program of a model folder is looked for."""

from __future__ import annotations


def program_places(main: str, folder_name: str | None) -> list[str]:
    """Paths relative to the model folder where `--model-main main` may be, in order.

    As typed, below the folder's own name when the path goes through it, and by its base name; never outside.
    """
    parts = [part for part in main.split("/") if part not in {"", "."}]
    places = [parts]
    if folder_name in parts:
        places.append(parts[parts.index(folder_name) + 1 :])
    places.append(parts[-1:])
    return list(dict.fromkeys("/".join(place) for place in places if place and ".." not in place))
