"""Corrected command lines of verbs: the whole line that a user probably meant. Secrets are masked."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence

from dlicmd.contract.options import Form
from dlicmd.contract.secret import masked_arguments, masked_words
from dlicmd.contract.verbs import BY_VERB, Verb, canonical, destroys, verb_option

_PROGRAMS = (".py", ".sh", ".ipynb", ".yaml", ".yml")
#: Programs that run other programs: their names begin commands, not paths.
_LAUNCHERS = re.compile(r"python(\d(\.\d+)?)?|(ba|z)?sh|env|torchrun|accelerate|deepspeed|mpirun|srun|uv|conda|pip3?")


def with_command(word: str, meant: str, rest: Sequence[str], is_valid: Callable[[Sequence[str]], bool]) -> str:
    """Return a line with a command in place of a wrong first word. The words after that word replace the examples of
    the command, such as ID in `get ID`, if the command takes them and destroys nothing.

    `is_valid` returns whether words are a line of a verb.
    """
    head, *examples = meant.split()
    if examples == [word]:  # a program: `dlicmd train.py --lr 0.1`
        return _line([head, word, *rest]) if "--" in rest else for_program(BY_VERB[head], [word, *rest], None)
    if head.startswith("-") or not rest or destroys(head):
        return f"dlicmd {meant}"
    if all(example.isupper() or example in ("ID...", "[DIR|FILE]", "train.py") for example in examples):
        examples = []
    words = [head, *examples, *rest]
    if is_valid(words):
        return _line(words)
    has_program = head in BY_VERB and BY_VERB[head].program and "--" not in rest
    return for_program(BY_VERB[head], rest, None) if has_program else f"dlicmd {meant}"


def with_option(verb: Verb, words: Sequence[str], at: int, meant: str, after: Sequence[str] | None) -> str:
    """Return a line with an option in place of the unknown one at `at` of the words between verb and `--`."""
    _, equals, value = words[at].partition("=")
    option, rest = verb_option(verb, meant), words[at + 1 :]
    is_flag = option is not None and option.kind is Form.FLAG
    put = [f"{meant}={value}"] if equals and " " not in meant and not is_flag else meant.split()
    if is_flag and verb.most == 0 and rest and not rest[0].startswith("-"):
        rest = rest[1:]  # the value that a flag does not take
    return _line([verb.name, *words[:at], *put, *rest], after)


def with_typed_options(typed: Sequence[str], text: str) -> str:
    """Return a message with the options of a verb in place of those of the option table that they stand for, spelled
    as in the line. `typed` are all words of the line."""
    verb, own = BY_VERB[typed[0]], typed[: typed.index("--")] if "--" in typed else typed
    found = [verb_option(verb, word.partition("=")[0]) for word in reversed(own) if word.startswith("--")]
    spelled = (option for option in (*reversed(verb.own), *found) if option is not None)
    names = {canonical(option, verb).name: option.name for option in spelled}
    return re.sub(r"(?<![\w-])--\w[\w-]*",
                  lambda match: match[0] if match[0] in typed else names.get(match[0], match[0]), text)


def with_word(typed: Sequence[str], wrong: str, right: str) -> str:
    """Return a line with a word in place of a wrong one. `typed` are all words of the line."""
    return _line([right if word == wrong else word for word in typed])


def with_command_after_dashes(typed: Sequence[str], first: str) -> str:
    """Return a line in which `first`, an operand, begins the command after `--`. `typed` are all words of the line."""
    end = typed.index("--") if "--" in typed else len(typed)
    own = list(typed[:end])
    own.remove(first)
    return _line(own, [first, *typed[end + 1:]])


def with_option_added(typed: Sequence[str], *option: str) -> str:
    """Return a line with one more option: its words. `typed` are all words of the line."""
    end = typed.index("--") if "--" in typed else len(typed)
    return _line([*typed[:end], *option, *typed[end:]])


def for_program(verb: Verb, words: Sequence[str], after: Sequence[str] | None) -> str:
    """Return a line with all words after `--` that are neither options of the verb nor its operands. A word after an
    unknown option is its value, unless it looks like the program to run. A command, such as `python train.py`, goes
    there as a whole."""
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
            if _LAUNCHERS.fullmatch(word):
                program += words[at:]
                break
            operands += 1
            kept.append(word)
        else:
            program.append(word)
        at += 1
    own = [*program, *(after or ())]
    return _line([verb.name, *kept], own or None)


def _line(words: Sequence[str], after: Sequence[str] | None = None) -> str:
    return shlex.join(["dlicmd", *masked_words(words), *([] if after is None else ["--", *masked_arguments(after)])])
