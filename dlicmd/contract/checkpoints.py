"""The files of a training with FabricModel: which of them only continue the training, and are not needed to serve its
model. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

_FINAL = "model_epoch_final.pth"
#: States from which a training continues, and the checkpoint of an epoch.
_STATE = re.compile(r"model_epoch_\w+?(?:_optimizer_state\.pth|_training_state\.snapshot)")
_EPOCH = re.compile(r"model_epoch_\d+(?:_ema)?\.pth")


def to_serve(paths: Iterable[str]) -> list[str]:
    """Return the files that serving needs: without the states from which a training continues, and without the weights
    of epochs in a folder with final ones."""
    known = list(paths)
    final = {path.removesuffix(_FINAL) for path in known if path.rpartition("/")[2] == _FINAL}

    def is_needed(path: str) -> bool:
        folder, slash, name = path.rpartition("/")
        return not (_STATE.fullmatch(name) or (_EPOCH.fullmatch(name) and f"{folder}{slash}" in final))

    return [path for path in known if is_needed(path)]
