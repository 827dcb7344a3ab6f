"""Corrected command lines of verbs: the whole line that a user probably meant. Secrets are masked."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from dlicmd.contract.options import Form
from dlicmd.contract.secret import masked_arguments, masked_words
from dlicmd.contract.verbs import BY_VERB, Verb, verb_option

_PROGRAMS = (".py", ".sh", ".ipynb", ".yaml", ".yml")


def with_command(word: str, meant: str, rest: Sequence[str]) -> str:
    """Return a line with a command in place of a wrong first word. The words after that word replace the examples of
    the command, such as ID in `get ID`."""
    head, *examples = meant.split()
    if examples == [word]:  # a program: `dlicmd train.py --lr 0.1`
        return _line([head, word, *rest]) if "--" in rest else for_program(BY_VERB[head], [word, *rest], None)
    if head.startswith("-") or not rest:
        return f"dlicmd {meant}"
    if all(example.isupper() or example in ("ID...", "train.py") for example in examples):
        examples = []
    return _line([head, *examples, *rest])


def with_option(verb: Verb, words: Sequence[str], at: int, meant: str, after: Sequence[str] | None) -> str:
    """Return a line with an option in place of the unknown one at `at` of the words between verb and `--`."""
    _, equals, value = words[at].partition("=")
    put = [f"{meant}={value}"] if equals and " " not in meant else meant.split()
    return _line([verb.name, *words[:at], *put, *words[at + 1 :]], after)


def with_word(typed: Sequence[str], wrong: str, right: str) -> str:
    """Return a line with a word in place of a wrong one. `typed` are all words of the line."""
    return _line([right if word == wrong else word for word in typed])


def with_flag(typed: Sequence[str], flag: str) -> str:
    """Return a line with one more flag. `typed` are all words of the line."""
    end = typed.index("--") if "--" in typed else len(typed)
    return _line([*typed[:end], flag, *typed[end:]])


def for_program(verb: Verb, words: Sequence[str], after: Sequence[str] | None) -> str:
    """Return a line with all words after `--` that are neither options of the verb nor its operands. A word after an
    unknown option is its value, unless it looks like the program to run."""
    kept: list[str] = []
    program: list[str] = []
    at, operands = 0, 0
    while at < len(words):
        word = words[at]
        option = verb_option(verb, word.partition("=")[0]) if word.startswith("-") else None
        if option is not None:
            count = 1 if option.kind is Form.FLAG or "=" in word else 2
            kept += words[at : at + count]
            at += count
            continue
        is_value = at > 0 and program[-1:] == [words[at - 1]] and words[at - 1].startswith("-")
        if not word.startswith("-") and operands < verb.most and (not is_value or word.endswith(_PROGRAMS)):
            operands += 1
            kept.append(word)
        else:
            program.append(word)
        at += 1
    own = [*program, *(after or ())]
    return _line([verb.name, *kept], own or None)


def _line(words: Sequence[str], after: Sequence[str] | None = None) -> str:
    return shlex.join(["dlicmd", *masked_words(words), *([] if after is None else ["--", *masked_arguments(after)])])
