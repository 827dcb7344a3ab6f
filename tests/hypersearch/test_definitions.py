"""Definitions of searches: spellings of WMLA's clients, and refusals."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated import RATE, definition, rung_search, text_of

from local_backend.errors import Invalid
from local_backend.hypersearch.definition import Constraint, Definition, Parameter
from local_backend.hypersearch.legacy import completed, words_of
from local_backend.hypersearch.reading import parse

#: A parameter as WMLA's clients send it: all unused members are there, and empty.
FILLED = {
    "name": "learning_rate", "type": "Range", "dataType": "DOUBLE", "minDbVal": 0.001, "maxDbVal": 0.1,
    "minIntVal": 0, "maxIntVal": 0, "discreteDbVal": [], "discreteIntVal": [], "discreateStrVal": [],
    "step": "0.002", "userDefined": False,
}


def changed(**changes: Any) -> str:
    """Return the text of a correct definition with changed members, named as part__member."""
    value = json.loads(text_of("Random", space=[FILLED]))
    for place, new in changes.items():
        part, _, member = place.partition("__")
        if part == "item":
            value["hyperParams"][0][member] = new
        elif member:
            value[part][member] = new
        else:
            value[part] = new
    return json.dumps(value)


def code_of(text: str, **more: Any) -> str:
    with pytest.raises(Invalid) as refused:
        parse(text, **more)
    return refused.value.code


def test_json_and_a_python_literal_say_the_same() -> None:
    text = text_of("Random", space=[FILLED])
    assert parse(text) == parse(repr(json.loads(text))) == parse(f"\n {json.loads(text)!r} ")


@pytest.mark.parametrize("said, meant", [
    ("random", "Random"), ("TPE", "TPE"), ("tpe", "TPE"), ("bayesian", "Bayesian"), ("nsga2", "NSGA2"),
    ("cmaes", "CMAES"),
])
def test_names_of_algorithms_have_no_case(said: str, meant: str) -> None:
    assert definition(said).algorithm == meant


@pytest.mark.parametrize("key", ["maxParalleJobNum", "maxParalleJob", "maxParallelJobNum"])
def test_the_number_of_parallel_experiments_has_several_names(key: str) -> None:
    assert definition("Random", **{key: "3"}).parallel == 3


def test_limits() -> None:
    unlimited = definition("Random", maxRunTime=-1, maxJobNum=-1)
    assert (unlimited.max_minutes, unlimited.max_experiments, unlimited.parallel, unlimited.max_failed) == (
        None, None, 1, None)
    limited = definition("Random", maxRunTime="60", maxJobNum=4, maxFailedJobNum=0)
    assert (limited.max_minutes, limited.max_experiments, limited.max_failed) == (60, 4, 0)


def test_types_and_lists_have_the_spellings_of_clients() -> None:
    space = [FILLED, {"name": "o", "type": "DISCRETE", "dataType": "STRING", "discreateStrVal": ["a", "b"]},
             {"name": "p", "type": "discrete", "dataType": "str", "discreteStrVal": ["c"]},
             {"name": "n", "type": "range", "dataType": "int", "minIntVal": "1", "maxIntVal": 14, "step": 1,
              "minDbVal": 0, "maxDbVal": 0},
             {"name": "r", "type": "Range", "dataType": "DOUBLE", "minDbVal": -2, "maxDbVal": 0, "power": "10"}]
    assert definition("Random", space=space).parameters == (
        Parameter("learning_rate", "DOUBLE", 0.001, 0.1, step=0.002),
        Parameter("o", "STR", choices=("a", "b")), Parameter("p", "STR", choices=("c",)),
        Parameter("n", "INT", 1, 14), Parameter("r", "DOUBLE", -2.0, 0.0, power=10.0))


@pytest.mark.parametrize("key", ["hyperParams", "fixedHyperParams"])
def test_listed_experiments_keep_their_ids_and_types(key: str) -> None:
    value = json.loads(text_of("ExperimentGridSearch", space=[]))
    value["experiments"] = [{"id": number, key: [
        {"name": "optimizer", "dataType": "STRING", "fixedVal": "adam"},
        {"name": "rate", "dataType": "double", "fixedVal": "0.1"}, {"name": "n", "dataType": "INT", "fixedVal": "3"},
    ]} for number in (1, 2)]
    found = parse(json.dumps(value))
    assert [one.id for one in found.given] == [1, 2]
    assert found.given[0].parameters == {"optimizer": "adam", "rate": 0.1, "n": 3}
    assert found.given[0].given[0] == {"name": "optimizer", "type": "fix", "dataType": "string", "userDefined": False,
                                       "fixedVal": "adam"}


def test_the_rungs_of_hyperband() -> None:
    assert rung_search("Hyperband", 81).eta == 3
    old = definition("Hyperband", ("ResourceName", "epochs"), ("ResourceValue", "81"), hyperbandEta=4)
    assert (old.resource, old.most_resource, old.eta, old.resume, old.refill) == ("epochs", 81, 4.0, False, "batch")
    assert rung_search("ASHA", 9, resume=True).refill == "async"


def test_extensions() -> None:
    found = definition("Tpe", ("RandomSeed", "5"), refill="async", warmStart="before", terminator=False,
                       objectives={"loss": "minimize", "speed": "Maximize"}, constraints={"latency": {"max": 20}},
                       additionalMetrics={"latency": "maximize", "other": "average"})
    assert found.objectives == (("loss", False), ("speed", True))
    assert found.constraints == (Constraint("latency", None, 20.0),)
    assert found.wanted == {"loss": "minimize", "speed": "maximize", "latency": "maximize"}
    assert found.additional["other"] == "latest"
    assert (found.seed, found.refill, found.warm_start) == (5, "async", "before")
    assert Definition.from_json(found.to_json()) == found


def test_conditions_may_name_values() -> None:
    choice = {"name": "o", "type": "Discrete", "dataType": "STR", "discreateStrVal": ["sgd", "adam", "lamb"]}
    found = definition("Tpe", space=[RATE | {"if": {"o": ["sgd", "lamb"]}}, choice])
    assert found.parameters[0].when == (("o", ("sgd", "lamb")),)
    assert Definition.from_json(found.to_json()) == found


def test_empty_lists_beside_the_used_one_are_passed_over() -> None:
    """Also under another spelling of the same name."""
    lists = {"discreteDbVal": [], "discreteIntVal": [], "discreateStrVal": [], "discreteStrVal": ["sgd", "adam"]}
    choice = {"name": "o", "type": "Discrete", "dataType": "STR", "minDbVal": 0, "maxIntVal": 0} | lists
    (found,) = parse(text_of("Random", space=[choice])).parameters
    assert found.choices == ("sgd", "adam")


@pytest.mark.parametrize(("framework", "distribute", "chosen"), [
    ("PyTorch", None, "PyTorch"), ("PyTorch", False, "PyTorch"), ("pytorch", True, "distPyTorch"),
    ("PyTorch", "true", "distPyTorch"), ("PyTorchOnElastic", True, "edtPyTorch"), ("mine", True, "mine"),
])
def test_the_first_generation_chooses_the_framework(framework: str, distribute: Any, chosen: str) -> None:
    asked = {"resDef": {"framework": framework, "maxiteration": "100", "batchsize": 32, "workerNum": 2,
                        "gpuNum": 0} | ({} if distribute is None else {"distribute": distribute})}
    assert words_of(json.dumps(asked)) == (f"--exec-start {chosen} --numWorker 2 --msd-env MAXITERATION=100 "
                                           "--msd-env BATCHSIZE=32")


def test_the_first_generation_chooses_the_smallest_resource_and_the_group() -> None:
    value = json.loads(rungs(27, "3"))
    del value["modelSpec"]
    value["resDef"] = {"framework": "PyTorch", "maxiteration": "27", "batchsize": 8, "miniteration": 3,
                       "initWeightPath": "/data/start", "resourceInstanceId": "group-1", "syncMode": "sync"}
    found = parse(completed(json.dumps(value)))
    assert (found.least_resource, found.most_resource, found.sig_name) == (3, 27, "group-1")
    assert found.args == ("--exec-start PyTorch --msd-env MAXITERATION=27 --msd-env BATCHSIZE=8 "
                          "--msd-env INITWEIGHTPATH=/data/start")


@pytest.mark.parametrize("unused", [0, "0", "1"])
def test_an_unused_smallest_resource_of_the_first_generation_has_no_effect(unused: object) -> None:
    value = json.loads(rungs(27, "3"))
    value["resDef"] = {"framework": "PyTorch", "miniteration": unused, "resourceInstanceId": "group-1"}
    found = parse(completed(json.dumps(value)))
    assert (found.least_resource, found.sig_name) == (1, "group-1")


def test_the_first_generation_cannot_train_asynchronously() -> None:
    with pytest.raises(Invalid) as refused:
        completed(json.dumps({"resDef": {"framework": "PyTorch", "syncMode": "ASYNC"}}))
    assert refused.value.code == "search.definition"


def test_the_echo_leaves_out_what_is_unused() -> None:
    item = parse(text_of("Random", space=[FILLED])).raw["hyperParams"][0]
    assert item == {"name": "learning_rate", "type": "range", "dataType": "double", "minDbVal": 0.001, "maxDbVal": 0.1,
                    "minIntVal": 0, "maxIntVal": 0, "step": "0.002", "userDefined": False}


def test_the_program_may_come_from_another_place() -> None:
    value = json.loads(text_of("Random"))
    del value["modelSpec"]
    assert code_of(json.dumps(value)) == "search.definition"
    assert parse(json.dumps(value), args="--exec-start PyTorch").args == "--exec-start PyTorch"


def rungs(most: int, eta: str, name: str = "epochs") -> str:
    return text_of("Hyperband", ("ResourceName", name), ("ResourceValue", str(most)), ("eta", eta))


@pytest.mark.parametrize("code, text", [
    ("search.definition", ""), ("search.definition", "[]"), ("search.definition", "import os"),
    ("search.definition", "__import__('os').system('true')"), ("search.definition", "[" * 100_000),
    ("search.definition", '{"a": ' * 5000), ("search.definition", "{'a': 1" + "+ 1" * 1000 + "}"),
    ("search.definition", '{"algoDef": NaN}'), ("search.definition", "{'algoDef': inf}"),
    ("search.definition", "[1e999]"),
    ("search.definition", changed(algoDef__objective="max")),
    ("search.definition", changed(algoDef__objectiveMetric="")),
    ("search.definition", changed(algoDef__maxJobNum="many")), ("search.definition", changed(algoDef__maxJobNum=1.5)),
    ("search.definition", changed(algoDef__maxParalleJobNum=0)),
    ("search.definition", changed(modelSpec={"args": " "})),
    ("search.definition", changed(algoDef__refil="async")), ("search.definition", changed(refill="async")),
    ("search.definition", changed(algoDef__resume=True)),
    ("search.definition", changed(algoDef__constraints={"a": {}})),
    ("search.definition", changed(algoDef__warmStart="before")),
    ("search.definition", '{"a": "\\ud800"}'), ("search.definition", changed(algoDef__maxRunTime=1e300)),
    ("search.definition", changed(algoDef__objectiveMetric="a\x1b[2J")),
    ("search.definition", changed(algoDef__additionalMetrics={"a\n": "latest"})),
    ("search.definition", changed(algoDef__maxJobNum="9" * 400)),
    ("search.algorithm", rungs(1000, "1.001")), ("search.algorithm", rungs(2**31, "3")),
    ("search.algorithm", rungs(9, "3", "a\nb")),
    ("search.algorithm", text_of("TPE", ("EICandidate", "1000000000"))),
    ("search.space", changed(item__name="a\u202eb")),
    ("search.space", changed(item__type="Discrete", item__dataType="STR", item__discreateStrVal=["a\0"])),
    ("search.algorithm", changed(algoDef__algorithm="Guess")),
    ("search.algorithm", changed(algoDef__algorithm="Hyperband")),
    ("search.algorithm", changed(algoDef__algoParams=[{"name": "WarmUp", "value": "9"}])),
    ("search.algorithm", changed(algoDef__algoParams=[{"name": "RandomSeed", "value": "x"}])),
    ("search.space", changed(hyperParams=[])), ("search.space", changed(hyperParams=[FILLED, FILLED])),
    ("search.space", changed(experiments=[{"id": 1}])),
    ("search.space", changed(algoDef__algorithm="ExperimentGridSearch")),
    ("search.space", changed(item__type="Normal")), ("search.space", changed(item__dataType="BOOL")),
    ("search.space", changed(item__minDbVal=1)), ("search.space", changed(item__step="fine")),
    ("search.space", changed(item__step=-1)), ("search.space", changed(item__step=1e-12)),
    ("search.space", changed(item__power=1)), ("search.space", changed(item__log=True)),
    ("search.space", changed(item__type="Discrete")), ("search.space", changed(item__name="")),
    ("search.space", changed(**{"item__if": {"other": 1}})),
    ("search.space", changed(**{"item__if": {"learning_rate": 1}})),
])
def test_what_is_wrong_is_refused(code: str, text: str) -> None:
    assert code_of(text) == code


def test_conditions_in_a_circle_are_refused() -> None:
    names = ("a", "b", "c")
    space = [{"name": name, "type": "Discrete", "dataType": "INT", "discreteIntVal": [1, 2], "if": {above: 1}}
             for name, above in zip(names, names[1:] + names[:1], strict=True)]
    assert code_of(text_of("Random", space=space)) == "search.space"


def test_too_many_conditions_are_refused() -> None:
    others = [{"name": f"o{number}", "type": "Discrete", "dataType": "INT", "discreteIntVal": [1]}
              for number in range(51)]
    for count, wanted in ((50, ""), (51, "search.space")):
        last = {**others[0], "name": "last", "if": {one["name"]: 1 for one in others[:count]}}
        text = text_of("Random", space=[*others, last])
        assert (code_of(text) if wanted else parse(text).algorithm) == (wanted or "Random")


def test_texts_without_end_are_refused() -> None:
    """Python takes neighboring texts for one."""
    assert code_of("'a' " * 500_001) == "search.definition"


def test_a_plugin_is_known_by_its_name() -> None:
    text = text_of("Mine", ("any", "thing"))
    assert code_of(text) == "search.algorithm"
    found = parse(text, plugins=["mine"])
    assert (found.algorithm, found.plugin, found.params) == ("mine", True, {"any": "thing"})


@given(st.recursive(st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text()
                    | st.floats(allow_nan=False, allow_infinity=False),
                    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20))
def test_any_value_is_refused_or_read(value: Any) -> None:
    """Whatever the text says, the answer is a definition or a refusal."""
    for text in (json.dumps(value), repr(value), repr(value)[:-1]):
        with pytest.raises(Invalid):
            parse(text)
