"""Metrics in printed lines, as common programs print them."""

from __future__ import annotations

import math

import pytest

from local_backend.curves.printed import MOST, PrintedReader

Found = list[tuple[str, float, float | None, str]]


def found(text: str) -> Found:
    _, values = PrintedReader().feed(text.encode(), final=True)
    return [(one.name, one.value, one.step, one.unit) for one in values]


@pytest.mark.parametrize(("text", "expected"), [
    ("loss: 0.1", [("loss", 0.1, None, "line")]),
    ("Epoch 3/10 train loss=0.5 acc=0.9", [("train loss", 0.5, 3, "epoch"), ("acc", 0.9, 3, "epoch")]),
    ("{'loss': 0.1, 'grad_norm': 1.5, 'learning_rate': 5e-05, 'epoch': 1.5}",
     [("loss", 0.1, 1.5, "epoch"), ("grad_norm", 1.5, 1.5, "epoch"), ("learning_rate", 5e-05, 1.5, "epoch")]),
    ("{'eval_loss': '0.12', 'eval_runtime': '3.1', 'epoch': '2'}", [("eval_loss", 0.12, 2, "epoch")]),
    ('{"loss": 0.5, "step": 10}', [("loss", 0.5, 10, "step")]),
    ("step 100: train loss 2.30, val loss 2.5", [("train loss", 2.3, 100, "step"), ("val loss", 2.5, 100, "step")]),
    ("iter 100: loss 2.1, time 35.10ms, mfu 3.0%", [("loss", 2.1, 100, "step")]),
    ("Train Epoch: 2 [30000/60000 (50%)]\tLoss: 0.29", [("Loss", 0.29, 1.5, "epoch")]),
    ("Test set: Average loss: 0.0500, Accuracy: 9839/10000 (98%)",
     [("Average loss", 0.05, None, "line"), ("Accuracy", 0.9839, None, "line")]),
    ("Epoch [2/5], Step [100/600], Loss: 0.2500", [("Loss", 0.25, 700, "step")]),
    ("Epoch: [0][ 10/391]\tTime  0.1 ( 0.2)\tLoss 2.3e+00 (2.4e+00)\tAcc@1  10.16 (  8.59)",
     [("Loss", 2.3, 10, "batch"), ("Acc@1", 10.16, 10, "batch")]),
    ("after 45 batches: test loss 0.6587, test accuracy 0.9417",
     [("test loss", 0.6587, 45, "batch"), ("test accuracy", 0.9417, 45, "batch")]),
    ("2026-01-01 10:10:10 INFO step=5 loss=0.5 lr=1e-3", [("loss", 0.5, 5, "step"), ("lr", 1e-3, 5, "step")]),
    ("val_loss improved from 0.5 to 0.4, saving to /tmp/loss/5", []),
    ("Loss of 3 processes; accuracy unknown; map 0x7f12, lossless 5", []),
    ("ERROR 404: not found", []),
    ("Map: 100%|██████████| 400/400 [00:00<00:00]", []), ("Loss: 38%|███▊      | 15/39 [00:00<00:01]", []),
    ("accuracy 98%", [("accuracy", 98, None, "line")]),
    ("word error rate: 0.2", [("word error rate", 0.2, None, "line")]),
])
def test_usual_lines(text: str, expected: Found) -> None:
    assert found(text) == expected


@pytest.mark.parametrize(("text", "place"), [
    ("Epoch 3/3 loss=0.333", (3, "epoch", 3)), ("Epoch [0/10] loss: 0.5", (0, "epoch", 10)),
    ("step 100/500: loss 0.5", (100, "step", 500)), ("step 100: loss 0.5", (100, "step", None)),
    ("Epoch [2/5], Step [100/600], Loss: 0.2500", (700, "step", 3000)),
    ("Epoch [1/5], Step [100/600], Loss: 0.2500", (100, "step", 3000)),
    ("Epoch [0/4], Step [100/600], Loss: 0.2500", (100, "step", None)),
    ("Epoch 1/2\n50/100 [==>...] - loss: 0.5", (50, "batch", 200)),
    ("Train Epoch: 2/3 [30000/60000 (50%)]\tLoss: 0.29", (1.5, "epoch", 3)), ("loss: 0.5", (None, "line", None)),
    ("50%|##  | 50/100 [00:10<00:12, loss=0.5]", (50, "batch", None)),
])
def test_the_end_of_the_training_is_known_if_the_line_names_it(
    text: str, place: tuple[float | None, str, float | None]
) -> None:
    [one] = PrintedReader().feed(text.encode(), final=True)[1]
    assert (one.step, one.unit, one.total) == place


def test_a_loss_that_is_not_a_number_is_passed_on() -> None:
    (one,) = found("step 1 loss nan")
    assert math.isnan(one[1]) and one[2] == 1
    assert [(name, str(value)) for name, value, *_ in found("step 1 train loss nan val loss -inf lr 0.1")] == [
        ("train loss", "nan"), ("val loss", "-inf"), ("lr", "0.1")]


def test_bars_of_tqdm_count_batches_over_all_epochs() -> None:
    text = "".join(f"\r{at:3}%|###   | {at}/100 [00:10<00:12,  4.5it/s, loss={1 / (lap + 1)}]"
                   for lap in range(3) for at in (50, 100))
    assert [(step, unit) for _, _, step, unit in found(text + "\n")] == [
        (at, "batch") for at in (50, 100, 150, 200, 250, 300)]


def test_bars_of_lightning_count_epochs_from_0() -> None:
    bar = "Epoch {}:  50%|█████     | 50/100 [00:01<00:01, 40.0it/s, v_num=0, train_loss=0.5]\r"
    assert [step for _, _, step, _ in found(bar.format(0) + bar.format(1))] == [50, 150]


def test_lines_of_keras_belong_to_the_epoch_above_them() -> None:
    text = ("Epoch 1/2\n 50/100 [====>.....] - ETA: 0s - loss: 0.5\r100/100 [=====] - 1s - loss: 0.4 - val_loss: 0.41\n"
            "Epoch 2/2\n\x1b[1m100/100\x1b[0m \x1b[32m━━━\x1b[0m \x1b[1m1s\x1b[0m 3ms/step - loss: 0.3\n")
    assert found(text) == [("loss", 0.5, 50, "batch"), ("loss", 0.4, 100, "batch"), ("val_loss", 0.41, 100, "batch"),
                           ("loss", 0.3, 200, "batch")]


SKORCH = (
    "  epoch    train_loss    valid_acc    valid_loss    cp     dur\n"
    "-------  ------------  -----------  ------------  ----  ------\n"
    "      1        \x1b[36m0.6868\x1b[0m       \x1b[32m0.6000\x1b[0m        \x1b[35m0.6591\x1b[0m     +  0.0123\n"
    "      2        0.7000       0.5500        0.6600        0.0100\n"
)
FASTAI = "epoch     train_loss  valid_loss  accuracy  time    \n0         0.7         0.6         0.5       00:01   \n"
PIPES = "| step | train loss | val loss |\n|---|---|---|\n| 100 | 0.5 | 0.6 |\na warning\n| 200 | 0.4 | nan |\n"


@pytest.mark.parametrize(("text", "expected"), [
    (SKORCH, [("train_loss", 0.6868, 1, "epoch"), ("valid_acc", 0.6, 1, "epoch"), ("valid_loss", 0.6591, 1, "epoch"),
              ("train_loss", 0.7, 2, "epoch"), ("valid_acc", 0.55, 2, "epoch"), ("valid_loss", 0.66, 2, "epoch")]),
    (FASTAI, [("train_loss", 0.7, 0, "epoch"), ("valid_loss", 0.6, 0, "epoch"), ("accuracy", 0.5, 0, "epoch")]),
    (PIPES.replace("nan", "0.7"), [("train loss", 0.5, 100, "step"), ("val loss", 0.6, 100, "step"),
                                   ("train loss", 0.4, 200, "step"), ("val loss", 0.7, 200, "step")]),
    ("epoch  time  size\n1  2.5  3\n", []), ("1  0.5  0.6\n", []),
])
def test_rows_of_tables_are_epochs_or_steps(text: str, expected: Found) -> None:
    assert found(text) == expected
    reader, parts = PrintedReader(), []
    for line in text.splitlines(keepends=True):
        parts += reader.feed(line.encode(), final=False)[1]
    assert [(one.name, one.value, one.step, one.unit) for one in parts] == expected


def test_other_lines_of_numbers_are_no_rows() -> None:
    text = SKORCH + "7\n1  0.1  0.1  0.1  +  0.1\n3 4 5\n"
    assert len(found(text)) == 6


REPORT = "              precision    recall  f1-score   support\n\n" + "".join(
    f"{label:>12}       0.95      0.90      0.92        50\n" for label in range(4))
FRAME = "   a  b  c  d\n" + "".join(f"{row}  5.1  3.5  1.4  0.2\n" for row in range(4))


@pytest.mark.parametrize("other", [REPORT, FRAME, "label\n" + "".join(f"{row}         50\n" for row in range(4))])
def test_rows_of_another_table_are_no_epochs(other: str) -> None:
    table = FASTAI + "1         0.6         0.6         0.5       00:01   \n"
    assert found(table + other) == found(table) and len(found(table)) == 6
    again = FASTAI.replace("0.7", "0.9")
    assert found(table + other + again)[6:] == found(again)


def test_a_number_before_a_word_does_not_end_a_table() -> None:
    row = "1         0.6         0.6         0.5       00:01   \n"
    assert found(FASTAI + "0         models saved\n" + row) == found(FASTAI + row)


def test_the_names_of_the_columns_are_found_among_many_lines() -> None:
    rows = "".join(f"{step}   {step / 2}\n" for step in range(3 * MOST))
    values = found("loss: 1\nmap\nepoch  loss\n" + rows)
    assert values[0][3] == "line" and {unit for *_, unit in values[1:]} == {"epoch"} and len(values) > MOST / 2
    assert all(value == step / 2 for _, value, step, _ in values[1:] if step is not None)


def test_steps_that_begin_again_in_each_epoch_continue() -> None:
    text = "".join(f"[{epoch},  {step}] loss: 0.5\n" for epoch in (1, 2) for step in (2000, 4000))
    assert [step for _, _, step, _ in found(text)] == [2000, 4000, 6000, 8000]


def test_an_incomplete_line_waits_for_its_end() -> None:
    reader = PrintedReader()
    assert reader.feed(b"loss: 0.5\nloss: 0.2", final=False)[0] == len(b"loss: 0.5\n")
    assert [one.value for one in reader.feed(b"loss: 0.25", final=True)[1]] == [0.25]


def test_of_very_many_lines_only_some_and_the_last_are_searched() -> None:
    text = "".join(f"step {step} loss {step}\n" for step in range(10 * MOST))
    steps = [step for _, _, step, _ in found(text)]
    assert len(steps) <= MOST + 1 and steps[0] == 0 and steps[-1] == 10 * MOST - 1


@pytest.mark.parametrize("line", [
    "a " * 900, "loss" * 400, "loss " * 400, "(" * 1900 + "loss", "1/" * 950 + "loss 1", "loss 1" + "0" * 1000,
    "epoch " * 300 + "9" * 100 + " loss 1", "\x1b[" * 900 + "acc=1",
    # Each of these takes hours if the patterns allow any number of spaces.
    "epoch" + " " * 1990, "loss step" + " " * 1990, "loss 1/2 a" + " " * 1980, "loss 'epoch'" + " " * 1980,
])
def test_hostile_lines_do_no_harm(line: str) -> None:
    assert all(isinstance(value, float) for _, value, _, _ in found((line + "\n") * 50))
