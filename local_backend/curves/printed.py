"""Metrics in the lines that programs print: `loss: 0.1`, `Epoch 3/10 ... loss=0.5`, dicts, progress bars, tables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from local_backend.curves.model import BATCH, EPOCH, LINE, PRINTED, STEP, MetricValue
from local_backend.curves.printed_table import PrintedTable, may_be_row, may_name_columns
from local_backend.curves.records import LONGEST

#: A line without any of these texts has no metric.
HINTS = (b"loss", b"acc", b"ppl", b"perplexity", b"f1", b"auc", b"bleu", b"reward", b"_norm", b"learning_rate", b"lr",
         b"mse", b"mae", b"error", b"iou", b"map", b"psnr", b"wer", b"precision", b"recall")
#: Maximum number of lines to search in one call. Of more lines, the reader searches only some, and the last one.
MOST = 2000
#: Maximum bytes of a line with metrics.
_WIDEST = 2000

_NUMBER = r"[-+]?(?:[0-9]{1,20}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})(?:[eE][-+]?[0-9]{1,3})?|[-+]?(?:nan|inf)\b"
#: Space between words. It is bounded: several searches for unbounded space in one long line of spaces take minutes.
_GAP = r"\s{0,9}"
#: A word of a name, and a name of at most four words.
_WORD = r"(?!(?:nan|inf)\b)[A-Za-z][A-Za-z0-9_@./-]{0,50}"
_PAIR = re.compile(
    rf"(?<![A-Za-z0-9_@./-])(?P<name>{_WORD}(?: {_WORD}){{0,3}})['\"]?\s{{0,3}}(?:[:=]\s{{0,3}}|\s)['\"]?"
    rf"(?P<value>{_NUMBER})(?![0-9A-Za-z_]|%\|)(?:/(?P<of>[0-9]{{1,12}})(?![0-9.]))?",
    re.IGNORECASE,
)
#: Words that make a name a metric, those that do so only beside others, and those that belong to a name before them.
_METRICS = frozenset({
    "loss", "losses", "acc", "accuracy", "ppl", "perplexity", "f1", "auc", "auroc", "bleu", "rouge", "reward",
    "precision", "recall", "mse", "mae", "rmse", "iou", "miou", "map", "psnr", "wer", "cer", "nll", "bpc", "lr", "norm",
    "top1", "top5", "acc1", "acc5",
})
_BESIDE = frozenset({"error", "err", "score", "rate"})
_BEFORE = frozenset({
    "train", "training", "val", "valid", "validation", "dev", "test", "eval", "evaluation", "mean", "avg", "average",
    "total", "best", "final", "grad", "learning", "running", "epoch", "batch", "smooth", "smoothed", "top", "error",
    "word", "char", "macro", "micro", "weighted", "balanced",
})
_TERMINAL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f]")
_EPOCH = re.compile(
    rf"\bepochs?{_GAP}[:=#]?{_GAP}[\[(]?{_GAP}(?P<epoch>[0-9]{{1,9}}(?:\.[0-9]{{1,9}})?)"
    rf"(?:{_GAP}/{_GAP}(?P<epochs>[0-9]{{1,9}}))?(?![0-9.]*%)",
    re.IGNORECASE)
_STEP = re.compile(
    rf"\b(?P<unit>step|steps|global[_ ]step|iter|iters|iteration|it|update|batch|batches)['\"]?{_GAP}[:=#]?{_GAP}[\[(]?"
    rf"{_GAP}(?P<step>[0-9]{{1,15}})(?:{_GAP}/{_GAP}(?P<steps>[0-9]{{1,15}}))?", re.IGNORECASE)
_AFTER = re.compile(r"\bafter (?P<step>[0-9]{1,15}) (?P<unit>batches|steps|epochs|iterations)\b", re.IGNORECASE)
_BAR = re.compile(r"(?:^|[\s|\[(])(?P<at>[0-9]{1,12})/(?P<all>[0-9]{1,12})(?=[\s\])|,:(]|$)")
_AFTER_NAME = re.compile(rf"[A-Za-z]{_GAP}[:=]{_GAP}$")
_TUTORIAL = re.compile(r"^\s*\[(?P<epoch>[0-9]{1,9}),\s*(?P<step>[0-9]{1,12})\]")
_DICT_EPOCH = re.compile(rf"['\"]epoch['\"]{_GAP}:{_GAP}['\"]?(?P<epoch>[0-9]{{1,9}}(?:\.[0-9]{{1,20}})?)")


class _Place(NamedTuple):
    """The step of a line, its unit, and the last step of the training, if the line names it."""

    step: float | None
    unit: str
    total: float | None = None


class PrintedReader:
    """Reads the output of a program."""

    source = PRINTED

    def __init__(self) -> None:
        #: Number of the first epoch that a line named, the newest epoch, and the number of epochs.
        self._first: float | None = None
        self._epoch: float | None = None
        self._epochs: float | None = None
        #: Batches of the bars before the present one, and its last position and size.
        self._before, self._at, self._all = 0, 0, 0
        #: Steps of earlier epochs, if each epoch counts its own; the epoch and the step of the last line.
        self._earlier, self._counted_step = 0.0, 0.0
        self._counted_epoch: float | None = None
        #: Whether lines without another text begin the epochs, as those of Keras do.
        self._headed = False
        self._table = PrintedTable(lambda name: bool(_metric(name)))

    def feed(self, data: bytes, final: bool) -> tuple[int, list[MetricValue]]:
        """See Reader."""
        size = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if final or (not size and len(data) >= LONGEST):
            size = len(data)
        lines = [line for line in data[:size].replace(b"\r", b"\n").split(b"\n") if 0 < len(line) <= _WIDEST]
        head = self._head(lines)
        chosen = list(self._chosen(lines, head))
        if len(chosen) > MOST:
            every = -(-len(chosen) // MOST)
            chosen = [line for at, line in enumerate(chosen[:-1]) if at % every == 0 or line is head] + chosen[-1:]
        return size, [value for line in chosen for value in self.line(_text(line))]

    def _head(self, lines: list[bytes]) -> bytes | None:
        """Return the line that names the columns of the first table; None if there is none, or a table has begun."""
        found = (line for line in lines if may_name_columns(line) and self._table.columns(_plain(_text(line))))
        return None if self._table.begun else next(found, None)

    def _chosen(self, lines: list[bytes], head: bytes | None) -> Iterator[bytes]:
        """Yield the lines that may have metrics. The rows of a table have numbers alone."""
        tabled = self._table.begun
        for line in lines:
            tabled = tabled or line is head
            if (tabled and may_be_row(line)) or b"poch" in line or _hinted(line.lower()):
                yield line

    def line(self, text: str) -> list[MetricValue]:
        """Return the metrics in one line."""
        text = _plain(text)
        if self._table.begin(text):
            return []
        if (row := self._table.row(text)) is not None:
            unit = EPOCH if self._table.counts_epochs else STEP
            return [MetricValue(name, value, row[0], unit) for name, value in row[1]]
        place = self._place(text)
        return [MetricValue(name, value, place.step, place.unit, total=place.total) for name, value in pairs(text)]

    def _place(self, text: str) -> _Place:
        """Return the step that a line names."""
        if (found := _AFTER.search(text)) is not None:
            unit = {"batches": BATCH, "epochs": EPOCH}.get(found["unit"].lower(), STEP)
            return _Place(float(found["step"]), unit)
        if (found := _TUTORIAL.search(text)) is not None:
            self._epoch = float(found["epoch"])
            return self._counted(float(found["step"]), BATCH)
        if (found := _DICT_EPOCH.search(text)) is not None:
            return _Place(float(found["epoch"]), EPOCH)
        return self._within(text)

    def _within(self, text: str) -> _Place:
        """Return the step of a line that may name an epoch, a step, both, or the position of a bar."""
        named = _EPOCH.search(text)
        if named is not None:
            self._epoch = float(named["epoch"])
            self._epochs = float(named["epochs"]) if named["epochs"] else None
            self._first = min(1.0 if self._first is None else self._first, self._epoch)
            self._headed = self._headed or not text[named.end():].strip(" .:")
        rest = text[named.end():] if named is not None else text
        step, bars = _STEP.search(rest), _BAR.finditer(rest)
        bar = next((one for one in bars if not _AFTER_NAME.search(rest[: one.start() + 1])), None)
        if step is not None:
            return self._stepped(step, named is not None)
        if bar is not None and int(bar["all"]) > 0:
            return self._barred(int(bar["at"]), int(bar["all"]), named is not None or self._headed, "%)" in rest)
        return _Place(None, LINE) if named is None else _Place(self._epoch, EPOCH, self._epochs)

    def _stepped(self, found: re.Match[str], in_epoch: bool) -> _Place:
        """Return the place of a line with a step, perhaps within an epoch."""
        unit = BATCH if found["unit"].lower().startswith("batch") else STEP
        step, steps = float(found["step"]), float(found["steps"] or 0)
        if in_epoch and steps and self._epoch is not None:
            return _Place((self._epoch - (self._first or 0.0)) * steps + step, unit, self._whole_training(steps))
        return self._counted(step, unit) if in_epoch else _Place(step, unit, steps or None)

    def _whole_training(self, size: float) -> float | None:
        """Return the size of all epochs, if their number is known. Of epochs from 0, the last may be named instead."""
        return self._epochs * size if self._epochs is not None and self._first else None

    def _counted(self, step: float, unit: str) -> _Place:
        """Return the place of a step in an epoch of unknown length. The steps may begin again in each epoch."""
        if self._epoch != self._counted_epoch:
            self._earlier += self._counted_step if step <= self._counted_step else 0.0
            self._counted_epoch = self._epoch
        self._counted_step = step
        return _Place(self._earlier + step, unit)

    def _barred(self, at: int, size: int, in_epoch: bool, samples: bool) -> _Place:
        """Return the place of a progress bar: batches since the beginning. Bars of other sizes are other loops."""
        if in_epoch and self._epoch is not None:
            done = self._epoch - (self._first or 0.0)
            if samples:
                return _Place(done + at / size, EPOCH, self._whole_training(1))
            return _Place(done * size + at, BATCH, self._whole_training(size))
        if size == self._all and at < self._at:
            self._before += self._all
        elif size != self._all:
            self._before, self._all = 0, size
        self._at = at
        return _Place(float(self._before + at), BATCH)


def _text(line: bytes) -> str:
    return line.decode(errors="replace")


def _plain(text: str) -> str:
    """Return a line without colors and other commands of terminals."""
    return _TERMINAL.sub("", text)


def _hinted(line: bytes) -> bool:
    return any(hint in line for hint in HINTS)


def pairs(text: str) -> list[tuple[str, float]]:
    """Return the metrics in a text: name and number. `9/10` becomes 0.9; the number of a percentage stays."""
    found: list[tuple[str, float]] = []
    for match in _PAIR.finditer(text):
        name = _metric(match["name"])
        if name and len(found) < 50:
            value, of = float(match["value"]), float(match["of"] or 0)
            found.append((name, value / of if of else value))
    return found


def _metric(text: str) -> str:
    """Return the name of a metric at the end of a text, with the words that belong to it; "" if there is none."""
    words = text.strip(" ./-").split(" ")
    last = set(_parts(words[-1]))
    beside = {part for word in words[:-1] for part in _parts(word)} | last - _BESIDE
    if not (_METRICS & last or (_BESIDE & last and _BEFORE & beside)):
        return ""
    kept = [words[-1]]
    for word in reversed(words[:-1]):
        if not set(_parts(word)) <= _BEFORE | _METRICS:
            break
        kept.insert(0, word)
    return " ".join(kept)


def _parts(word: str) -> list[str]:
    """Return the words in a word: `valLoss` and `val_loss` have two."""
    return [part for part in re.split(r"[^a-z0-9]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", word).lower()) if part]
