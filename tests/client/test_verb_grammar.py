"""The grammar of the verbs, their table, and what the tables suggest for wrong words."""

from __future__ import annotations

import re
import shlex

import pytest

from dlicmd.cli.commands.completion import candidates
from dlicmd.cli.commands.help import help_text, short_usage
from dlicmd.cli.commands.table import COMMANDS, function_of
from dlicmd.contract.argv import ArgvError, parse_argv
from dlicmd.contract.options import BY_NAME, COMMAND_NAMES
from dlicmd.contract.states import NAMED
from dlicmd.contract.verb_argv import is_verb_line, parse_verb, unknown_command
from dlicmd.contract.verbs import (
    BY_VERB,
    IMPLIES,
    STANDS_FOR,
    SYNONYMS,
    VERBS,
    canonical,
    destroys,
    options_of,
    verb_option,
)

#: Words of users who want to remove something. No other word may lead to a verb that removes.
REMOVE = {"delete", "remove", "del", "erase", "drop"}


def refusal(*words: str) -> str:
    with pytest.raises(ArgvError) as raised:
        parse_verb(words)
    return str(raised.value)


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_every_verb_has_a_command_options_and_examples(verb: object) -> None:
    assert verb.command in COMMANDS and callable(function_of(verb.command))
    spellings = [name for option in options_of(verb) for name in (option.name, *option.aliases)]
    assert len(spellings) == len(set(spellings)) and COMMAND_NAMES.isdisjoint(spellings)
    for example, _ in verb.examples:
        for part in example.split(" && "):
            words = shlex.split(part)
            assert words[0] == "dlicmd" and parse_verb(words[1:]).command in COMMANDS
    assert any(example.split()[1] == verb.name for example, _ in verb.examples)


@pytest.mark.parametrize("topic", [None, *BY_VERB, "--exec-start", "--exec-get", "--exec-verify", "--follow"])
def test_help_fits_80_columns(topic: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = help_text(topic)
    assert shown.startswith("Usage: dlicmd") and all(len(line) <= 80 for line in shown.splitlines())
    assert topic is None or topic in shown
    assert all(f"\n  {verb.name}" in help_text() for verb in VERBS)
    short = short_usage()
    assert all(re.search(rf"\b{verb.name}\b", short) for verb in VERBS) and len(short.splitlines()) < 24


def test_the_help_of_a_verb_says_what_its_messages_advise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    run, listing = help_text("run"), help_text("ls")
    assert all(f"\n  {name} " in f"{run} ".replace("\n", " \n") for name in (
        "--allow-cpu", "--workerMemory", "--create-data-path"))
    assert all(state in listing for state in NAMED)
    for verb in ("result", "follow", "wait"):
        assert "--exec-" not in help_text(verb).split("Output and waiting")[1] and "with --wait" not in help_text(verb)


def test_operands_and_options_come_in_any_order() -> None:
    for words in (["logs", "7", "--tail", "3", "-f"], ["logs", "-f", "--tail=3", "7"]):
        line = parse_verb(words)
        assert (line.verb, line.command, line.operands) == ("logs", "--exec-trainlogs", ["7"])
        assert line.number("--tail") == 3 and line.flag("--follow")
    assert parse_verb(["ls", "-ojson"]).text("--output") == "json"
    assert parse_verb(["open"]).operands == ["last"]


def test_short_options_of_run_become_those_of_a_submission() -> None:
    line = parse_verb(["run", "train.py", "--gpus", "2", "--name", "a b", "--env", "A=1", "--env", "B=2", "--priority",
                       "7", "--plan", "x", "--consumer=x", "--", "--workers", "3"])
    assert line.values == {"--numWorker": 2, "--workerDeviceType": "gpu", "--appName": "a b", "--msd-env":
                           ["A=1", "B=2"], "--msd-priority": 7, "--consumer": "x"}
    assert line.program == line.after_dashes == ["--workers", "3"]
    words = [word for given in line.given for word in given.words]
    assert parse_argv(["--exec-start", "PyTorch", *words]).values == line.values
    assert all(name in BY_NAME for name in STANDS_FOR.values()) and IMPLIES.keys() <= STANDS_FOR.keys()
    assert "already" in refusal("run", "train.py", "--gpus", "2", "--workers", "4")
    assert "--workers" in refusal("run", "train.py", "--workers", "two")
    assert canonical(verb_option(BY_VERB["run"], "--name"), BY_VERB["run"]) is BY_NAME["--appName"]
    assert verb_option(BY_VERB["ls"], "--name") is None


@pytest.mark.parametrize(("words", "meant"), [
    (["run", "t.py", "--epochs", "3"], "-- --epochs"), (["run", "t.py", "--worker", "3"], "--workers"),
    (["run", "t.py", "--gpu", "3"], "--gpus"), (["run", "t.py", "-n", "3"], "--workers"),
    (["run", "t.py", "--detach"], "--no-follow"), (["run", "t.py", "extra"], "-- extra"),
    (["run", "t.py", "--memory", "4g"], "--workerMemory 4g"),
    (["ls", "--limt", "3"], "--limit"), (["ls", "--lines", "3"], "--limit"),
    (["ls", "--user", "x"], "dlicmd ls --all-users"), (["login", "--user", "x"], "--username x"),
    (["ls", "--json"], "-o json"),
    (["logs", "7", "-n", "3"], "--tail"), (["logs", "7", "--watch"], "--follow"), (["rm", "7", "--force"], "--yes"),
    (["result", "7", "--out", "d"], "--to"), (["plot", "7", "--key", "loss"], "--metric"),
])
def test_an_unknown_option_is_refused_with_the_meant_one(words: list[str], meant: str) -> None:
    assert meant in refusal(*words)


@pytest.mark.parametrize("words", [
    ["get"], ["get", "a", "b"], ["get", "a", "--", "b"], ["rm"], ["stop", "--all", "7"], ["diff", "7"], ["resize", "7"],
    ["logs", "7", "--tail"], ["logs", "7", "--tail", "--follow"], ["logs", "7", "--follow=yes"], ["get", ""],
    ["run", "a.py", "b.py"], ["run", "--as", "mpi"], ["ls", "--limit", "few"], ["help", "run", "ls"], ["help", "foo"],
])
def test_a_wrong_line_is_refused(words: list[str]) -> None:
    assert refusal(*words)


@pytest.mark.parametrize(("words", "next_one"), [
    *(([verb], f"dlicmd {verb} last") for verb in ("get", "logs", "follow", "wait", "result", "plot", "why", "verify")),
    (["diff", "7"], "dlicmd ls"), (["stop"], "dlicmd ls"), (["rm"], "dlicmd ls"), (["resize"], "dlicmd resize last 4"),
])
def test_a_verb_without_its_operands_leads_to_a_command(words: list[str], next_one: str) -> None:
    assert refusal(*words).endswith(f": {next_one}")


@pytest.mark.parametrize(("word", "meant"), [
    ("kill", "stop ID"), ("cancel", "stop ID"), ("ps", "ls"), ("list", "ls"), ("purge", "ls"), ("clean", "ls"),
    ("delete", "rm ID"), ("tail", "logs ID"), ("submit", "run train.py"), ("nvidia-smi", "top"), ("lgos", "logs ID"),
    ("stauts", "get ID"), ("train.py", "run train.py"), ("exec-get", "--exec-get ID"), ("LIST", "ls"),
])
def test_a_wrong_first_word_leads_to_the_meant_command(word: str, meant: str) -> None:
    assert f"dlicmd {meant}" in unknown_command(word)


def slips(word: str) -> set[str]:
    """Return a word with a letter left out, doubled, or in the place of its neighbor."""
    begin = len(word) - len(word.lstrip("-"))
    return {word[:at] + changed + word[at + 2 :] for at in range(begin, len(word))
            for changed in (word[at + 1 : at + 2], word[at] + word[at : at + 2], word[at : at + 2][::-1])}


def test_a_slip_of_the_fingers_never_leads_to_a_command_that_destroys() -> None:
    destroying = [word for word in (*BY_VERB, *COMMAND_NAMES, *SYNONYMS)
                  if destroys(SYNONYMS.get(word, word)) or word == "--exec-get-all"]
    assert {"rm", "stop", "kill", "--exec-stop", "--exec-deploy", "--app-stop-all", "--rp-apply"} <= {*destroying}
    for wrong in {slip for word in destroying for slip in slips(word)} | {"--exec-lst", "xyzzy", "r", "rn", "rmm"}:
        stem = wrong.lstrip("-").removeprefix("exec-")
        if wrong in BY_NAME or stem in BY_VERB or stem in SYNONYMS or f"--{wrong}" in COMMAND_NAMES:
            continue  # the word itself says so
        with pytest.raises(ArgvError) as raised:
            (parse_argv if wrong.startswith("-") else parse_verb)([wrong])
        shown = re.search(r"did you mean:?(?: dlicmd)? ([\w-]+)", str(raised.value))
        assert shown is None or not destroys(shown[1]), (wrong, str(raised.value))
    for words in (["rm", "--al"], ["rm", "-a"], ["stop", "--alll"]):
        assert "did you mean" not in refusal(*words)


def test_suggestions_exist_and_destroy_no_more_than_asked() -> None:
    for word, meant in SYNONYMS.items():
        first = meant.split()[0]
        assert first in BY_VERB or first in COMMAND_NAMES or first == "help", word
        assert word not in BY_VERB
        assert first != "rm" or word in REMOVE
        assert "--all" not in meant and "delete" not in meant


@pytest.mark.parametrize("word", ["pone", "elp", "xrun", "unr"])
def test_a_word_with_another_first_letter_means_no_verb(word: str) -> None:
    assert "did you mean" not in unknown_command(word)


@pytest.mark.parametrize(("words", "meant"), [
    (["--list"], "dlicmd ls"), (["--kill", "7"], "dlicmd stop ID"), (["--exec-gett", "x"], "--exec-get"),
    (["--exec-lst"], "--exec-get-all"), (["--exec-list"], "--exec-get-all"),
    (["--exec-remove", "7"], "--exec-delete ID"),
])
def test_a_wrong_long_command_leads_to_the_meant_one(words: list[str], meant: str) -> None:
    with pytest.raises(ArgvError, match=meant):
        parse_argv(words)


def test_long_commands_keep_their_grammar() -> None:
    assert not is_verb_line(["run", "--exec-start", "PyTorch"])  # a word of the program
    assert not is_verb_line(["--exec-get-all"]) and not is_verb_line([])
    assert is_verb_line(["run", "train.py", "--", "--exec-start"]) and is_verb_line(["help", "--exec-start"])
    line = parse_argv(["run", "--exec-start", "PyTorch", "--model-main", "m.py"])
    assert line.verb is None and line.program == ["run"]
    assert parse_argv(["--exec-start", "PyTorch", "ls", "--name", "x"], sent=True).program == ["ls", "--name", "x"]


@pytest.mark.parametrize(("words", "begun", "some"), [
    ([], "", {"run", "ls", "rm"}), ([], "re", {"result", "resize"}), (["help"], "wh", {"why", "whoami"}),
    (["ls"], "--li", {"--limit"}), (["ls", "--state"], "F", {"FINISHED"}), (["run", "--as"], "", {"elastic", "single"}),
    (["run"], "--gp", {"--gpus"}), (["server"], "", {"ls", "use"}), (["resize", "local-7"], "", {"auto"}),
    (["get", "-o"], "j", {"json", "jsonl"}), (["nonsense"], "", set()), (["top"], "", set()),
])
def test_verbs_are_completed(words: list[str], begun: str, some: set[str], monkeypatch: pytest.MonkeyPatch,
                             tmp_path: object) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    found = {item.value for item in candidates(words, begun)}
    assert some <= found and (some or not found) and all(name.startswith(begun) for name in found)
