"""Pictures in folders: the folder is the class."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fabric_data.errors import DataProblem
from fabric_data.samples import Samples

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")


class Images(Samples):
    """Sample i is (uint8 tensor of shape [3, height, width], number of the class). `classes` has the names."""

    sample, whole = "picture", "the folders have"

    def __init__(self, place: Path, files: Sequence[Path], transform: Callable[[Any], Any] | None) -> None:
        super().__init__(transform)
        try:
            import PIL.Image  # noqa: F401
        except ImportError:
            raise DataProblem("pictures need Pillow: pip install pillow") from None
        inside = [(path.relative_to(place).parts, path) for path in files] if place.is_dir() else []
        flat = [path for parts, path in inside if len(parts) < 2]
        if flat or not inside:
            raise DataProblem(f"{flat[0] if flat else place} is not in the folder of a class; put the pictures of each "
                              "class into a folder with its name, and open the parent folder")
        self.classes = sorted({parts[0] for parts, _ in inside})
        numbers = {name: number for number, name in enumerate(self.classes)}
        self._samples = [(str(path), numbers[parts[0]]) for parts, path in inside]

    def __len__(self) -> int:
        return len(self._samples)

    def _sample(self, number: int) -> Any:
        from PIL import Image

        path, label = self._samples[number]
        try:
            with Image.open(path) as picture:
                pixels = np.array(picture.convert("RGB"))
        except (OSError, ValueError, Image.DecompressionBombError) as problem:
            raise DataProblem(f"{path} cannot be read as a picture: {problem}") from None
        return torch.from_numpy(pixels).permute(2, 0, 1).contiguous(), label

    def __repr__(self) -> str:
        return f"<{len(self)} pictures of {len(self.classes)} classes>"
