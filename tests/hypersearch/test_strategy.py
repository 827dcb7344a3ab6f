"""Steps of searches."""

from __future__ import annotations

import json
import random
from dataclasses import replace

from simulated import RATE, Simulation, definition, text_of

from local_backend.hypersearch.definition import Beginning, Known, Step, Value
from local_backend.hypersearch.reading import parse
from local_backend.hypersearch.strategy import next_step


def rate(values: dict[str, Value], resource: int | None) -> float:
    return float(values["rate"])


def test_a_batch_begins_when_the_one_before_has_ended() -> None:
    search = Simulation(definition("Random", maxJobNum=10, maxParalleJobNum=4), rate)
    assert search.act() == 4
    for number in range(3):
        search.end(number)
        assert search.act() == 0
    search.end(3)
    assert search.act() == 4
    assert len(search.run(random.Random(1))) == 10


def test_without_batches_all_places_are_busy() -> None:
    search = Simulation(definition("Random", maxJobNum=10, maxParalleJobNum=4, refill="async"), rate)
    assert search.act() == 4
    search.end(2)
    assert search.act() == 1
    assert len(search.run(random.Random(1))) == 10
    assert search.known[7].parameters == Simulation(definition("Random", maxJobNum=10), rate).run(
        random.Random(2))[7].parameters


def test_listed_experiments_run_once_each() -> None:
    value = json.loads(text_of("ExperimentGridSearch", space=[], maxParalleJobNum=2))
    value["experiments"] = [{"id": number, "hyperParams": [{"name": "rate", "dataType": "DOUBLE", "fixedVal": "0.5"}]}
                            for number in (4, 2, 9)]
    found = parse(json.dumps(value))
    assert next_step(found, 1, []) == Step((Beginning({"rate": 0.5}, id=4), Beginning({"rate": 0.5}, id=2)))
    known = [Known(number, {"rate": 0.5}, "done", value=1.0) for number in (4, 2)]
    assert next_step(found, 1, known).start[0].id == 9
    assert next_step(found, 1, [*known, Known(9, {"rate": 0.5}, "running")]) == Step()
    assert next_step(found, 1, [*known, Known(9, {"rate": 0.5}, "failed")]).over


def test_a_grid_ends() -> None:
    space = [{"name": "n", "type": "Range", "dataType": "INT", "minIntVal": 0, "maxIntVal": 4}, RATE | {"step": 0.5}]
    known = Simulation(definition("Grid", space=space, maxParalleJobNum=4), rate).run(random.Random(1))
    assert len({str(one.parameters) for one in known}) == len(known) == 15


def test_samplers_are_asked_for_the_free_places() -> None:
    found = definition("Tpe", maxJobNum=6, maxParalleJobNum=4, refill="async")
    assert next_step(found, 1, []).ask == 4
    known = [Known(number, {"rate": 0.1}, "done", value=1.0, told=number) for number in range(4)]
    assert next_step(found, 1, known).ask == 2
    assert next_step(found, 1, [*known, Known(4, {"rate": 0.1}, "running")]).ask == 1
    assert next_step(found, 1, known, exhausted=True).over


def test_too_many_failed_experiments_end_the_search() -> None:
    found = definition("Random", maxFailedJobNum=1, maxParalleJobNum=2, refill="async")
    known = [Known(0, {}, "failed"), Known(1, {}, "running")]
    assert next_step(found, 1, known).start
    known += [Known(2, {}, "failed")]
    assert next_step(found, 1, known) == Step()
    assert next_step(found, 1, [known[0], replace(known[1], state="done"), known[2]]).over


def test_the_terminator_ends_a_search_without_gain() -> None:
    found = definition("Random", maxParalleJobNum=1, terminator=True)
    flat = [Known(number, {}, "done", value=1 / (number + 1) if number < 12 else 0.5, told=number)
            for number in range(40)]
    assert next_step(found, 1, flat).over
    assert not next_step(found, 1, flat[:18]).over
    better = [replace(one, value=1 / (one.id + 1)) for one in flat]
    assert not next_step(found, 1, better).over
    assert not next_step(replace(found, terminator=False), 1, flat).over
