"""The texts that define a search: ranges, lists, metrics and resources."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlicmd.sdk.errors import UsageProblem
from dlicmd.sdk.search_space import Short, definition, metric, pairs, parameter, resource

FLOATS = st.floats(-1e30, 1e30).filter(lambda value: value != int(value))
WHOLE = st.integers(-10**9, 10**9)
#: A word that is no number, no range and no list.
WORDS = st.from_regex(r"[a-z_][a-z0-9_.:=-]{0,8}", fullmatch=True).filter(
    lambda text: ".." not in text and not text.startswith("log:"))


@pytest.mark.parametrize(("text", "found"), [
    ("log:1e-4..1e-1", {"type": "Range", "dataType": "DOUBLE", "minDbVal": 1e-4, "maxDbVal": 0.1, "log": True}),
    ("1..10", {"type": "Range", "dataType": "INT", "minIntVal": 1, "maxIntVal": 10}),
    ("-5..5/2", {"type": "Range", "dataType": "INT", "minIntVal": -5, "maxIntVal": 5, "step": 2}),
    ("0..1/0.25", {"type": "Range", "dataType": "DOUBLE", "minDbVal": 0.0, "maxDbVal": 1.0, "step": 0.25}),
    ("log:16..1024", {"type": "Range", "dataType": "INT", "minIntVal": 16, "maxIntVal": 1024, "log": True}),
    ("1...5", None), (".5..1.", {"type": "Range", "dataType": "DOUBLE", "minDbVal": 0.5, "maxDbVal": 1.0}),
    ("32,64,128", {"type": "Discrete", "dataType": "INT", "discreteIntVal": [32, 64, 128]}),
    ("0.1, 1", {"type": "Discrete", "dataType": "DOUBLE", "discreteDbVal": [0.1, 1.0]}),
    ("adam,sgd", {"type": "Discrete", "dataType": "STR", "discreateStrVal": ["adam", "sgd"]}),
    ("1,x", {"type": "Discrete", "dataType": "STR", "discreateStrVal": ["1", "x"]}),
    ("../a,../b", {"type": "Discrete", "dataType": "STR", "discreateStrVal": ["../a", "../b"]}),
    ("8", {"type": "Discrete", "dataType": "INT", "discreteIntVal": [8]}),
    ("1e-4", {"type": "Discrete", "dataType": "DOUBLE", "discreteDbVal": [1e-4]}),
    *((text, None) for text in ("", ",", "1,", "1,1", "5..1", "1..1", "log:0..1", "log:-1..1", "log:1..9/2", "a..b",
                                "1..2/0", "1..2/3", "1..2/-1", "1..2/x", "log:1,2", "1..nan",
                                "0.1-0.5", "1e-4-1e-1", "1:10")),
])
def test_values_of_a_parameter(text: str, found: dict[str, object] | None) -> None:
    if found is None:
        with pytest.raises(UsageProblem, match="parameter lr"):
            parameter("lr", text)
        return
    assert parameter("lr", text) == {"name": "lr", **found}


@given(st.one_of(WHOLE, FLOATS), st.one_of(WHOLE, FLOATS), st.booleans())
def test_a_range_keeps_its_ends(first: float, second: float, is_log: bool) -> None:
    low, high = sorted((first, second))
    text = f"{'log:' * is_log}{low!r}..{high!r}"
    if low == high or (is_log and low <= 0):
        with pytest.raises(UsageProblem):
            parameter("x", text)
        return
    found = parameter("x", text)
    ends = {found.get(key) for key in ("minIntVal", "maxIntVal", "minDbVal", "maxDbVal")} - {None}
    assert ends == {low, high} and found.get("log", False) is is_log
    assert (found["dataType"] == "INT") is (isinstance(low, int) and isinstance(high, int))
    assert json.loads(json.dumps(found)) == found


@given(st.lists(st.one_of(WHOLE, FLOATS, WORDS), min_size=1, max_size=8, unique_by=str))
def test_a_list_keeps_its_values_and_a_text_means_the_same(values: list[float | str]) -> None:
    found = parameter("x", values)
    [listed] = [found[key] for key in found if key.startswith("discre")]
    assert [str(one) for one in listed] == [str(one) for one in values] or found["dataType"] == "DOUBLE"
    assert len({type(one) for one in listed}) == 1 and len(listed) == len(values)
    assert parameter("x", ",".join(map(str, values))) == found


@given(st.text(max_size=30))
def test_no_text_breaks_the_parser(text: str) -> None:
    for read in (lambda: parameter("x", text), lambda: metric(text), lambda: resource(text), lambda: pairs([text])):
        try:
            json.dumps(read(), allow_nan=False)
        except UsageProblem:
            continue


@pytest.mark.parametrize("value", [math.inf, math.nan, None, [], [[1]], {1}, [1, 1]])
def test_values_that_no_parameter_has(value: object) -> None:
    with pytest.raises(UsageProblem):
        parameter("x", value)


def test_an_object_of_the_contract_passes_through() -> None:
    given_one = {"type": "Range", "dataType": "INT", "minIntVal": 1, "maxIntVal": 3, "if": {"optimizer": "sgd"}}
    assert parameter("x", given_one) == {"name": "x", **given_one}


@pytest.mark.parametrize(("text", "found"), [
    ("accuracy", ("accuracy", "maximize")), ("loss", ("loss", "minimize")), ("val/rmse", ("val/rmse", "minimize")),
    ("accuracy:minimize", ("accuracy", "minimize")), ("loss:MAX", ("loss", "maximize")),
    ("a:b:min", ("a:b", "minimize")), ("", None), (":min", None), ("loss:up", None),
])
def test_a_metric_has_a_direction(text: str, found: tuple[str, str] | None) -> None:
    if found is None:
        with pytest.raises(UsageProblem):
            metric(text)
    else:
        assert metric(text) == found


@pytest.mark.parametrize("text", ["epochs", "epochs:", ":3", "epochs:0", "epochs:2.5", "epochs:-3"])
def test_a_resource_has_a_name_and_a_whole_number(text: str) -> None:
    with pytest.raises(UsageProblem):
        resource(text)


def test_names_are_given_once() -> None:
    assert pairs(["a=1..2", "b=x=y"]) == {"a": "1..2", "b": "x=y"}
    for wrong in (["a"], ["=1"], ["a=1", "a=2"]):
        with pytest.raises(UsageProblem):
            pairs(wrong)


def test_the_definition_has_the_members_of_the_contract() -> None:
    short = Short({"lr": "0.1..0.2"}, ["accuracy:maximize"], 40, 3, 10, None, "epochs:27", True, 7, "mine")
    assert definition(short, "--exec-start PyTorch") == {
        "hpoName": "mine", "modelSpec": {"args": "--exec-start PyTorch"},
        "hyperParams": [{"name": "lr", "type": "Range", "dataType": "DOUBLE", "minDbVal": 0.1, "maxDbVal": 0.2}],
        "algoDef": {
            "algorithm": "ASHA", "maxRunTime": 10, "maxJobNum": 40, "maxParalleJobNum": 3,
            "objectiveMetric": "accuracy",
            "objective": "maximize", "resume": True, "algoParams": [
                {"name": "ResourceName", "value": "epochs"}, {"name": "ResourceValue", "value": "27"},
                {"name": "RandomSeed", "value": "7"}]},
    }


def test_defaults_of_the_definition() -> None:
    def algo(**more: object) -> dict[str, object]:
        return definition(Short({"a": "1,2"}, ["loss", "accuracy"], **more), "x")["algoDef"]

    found = algo()
    assert (found["algorithm"], found["maxJobNum"], found["maxParalleJobNum"]) == ("Tpe", 20, 4)
    assert found["objectives"] == {"loss": "minimize", "accuracy": "maximize"} and "algoParams" not in found
    assert algo(algorithm="grid")["maxJobNum"] == -1 and algo(trials=2)["maxParalleJobNum"] == 2
    for wrong in (Short({}, ["loss"]), Short({"a": "1,2"}, []), Short({"a": "1,2"}, ["loss"], resume=True)):
        with pytest.raises(UsageProblem):
            definition(wrong, "x")
