"""The command line of a submission: what is read from it, and what may be shown of it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlicmd.contract.argv import join_args, split_args
from dlicmd.contract.options import BY_NAME
from dlicmd.contract.secret import MASK
from local_backend.data.storage import volume_directory
from local_backend.errors import Invalid
from local_backend.submit.words import read

SPELLINGS = sorted(BY_NAME)
words = st.one_of(
    st.sampled_from(SPELLINGS), st.sampled_from(["--", "-o", "PyTorch", "edtPyTorch", "8g", "2", "A=b", "type=fs"]),
    st.text(max_size=12), st.builds("{}={}".format, st.sampled_from(SPELLINGS), st.text(max_size=6)),
)


@given(st.lists(words, max_size=12), st.booleans())
def test_any_words_are_read_or_refused_with_a_message(argv: list[str], exact: bool) -> None:
    try:
        if exact:
            read(None, json.dumps({"argv": ["--exec-start", "PyTorch", *argv]}))
        else:
            read(" ".join(["--exec-start PyTorch", *argv]), None)
    except Invalid as problem:
        assert str(problem)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["args", "argv", "dataSource", "hardwareSpec", "type", "location"]), inner, max_size=3
    ),
    max_leaves=12,
)


@given(json_values)
def test_any_data_part_is_read_or_refused(value: object) -> None:
    try:
        read("--exec-start PyTorch", json.dumps(value))
    except Invalid as problem:
        assert str(problem)


secrets = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=6, max_size=20).filter(str.strip)


@given(
    secrets.filter(lambda text: text not in "--exec-start PyTorch --model-main main.py --msd-env --jwt-token"),
    st.sampled_from(["API_TOKEN", "My_Secret", "aws_secret_access_key", "DB_PASSWORD", "CREDENTIALS", "PGPASSWD"]),
    st.sampled_from(["env", "env=", "option", "option="]),
    st.booleans(),
)
def test_a_secret_is_never_shown(secret: str, name: str, form: str, exact: bool) -> None:
    own = {
        "env": ["--msd-env", f"{name}={secret}"], "env=": [f"--msd-env={name}={secret}"],
        "option": ["--jwt-token", secret], "option=": [f"--password={secret}"],
    }[form]
    argv = ["--exec-start", "PyTorch", *own, "--model-main", "main.py"]
    try:
        asked = read(None, json.dumps({"argv": argv})) if exact else read(join_args(argv), None)
    except Invalid as problem:  # The secret looks like an option.
        assert secret not in str(problem) or secret.startswith("-")
        return
    masked = [MASK if word == secret else word.replace(f"={secret}", f"={MASK}") for word in argv]
    assert split_args(asked.shown) == masked


def test_args_without_secrets_are_shown_unchanged() -> None:
    text = "--exec-start PyTorch   --msd-env A=1 \\\n --model-main main.py --lr '0.1'"
    assert read(text, None).shown == text


def test_the_text_around_a_secret_is_shown_unchanged() -> None:
    text = "--exec-start PyTorch  --msd-env MY_KEY=abc   --model-main main.py --about abc"
    assert read(text, None).shown == text.replace("MY_KEY=abc", "MY_KEY=***")


def test_args_of_the_query_win_over_args_in_data() -> None:
    assert read("--exec-start PyTorch", '{"args": "--exec-start distPyTorch"}').line.operand == "PyTorch"
    assert read(None, '{"args": "--exec-start distPyTorch"}').line.operand == "distPyTorch"


@pytest.mark.parametrize(("name", "directory"), [
    ("DeepLIIFData", "DeepLIIFData"), ("cpd::demo-project-pvc", "demo_project_pvc"), ("a::b::c-d", "c_d"),
])
def test_a_volume_has_a_mount_name(name: str, directory: str) -> None:
    assert volume_directory(name) == directory


@pytest.mark.parametrize(("data", "code"), [
    ({"args": "--exec-start PyTorch " + "a " * (1 << 20)}, "submission.too_long"),
    ({"argv": ["--exec-start", "PyTorch", "a" * (1 << 20)]}, "submission.too_long"),
    ({"args": "--exec-start PyTorch", **{f"key {number}": 0 for number in range(1001)}}, "submission.data_part"),
    ({"args": "--exec-start PyTorch", "dataSource": [{}] * 101}, "submission.data_source"),
])
def test_a_text_above_its_limits_is_refused(data: dict[str, object], code: str) -> None:
    with pytest.raises(Invalid) as caught:
        read(None, json.dumps(data))
    assert caught.value.code == code


def test_many_secrets_are_masked() -> None:
    argv = ["--exec-start", "PyTorch", *(word for at in range(100) for word in ("--msd-env", f"TOKEN_{at}=secret{at}"))]
    shown = read("  ".join(argv), None).shown
    assert shown == " ".join(word.partition("=")[0] + f"={MASK}" if "=" in word else word for word in argv)
