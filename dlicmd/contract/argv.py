"""The grammar of a command line, shared by the client (its argv) and the server (the `args` of a submission).

Options match exactly, never by abbreviation, so that a program's own `--num` or `--out` goes to the program. Words
that the option table does not know belong to the program, in order. After a lone `--`, all words do.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from dlicmd.contract.options import BY_NAME, COMMAND_NAMES, DESTROYING, Arity, Form, Option, Travel, option_named
from dlicmd.contract.sizes import parse_size

#: Commands that pass unknown words to the program; for other commands, an unknown word is an error.
SUBMITTING = frozenset({"--exec-start", "--demo"})
#: Commands that take words of the program after `--` alone.
WITH_PROGRAM = frozenset({"--hpo-start", "--exec-again"})
#: Flags that are a command with an operand when no command precedes them.
_FLAG_COMMANDS = frozenset({"--follow", "--wait"})
#: Client options that other clients let slip into `args`, as `--password=S`. The server drops them, because they do
#: not concern the program. Servers know no other client options: such words go to the program.
_SLIPPED = frozenset({"--rest-host", "--rest-port", "--username", "--password", "--jwt-token", "--query-args"})
MAX_NUMBER = 10**9
_BOUNDS = {
    Form.POSITIVE: (1, MAX_NUMBER), Form.COUNT: (0, MAX_NUMBER), Form.DEVICES: (0, MAX_NUMBER),
    Form.SECONDS: (1, MAX_NUMBER), Form.PORT: (-1, 65535),
}
#: Fewest and most operands of a command.
_OPERANDS = {Arity.ONE: (1, 1), Arity.MANY: (1, MAX_NUMBER), Arity.TWO: (2, 2), Arity.OPTIONAL: (0, 1)}
#: `-o` and its value in one word.
SHORT_FORMAT = re.compile(r"-o(jsonl?|yaml|custom-columns=.+)")


class ArgvError(ValueError):
    """The command line is wrong; the text says what and where, in one line for the user."""


class Given(NamedTuple):
    """An option as it is given: its spelling, and its value as text; None for a flag.

    `glued`: the value is in the same word, after a `=`. `place`: the number of the program's words before the option.
    """

    option: Option
    text: str | None
    spelling: str = ""
    glued: bool = False
    place: int = 0

    @property
    def words(self) -> list[str]:
        """This option and its value as words of a command line."""
        name = self.spelling or self.option.name
        if self.text is None:
            return [name]
        return [f"{name}={self.text}"] if self.glued or self.text.startswith("-") else [name, self.text]


class CommandLine:
    """A parsed command line.

    `values` maps canonical option names to values. A value is True for a flag, a list for a repeatable option, int or
    float for a number, else the text. `program` has the words for the user's program: first the words before `--` that
    are not ours, then the words after it. `after_dashes` has only the latter, or is None when there is no `--`.
    `operands` are the operands of the command, and `operand` is the first of them. `given` are the options in their
    order, as typed. `own` are the words that are ours. `verb` is the first word of a command line with a verb; its
    `command` is the long option that does the same, and `typed` are all its words.
    """

    def __init__(self, command: str | None = None, operand: str | None = None) -> None:
        self.command = command
        self.verb: str | None = None
        self.typed: Sequence[str] = ()
        self.operands = [] if operand is None else [operand]
        self.values: dict[str, object] = {}
        self.program: list[str] = []
        self.after_dashes: list[str] | None = None
        self.given: list[Given] = []
        self.own: list[str] = []

    def __repr__(self) -> str:
        return f"CommandLine({vars(self)})"

    @property
    def operand(self) -> str | None:
        """The first operand of the command, or None."""
        return self.operands[0] if self.operands else None

    @property
    def before_dashes(self) -> list[str]:
        """The words of the program before any `--`."""
        return self.program[: len(self.program) - len(self.after_dashes or ())]

    def text(self, name: str) -> str | None:
        """Return the value of a text option, or None."""
        value = self.values.get(name)
        return value if isinstance(value, str) else None

    def number(self, name: str) -> int | None:
        """Return the value of a numeric option, or None."""
        value = self.values.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def amount(self, name: str) -> float | None:
        """Return the value of an option that may have a fraction, or None."""
        value = self.values.get(name)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    def flag(self, name: str) -> bool:
        """Return whether a flag is given."""
        return self.values.get(name) is True

    def many(self, name: str) -> list[str]:
        """Return the values of a repeatable option, in order."""
        value = self.values.get(name)
        return list(value) if isinstance(value, list) else []


class TypedOption(NamedTuple):
    """An option as typed, with its value; `words` is how many words they take."""

    option: Option
    name: str
    text: str | None
    words: int


def typed_option(
    words: Sequence[str], at: int, find: Callable[[str], Option | None], unknown: Callable[[str], str],
) -> TypedOption:
    """Return the option at `at`. `find` returns the option with a name; `unknown` the message about an option that the
    command lacks. Raises ArgvError."""
    word = words[at]
    short = SHORT_FORMAT.fullmatch(word)
    name, equals, glued = word.partition("=") if short is None else ("-o", "=", short[1])
    option = find(name)
    if option is None:
        raise ArgvError(unknown(name))
    if option.kind is Form.FLAG:
        if equals:
            raise ArgvError(f"{name} takes no value")
        return TypedOption(option, name, None, 1)
    if equals:
        return TypedOption(option, name, glued, 1)
    text = words[at + 1] if at + 1 < len(words) else None
    if text is None or text.startswith("--") or find(text.partition("=")[0]) is not None:
        raise ArgvError(f"{name} needs a value: {name} {option.metavar or '|'.join(option.choices)}")
    return TypedOption(option, name, text, 2)


def parse_argv(words: Sequence[str], sent: bool = False) -> CommandLine:
    """Parse the words of a command line; with `sent`, the words of the `args` that a client sent.

    Raises ArgvError when a value is missing or of the wrong kind, or when a word does not belong to the command.
    """
    line = CommandLine()
    own = list(words)
    if "--" in own:
        cut = own.index("--")
        line.after_dashes = own[cut + 1 :]
        own = own[:cut]
    position = 0
    while position < len(own):
        position += _take(line, own, position, sent)
    if line.after_dashes is not None:
        line.program.extend(line.after_dashes)
    alien = line.before_dashes if line.command in WITH_PROGRAM else line.program
    if alien and line.command not in SUBMITTING and line.command != "--help":
        raise ArgvError(_alien(line, alien[0]))
    return line


def _take(line: CommandLine, words: list[str], at: int, sent: bool) -> int:
    """Consume the word at `at`, with its value if it has one, and return the number of consumed words."""
    word = words[at]
    short = None if sent else SHORT_FORMAT.fullmatch(word)
    name, equals, glued = word.partition("=") if short is None else ("-o", "=", short[1])
    option = option_named(name, line.command)
    if option is None or _is_the_programs(option, line, sent):
        line.program.append(word)
        return 1
    following = words[at + 1] if at + 1 < len(words) else None
    if option.name in _FLAG_COMMANDS and line.command is None and not equals and _is_operand(following):
        line.command, line.operands = option.name, words[at + 1 : at + 2]
        line.own.extend(words[at : at + 2])
        return 2
    taken = _values(line, option, name, [glued] if equals else [], words, at=at + 1)
    used = len(taken) + (0 if equals else 1)
    line.own.extend(words[at : at + used])
    if option.name in COMMAND_NAMES:
        _set_command(line, option, taken)
    else:
        text = taken[0] if taken else None
        _set_value(line, Given(option, text, name, bool(equals), len(line.program)))
    return used


def _values(
    line: CommandLine, option: Option, name: str, given: list[str], words: list[str], *, at: int,
) -> list[str]:
    """Return the values of an option or command: `given` in its own word, and the words from `at` on that it takes.
    Raises ArgvError."""
    if option.kind is Form.FLAG:
        if given:
            raise ArgvError(f"{name} takes no value")
        return []
    least, most = _OPERANDS[option.arity]
    taken = list(given)
    for word in words[at : at + most - len(given)]:
        if option_named(word.partition("=")[0], line.command) or SHORT_FORMAT.fullmatch(word):
            break
        if len(taken) >= min(least, 1) and not _is_operand(word):
            break
        taken.append(word)
    if len(taken) < least:
        count = "a value" if least == 1 else "two values"
        raise ArgvError(f"{name} needs {count}: {name} {option.metavar or 'VALUE'}")
    return taken


def _is_the_programs(option: Option, line: CommandLine, sent: bool) -> bool:
    """Return whether a word that spells one of our options belongs to the program nevertheless."""
    if option.name in COMMAND_NAMES:
        return line.command in SUBMITTING and (sent or option.name != "--help")
    return sent and option.travel is Travel.CLIENT and option.name not in _SLIPPED


def _is_operand(word: str | None) -> bool:
    return word is not None and not word.startswith("-")


def _set_command(line: CommandLine, option: Option, operands: list[str]) -> None:
    name = option.name
    if name == "--help":
        line.command = name
        return
    if line.command == "--help":
        return
    if line.command is not None:
        raise ArgvError(f"one command at a time: {line.command} and {name} were both given")
    for operand in operands:
        if not operand.strip():
            raise ArgvError(f"{name} needs a value, not an empty word")
        convert(option, operand)
    line.command, line.operands = name, operands


def _set_value(line: CommandLine, given: Given) -> None:
    option = given.option
    value: object = True if given.text is None else convert(option, given.text)
    line.given.append(given)
    if option.multiple:
        kept = line.values.setdefault(option.name, [])
        assert isinstance(kept, list)
        kept.append(value)
    else:
        line.values[option.name] = value


def convert(option: Option, text: str) -> object:
    """Check one value, and return it converted; texts and sizes are returned unchanged. Raises ArgvError."""
    if option.choices and text not in option.choices:
        raise ArgvError(f"{option.name}: '{text}' is not one of {', '.join(option.choices)}")
    if option.kind is Form.SIZE:
        try:
            parse_size(text)
        except ValueError as problem:
            raise ArgvError(f"{option.name}: {problem}") from None
        return text
    if option.kind is Form.TEXT:
        return text
    if option.kind is Form.AMOUNT or (option.kind is Form.DEVICES and re.fullmatch(r"0?\.[0-9]*", text)):
        return _amount(option, text)
    if option.kind is Form.DEVICES:
        text = re.sub(r"(?<=[0-9])\.0*$", "", text)
    least, most = _BOUNDS.get(option.kind, (-MAX_NUMBER, MAX_NUMBER))
    if not re.fullmatch(r"-?[0-9]{1,40}", text):
        part = ", or a part of one such as 0.5" if option.kind is Form.DEVICES else ""
        raise ArgvError(f"{option.name}: '{text}' is not a whole number between {least} and {most}{part}")
    number = int(text)
    if not least <= number <= most:
        raise ArgvError(f"{option.name}: {number} is not between {least} and {most}")
    return number


def _amount(option: Option, text: str) -> float:
    """Return a number that may have a fraction; thousandths of a CPU may be given as `250m`."""
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{0,6})?|\.[0-9]{1,6})(m?)", text)
    number = float(match[1]) / (1000 if match[2] else 1) if match else 0.0
    if not 0.001 <= number <= MAX_NUMBER:
        raise ArgvError(
            f"{option.name}: '{text}' is not an amount between 0.001 and {MAX_NUMBER}, such as 0.5 or 2"
        )
    return number


def _alien(line: CommandLine, word: str) -> str:
    """Return the message about a word that the command of a line does not take."""
    if word.startswith("-") or not line.operands:
        return _unknown(word)
    from dlicmd.contract.verbs import SYNONYMS  # only for a wrong word

    text = f"unexpected word '{word}' after {line.command} {' '.join(line.operands)}"
    meant = SYNONYMS.get(word.lower())
    if meant is None or meant.count("ID") != 1:
        return text
    return f"{text}; did you mean: dlicmd {meant.replace('ID', line.operands[0])}"


def _unknown(word: str) -> str:
    import difflib  # only for a wrong word

    if not (is_option := word.startswith("-")) or word.startswith("--"):
        from dlicmd.contract.verbs import SYNONYMS, meant_long_command  # only for a wrong word

        if meant := SYNONYMS.get(word.lstrip("-").lower()) or (meant_long_command(word) if is_option else None):
            return f"unknown {'option' if is_option else 'command'} '{word}'; did you mean: dlicmd {meant}"
    name = word.partition("=")[0]
    # Missing dashes must not make a word less similar.
    known = {option if is_option else option.lstrip("-"): option for option in BY_NAME}
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.75)
    what = "unknown option" if is_option else "unexpected word"
    is_safe = near and known[near[0]] not in DESTROYING
    return f"{what} '{word}'" + (f"; did you mean {known[near[0]]}?" if is_safe else "")


def join_args(words: Iterable[str]) -> str:
    """Join words into one line that `shlex.split` and `split_args` split into the same words.

    Only words that would be split otherwise are quoted, because some servers do not remove quotes.
    """
    return " ".join(shlex.quote(word) if not word or re.search(r"""[\s'"\\]""", word) else word for word in words)


def split_args(text: str) -> list[str]:
    """Split an `args` string into words.

    Clients differ: the original client lost all quotes, notebooks wrote backslash-newline continuations, ours quotes.
    So a quote groups only where a shell user would put one: around a whole word, or right after `=`. A quote inside a
    word, as in raw JSON, is an ordinary character. The JSON of --data-source is one word, even with blanks in it.
    """
    joined = _joined(text)
    if joined is not None:
        return joined
    text = re.sub(r"\\\r?\n", " ", text)
    words: list[str] = []
    at = 0
    while match := _WORD.search(text, at):
        word, at = match[0], match.end()
        glued = word.startswith(f"{_JSON}=")
        end = None
        if glued or words[-1:] == [_JSON]:
            end = _end_of_json(text, match.start() + (len(_JSON) + 1 if glued else 0))
        words.append(_unquote(word) if end is None else text[match.start():end])
        at = max(at, end or 0)
    return words


def _end_of_json(text: str, start: int) -> int | None:
    """Return the end of the JSON list or object that begins at `start`. Return None when there is none, or when other
    text follows without a blank."""
    if text[start:start + 1] not in ("[", "{"):
        return None
    try:
        end = json.JSONDecoder().raw_decode(text, start)[1]
    except (ValueError, RecursionError):
        return None
    return end if not text[end:end + 1].strip() else None


_QUOTED = r"(?:'[^']*'|\"[^\"]*\")(?=\s|$)"
_WORD = re.compile(rf"[^\s'\"=]*=?{_QUOTED}|\S+")
#: The option whose value is JSON.
_JSON = "--data-source"


def _joined(text: str) -> list[str] | None:
    """Return the words of a text that `join_args` could have written, None for another text. The time grows with the
    length of the text only: `shlex.split` takes minutes for a word of megabytes."""
    text, words, at = text.strip(" "), [], 0
    while at < len(text):
        match = _JOINED.match(text, at)
        if match is None:
            return None
        words.append(match[0][1:-1].replace(_INNER_QUOTE, "'") if match[0].startswith("'") else match[0])
        at = match.end() + 1
    return words if join_args(words) == text else None


#: A single quote in a word that `shlex.quote` has quoted, and a word of `join_args` up to the blank after it.
_INNER_QUOTE = "'\"'\"'"
_JOINED = re.compile(r"(?:[^\s'\"\\]+|'[^']*'(?:\"'\"'[^']*')*)(?= |$)")


def _unquote(word: str) -> str:
    match = re.fullmatch(r"([^\s'\"=]*=?)(['\"])(.*)\2", word, re.DOTALL)
    return match[1] + match[3] if match else word
