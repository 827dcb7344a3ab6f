"""The grammar of dlim: any words are a command line, or an error."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlicmd.contract.argv import ArgvError
from dlicmd.contract.dlim_argv import parse_dlim
from dlicmd.contract.dlim_commands import BY_COMMAND, COMMANDS, COMMON, OF_MODELS, SECOND, SYNONYMS, options_of

WORDS = sorted({word for one in COMMANDS for word in one.name.split()} | {
    name for one in COMMANDS for option in options_of(one) for name in (option.name, *option.aliases)})


@given(st.lists(st.one_of(st.sampled_from(WORDS), st.text(max_size=4), st.just("--")), max_size=7))
def test_any_words_are_a_command_or_an_error(words: list[str]) -> None:
    try:
        line = parse_dlim(words)
    except ArgvError as problem:
        assert "\n" not in str(problem) or any("\n" in word for word in words)
        return
    assert line.command in {*BY_COMMAND, "--help", "--version"}


@pytest.mark.parametrize(("words", "command", "operands", "values"), [
    (["model", "view", "m", "-sa"], "model view", ["m"], {"--status": True, "--all": True}),
    (["model", "-s", "view", "m"], None, None, None),
    (["--jwt-token", "t", "model", "list"], "model list", [], {"--jwt-token": "t"}),
    (["model", "--jwt-token=t", "list", "-ojson"], "model list", [], {"--jwt-token": "t", "--output": "json"}),
    (["invoke", "m", "-", "-d=-1"], "invoke", ["m", "-"], {"--data": "-1"}),
    (["model", "deploy", "-p", "a", "-p", "b"], None, None, None),
    (["model", "view", "--", "-m"], "model view", ["-m"], {}),
    (["model", "start", "m", "--wait-timeout", "x"], None, None, None),
    (["model", "list", "--force=1"], None, None, None),
])
def test_options_may_be_anywhere(
    words: list[str], command: str | None, operands: list[str] | None, values: dict[str, object] | None
) -> None:
    if command is None:
        with pytest.raises(ArgvError):
            parse_dlim(words)
        return
    line = parse_dlim(words)
    assert (line.command, line.operands, line.values) == (command, operands, values)


def test_the_tables_name_commands() -> None:
    names = {one.name for one in COMMANDS}
    assert set(SYNONYMS.values()) <= names | {"model"} and {f"model {name}" for name in SECOND.values()} <= names
    assert not names & SYNONYMS.keys() and {"model view", "invoke", "logs"} <= OF_MODELS
    for one in COMMANDS:
        spellings = [name for option in options_of(one) for name in (option.name, *option.aliases)]
        assert len(set(spellings)) == len(spellings), one.name
        for line, _ in one.examples:
            assert one.name in line
    assert {"--rest-server", "--jwt-token"} <= {option.name for option in COMMON}
