"""A refused command line of a verb shows the whole line that was probably meant."""

from __future__ import annotations

import pytest

from dlicmd.contract.argv import ArgvError
from dlicmd.contract.corrected import with_typed_options
from dlicmd.contract.verb_argv import parse_verb


def refusal(line: str) -> str:
    """Return the message about a wrong line."""
    with pytest.raises(ArgvError) as caught:
        parse_verb(line.split())
    return str(caught.value)


@pytest.mark.parametrize(("line", "meant"), [
    ("submit train.py --gpus 2 -- --lr 1", "dlicmd run train.py --gpus 2 -- --lr 1"),
    ("train.py --lr 0.1 --gpus 2", "dlicmd run train.py --gpus 2 -- --lr 0.1"),
    ("train.py -- 1", "dlicmd run train.py -- 1"),
    ("kill 7 8", "dlicmd stop ID"),
    ("kill --all", "dlicmd stop ID"),
    ("delete last", "dlicmd rm ID"),
    ("nodes last", "dlicmd top"),
    ("list last", "dlicmd ls"),
    ("purge --limit 3", "dlicmd ls --limit 3"),
    ("rum train.py", "dlicmd run train.py"),
    ("submit train.py --lr 1", "dlicmd run train.py -- --lr 1"),
    ("help stats", "dlicmd help get"),
    ("rnu train.py", "dlicmd run train.py"),
    ("mr 7", None),
    ("statsu last", "dlicmd get last"),
    ("config x", "dlicmd --config-show"),
    ("ls --json", "dlicmd ls -o json"),
    ("ls --stat=ERROR --limit 3", "dlicmd ls --state=ERROR --limit 3"),
])
def test_a_wrong_word_is_replaced_in_the_line(line: str, meant: str | None) -> None:
    text = refusal(line)
    assert text.endswith(f"did you mean: {meant}") if meant else "dlicmd rm" not in text


@pytest.mark.parametrize(("line", "meant", "program"), [
    ("run train.py --wrokers 2", "dlicmd run train.py --workers 2", "dlicmd run train.py -- --wrokers 2"),
    ("run train.py --nmae a", "dlicmd run train.py --name a", "dlicmd run train.py -- --nmae a"),
    ("run --wrokers=2 train.py -- 1", "dlicmd run --workers=2 train.py -- 1", "dlicmd run train.py -- --wrokers=2 1"),
    ("run train.py --lr 0.1 --gpus 2 --x", None, "dlicmd run train.py --gpus 2 -- --lr 0.1 --x"),
    ("run --lr 0.1 train.py", None, "dlicmd run train.py -- --lr 0.1"),
    ("run --bf16 train.py a", None, "dlicmd run train.py -- --bf16 a"),
    ("run train.py 0.1", None, "dlicmd run train.py -- 0.1"),
])
def test_words_of_the_program_are_moved_after_dashes(line: str, meant: str | None, program: str) -> None:
    text = refusal(line)
    assert text.endswith(f"for your program: {program}")
    assert (f"did you mean: {meant};" in text) if meant else ("did you mean" not in text)
    parse_verb(program.split()[1:])


@pytest.mark.parametrize(("line", "meant"), [
    ("run python train.py", "dlicmd run -- python train.py"),
    ("run --name a python3.12 train.py --name b", "dlicmd run --name a -- python3.12 train.py --name b"),
    ("run torchrun --nproc-per-node=2 train.py", "dlicmd run -- torchrun --nproc-per-node=2 train.py"),
    ("run accelerate launch train.py -- --lr 1", "dlicmd run -- accelerate launch train.py --lr 1"),
])
def test_a_command_is_moved_after_dashes(line: str, meant: str) -> None:
    assert refusal(line).endswith(f": {meant}")
    parse_verb(meant.split()[1:])


def test_messages_name_options_as_the_line_spells_them() -> None:
    text = "a smaller --numWorker; --msd-env NAME=VALUE; --msd-env-x; --consumer a"
    for line, said in (
        ("run t.py", "a smaller --workers; --env NAME=VALUE; --msd-env-x; --plan a"),
        ("run --gpus 2 t.py --consumer=a", "a smaller --gpus; --env NAME=VALUE; --msd-env-x; --consumer a"),
        ("run --workers=9 -- --consumer b", "a smaller --workers; --env NAME=VALUE; --msd-env-x; --consumer a"),
        ("demo --numWorker 9", text),
    ):
        assert with_typed_options(line.split(), text) == said
    assert "--gpus is already 2" in refusal("run t.py --gpus 2 --workers 4")
    assert "--env NAME=VALUE" in refusal("run t.py --env A") and "--msd-attr NAME" in refusal("run t.py --msd-attr A")


def test_secrets_are_not_repeated() -> None:
    text = refusal("run train.py --jwt-token abcdef --password=hunter2 --lr 1 --api-key hunter3")
    assert "abcdef" not in text and "hunter" not in text and "--lr 1" in text
