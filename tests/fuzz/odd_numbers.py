"""Texts in place of numbers, and which of them are valid: the same for command lines and servers."""

from __future__ import annotations

from dlicmd.contract.argv import MAX_NUMBER
from dlicmd.contract.options import COMMANDS, OPTIONS, Form, Option

#: Invalid for every option.
NONE = ["-0.5", "", "NaN", "inf", "-inf", "Infinity", "1e3", "0x10", "0b1", "１", "½", "²", "٣", "1,5", "+1", "1_000",
        "--1", "1\n2", "1;2", "lots", "9" * 11, "9" * 400, "1" + "0" * 20]
#: Valid for some kinds of options.
FOR_SOME = {
    "-1": {Form.INTEGER, Form.PORT},
    "0": {Form.COUNT, Form.DEVICES, Form.INTEGER, Form.PORT},
    "1.5": {Form.AMOUNT, Form.SIZE},
    str(MAX_NUMBER): {Form.POSITIVE, Form.COUNT, Form.DEVICES, Form.SECONDS, Form.INTEGER, Form.SIZE},
    str(MAX_NUMBER + 1): {Form.SIZE},
    "65536": {Form.POSITIVE, Form.COUNT, Form.DEVICES, Form.SECONDS, Form.INTEGER, Form.AMOUNT, Form.SIZE},
}
_NUMERIC = {Form.POSITIVE, Form.COUNT, Form.DEVICES, Form.SECONDS, Form.PORT, Form.INTEGER, Form.AMOUNT, Form.SIZE}
#: The bounds that an error message names.
BOUNDS = {
    Form.POSITIVE: ("between 1 and 1000000000",), Form.COUNT: ("between 0 and 1000000000",),
    Form.DEVICES: ("between 0 and 1000000000",), Form.SECONDS: ("between 1 and 1000000000",),
    Form.PORT: ("between -1 and 65535",), Form.INTEGER: ("between -1000000000 and 1000000000",),
    Form.AMOUNT: ("between 0.001 and 1000000000",), Form.SIZE: ("at most 1024t", "more than 0 and at most 1024 t"),
}


def taking_numbers() -> list[Option]:
    """Return every option and command with a numeric value or a size."""
    return [option for option in (*COMMANDS, *OPTIONS) if option.kind in _NUMERIC and option.metavar]


def values(option: Option) -> list[tuple[str, bool]]:
    """Return texts for the value of an option, and whether each is valid."""
    return [(value, False) for value in NONE] + [(value, option.kind in fine) for value, fine in FOR_SOME.items()]
