"""The grammar of command lines. tests/fuzz covers made-up words."""

from __future__ import annotations

import re
import shlex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import examples

from dlicmd.contract.argv import ArgvError, Given, join_args, parse_argv, split_args
from dlicmd.contract.options import BY_NAME, COMMANDS, OPTIONS, Arity, Form, Travel
from dlicmd.contract.sizes import parse_size
from dlicmd.sdk.submission import Submission

USER_CMD = Given(BY_NAME["--user-cmd"], None)


@settings(max_examples=examples(1000), deadline=None)
@given(st.lists(st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=12)))
def test_joined_words_are_split_into_the_same_words(words: list[str]) -> None:
    assert split_args(join_args(words)) == words


@settings(max_examples=examples(1000), deadline=None)
@given(st.text(max_size=60))
def test_any_text_can_be_split(text: str) -> None:
    assert isinstance(split_args(text), list)


@settings(max_examples=examples(500), deadline=None)
@given(st.lists(st.text(min_size=1, max_size=8).filter(lambda word: word.split("=")[0] not in BY_NAME), max_size=5),
       st.lists(st.text(max_size=8), max_size=5))
def test_the_words_of_the_program_are_not_changed(before: list[str], after: list[str]) -> None:
    before = [word for word in before if word != "--"]
    line = parse_argv(["--exec-start", "PyTorch", *before, "--", *after])
    assert line.program == [*before, *after]
    assert (line.before_dashes, line.after_dashes, line.given) == (before, after, [])
    words = Submission("PyTorch", [USER_CMD], ["x", *after], before).words({})
    assert words == ["--exec-start", "PyTorch", "--user-cmd", *before, "--", "x", *after]


@pytest.mark.parametrize("option", [*COMMANDS, *OPTIONS], ids=lambda option: option.name)
def test_every_option_is_parsed_in_each_spelling_and_sent_as_declared(option) -> None:
    value = {
        Form.FLAG: None, Form.TEXT: option.choices[0] if option.choices else "x y", Form.SIZE: "8g",
    }.get(option.kind, "7")
    for spelling in (option.name, *option.aliases):
        forms = [[spelling]] if value is None else [[spelling, value], [f"{spelling}={value}"]]
        for form in forms:
            if option in COMMANDS:
                more = ["z"] if option.arity is Arity.TWO else []
                line = parse_argv([*form, *more])
                assert line.command == option.name and line.operand == (value if option.metavar else None)
                assert line.operands == [value, *more] if option.metavar else not line.operands
                continue
            line = parse_argv(["--exec-start", "PyTorch", *form])
            assert line.program == [] and option.name in line.values
            [given] = line.given
            assert given.option is option and given.words == form
            sent = Submission("PyTorch", [USER_CMD, *line.given], ["x"]).words({})[3:-2]
            assert sent == (given.words if option.travel is Travel.ARGS else []) or option.name == "--user-cmd"


@pytest.mark.parametrize(
    ("words", "operands"),
    [
        (["--app-stop", "a"], ["a"]),
        (["--app-stop", "a", "b", "c"], ["a", "b", "c"]),
        (["--app-stop", "a", "b", "-o", "json"], ["a", "b"]),
        (["--app-stop=a", "b"], ["a", "b"]),
        (["--app-analyze"], []),
        (["--app-analyze", "3"], ["3"]),
        (["--app-analyze", "-ojson"], []),
        (["--app-analyze", "--output", "json"], []),
        (["--k8s-obj-get", "pod", "p-1"], ["pod", "p-1"]),
        (["--k8s-obj-get=pod", "p-1", "--debug-level", "error"], ["pod", "p-1"]),
    ],
)
def test_commands_accept_none_or_several_operands(words: list[str], operands: list[str]) -> None:
    line = parse_argv(words)
    assert line.operands == operands and line.operand == (operands[0] if operands else None) and not line.program


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--app-stop"], "--app-stop ID..."),
        (["--app-stop", "-o", "json"], "--app-stop ID..."),
        (["--app-stop", "a", " "], "empty word"),
        (["--app-stop", "a", "-b"], "unknown option '-b'"),
        (["--app-analyze", "soon"], "--app-analyze: 'soon' is not a whole number"),
        (["--app-analyze", "0"], "--app-analyze: 0 is not between"),
        (["--app-analyze", "1", "2"], "unexpected word '2'"),
        (["--exec-get", "7", "model"], "unexpected word 'model' after --exec-get 7; did you mean: dlicmd result 7"),
        (["--k8s-obj-get", "pod"], "two values: --k8s-obj-get TYPE NAME"),
        (["--k8s-obj-get", "pod", "-o", "json"], "two values"),
        (["--k8s-obj-get", "pod", "a", "b"], "unexpected word 'b'"),
    ],
)
def test_wrong_operands_are_refused(words: list[str], said: str) -> None:
    with pytest.raises(ArgvError, match=re.escape(said)):
        parse_argv(words)


def test_the_options_of_exec_deploy_belong_to_the_program_elsewhere() -> None:
    """Contract, 4.4: 'Unaffected: `--epochs`, ..., `--name`'."""
    words = ["--name", "n", "--tag=t", "--kernel", "k", "--weight", "0.5", "--envs", "2", "--runtime", "--attributes"]
    for sent in (False, True):
        line = parse_argv(["--exec-start", "PyTorch", "--appName", "--name", *words], sent=sent)
        assert line.program == words and line.values == {"--appName": "--name"}
    line = parse_argv(["--exec-deploy", "w-1", *words[:-2], "--runtime", "-x", "--attributes=a=b"])
    assert not line.program and line.operands == ["w-1"] and line.values == {
        "--name": "n", "--tag": "t", "--kernel": "k", "--weight": "0.5", "--envs": "2", "--runtime": "-x",
        "--attributes": "a=b"}
    for bad in (["--exec-get", "w-1", "--name", "n"], ["--name", "n", "--exec-deploy", "w-1"],
                ["--exec-deploy", "w-1", "--tag", "--name", "n"]):
        with pytest.raises(ArgvError, match=r"--name|--tag"):
            parse_argv(bad)


def test_scheduler_commands_in_args_are_words_of_the_program() -> None:
    line = parse_argv(["--exec-start", "PyTorch", "--app-stop", "a", "b", "--k8s-obj-get"], sent=True)
    assert line.command == "--exec-start" and line.program == ["--app-stop", "a", "b", "--k8s-obj-get"]


@pytest.mark.parametrize(
    "words",
    [
        ["--model", "X"], ["--user", "x"], ["--num", "3"], ["--log", "x"], ["--worker", "x"], ["--debug"],
        ["--out", "D"], ["--cons", "x"], ["--rest", "x"], ["--epochs=3"], ["-opt"],
    ],
)
def test_options_cannot_be_abbreviated(words: list[str]) -> None:
    assert parse_argv(["--exec-start", "PyTorch", *words]).program == words


@pytest.mark.parametrize("number", ["-1", "0", "1000000001", "NaN", "1.5", "１", "1e3", "0x1", " 1", "+1", "9" * 30])
def test_invalid_numbers_are_refused(number: str) -> None:
    with pytest.raises(ArgvError, match="--numWorker"):
        parse_argv(["--exec-start", "PyTorch", "--numWorker", number])


@pytest.mark.parametrize("size", ["-1", "0", "NaN", "1.5.5g", "１g", "9" * 20, "g", "8x", "", "1e9", "inf"])
def test_invalid_sizes_are_refused(size: str) -> None:
    with pytest.raises(ValueError):
        parse_size(size)


def test_an_option_value_is_replaced_but_a_word_of_the_program_is_not() -> None:
    line = parse_argv(["--exec-start", "PyTorch", "--y", "--model-dir=/a/b c/", "--x", "--numWorker", "2", "q", "--",
                       "--model-dir", "z"])
    submission = Submission("PyTorch", line.given, line.after_dashes, line.before_dashes)
    assert submission.words({"--model-dir": lambda _: "b c"}) == [
        "--exec-start", "PyTorch", "--y", "--model-dir=b c", "--x", "--numWorker", "2", "q", "--", "--model-dir", "z"]


def test_a_value_that_looks_like_an_option_stays_a_value() -> None:
    line = parse_argv(["--exec-start", "PyTorch", "--user-cmd", "--appName=--wait", "--gpuPerWorker", "1.0", "--", "x"])
    words = Submission("PyTorch", line.given, line.after_dashes).words({})
    assert words[2:] == ["--user-cmd", "--appName=--wait", "--gpuPerWorker", "1.0", "--", "x"], "must be sent as typed"
    assert parse_argv(words).values == line.values


def test_args_of_the_original_client_are_split_as_a_shell_does() -> None:
    recorded = "--exec-start PyTorch --cs-datastore-meta type=fs          --workerDeviceNum 1 \\\n  --epochs 1 "
    assert split_args(recorded) == shlex.split("--exec-start PyTorch --cs-datastore-meta type=fs --workerDeviceNum 1 "
                                               "--epochs 1")
    assert split_args("""--appName "DDP Tutorial" --j {"a":"b'c"}""") == [
        "--appName", "DDP Tutorial", "--j", """{"a":"b'c"}"""]


def test_the_server_passes_client_options_in_args_to_the_program() -> None:
    """Contract, 5.4: 'Platform options are consumed, everything unknown is passed on in order'."""
    own = ["--output", "/tmp/x", "-o", "y", "--wait", "--follow", "--to", "5", "--force", "--http", "--help", "--demo"]
    line = parse_argv(["--exec-start", "PyTorch", "--model-main", "main.py", *own, "--numWorker", "1"], sent=True)
    assert line.program == own and line.values == {"--model-main": "main.py", "--numWorker": 1}


def test_the_short_option_may_contain_its_value() -> None:
    """Contract, 4.4: '`-opt` mean[s] `-o pt`'. Here this holds only for output formats; other words go to the
    program."""
    for form in ("json", "yaml", "custom-columns=id,state"):
        line = parse_argv(["--exec-start", "PyTorch", f"-o{form}"])
        assert line.values == {"--output": form} and not line.program
    assert parse_argv(["--exec-start", "PyTorch", "-ojson"], sent=True).program == ["-ojson"]


def test_connection_options_in_args_do_not_reach_the_program() -> None:
    """Contract, 4.3: '`--password=S`, `--jwt-token=T` go to the server inside `args`'."""
    slipped = ["--password=S", "--jwt-token=T", "--rest-host=h", "--rest-port=9243", "--username", "u"]
    assert parse_argv(["--exec-start", "PyTorch", *slipped, "--epochs", "1"], sent=True).program == ["--epochs", "1"]


def test_words_without_need_for_quotes_are_sent_as_the_original_client_did() -> None:
    words = ["--lr=0.1", "a&b", "#1", "1+1", "%41", "*.py", "$HOME", "[1,2]", "a|b;c", "~/x", "ü", "(x)"]
    assert join_args(words) == " ".join(words) and split_args(join_args(words)) == words
    assert join_args(["a b", "", "it's", 'say"so"']) == """'a b' '' 'it'"'"'s' 'say"so"'"""
