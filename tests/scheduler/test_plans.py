"""Resource plans: parse, store, show, find."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from local_backend.scheduler import plans
from local_backend.scheduler.model import DEFAULT_PLAN, ROOT, ResourcePlan
from local_backend.scheduler.plans import PlanError

WRITTEN = {"plans": [
    {"name": "research", "weight": 2, "reserved": 2, "max": 6, "policy": "priority", "plans": [
        {"name": "vision", "user_max": 2}, {"name": "speech", "reclaim_grace": 120},
    ]},
    {"name": "training"},
]}


def test_plans_are_parsed_dumped_and_shown_in_the_form_of_the_contract():
    root = plans.parse(WRITTEN)
    assert root == ResourcePlan("local", children=(
        ResourcePlan("research", 2.0, 2, 6, by_priority=True, children=(
            ResourcePlan("vision", user_most=2), ResourcePlan("speech", reclaim_grace=120.0),
        )),
        ResourcePlan("training"),
    ))
    assert plans.parse(plans.dump(root)) == root
    assert plans.tree_object(root) == {
        "id": "local", "pid": "", "childTreeDto": [
            {"id": "research", "pid": "local", "weight": 2.0, "reserved": 2, "max": 6, "policy": "priority",
             "childTreeDto": [
                 {"id": "vision", "pid": "research", "user_max": 2},
                 {"id": "speech", "pid": "research", "reclaim_grace": 120.0},
             ]},
            {"id": "training", "pid": "local"},
        ],
    }


@pytest.mark.parametrize(
    ("consumer", "path", "understood"),
    [
        ("", DEFAULT_PLAN, True),
        ("/local/training", DEFAULT_PLAN, True),
        ("/local/training/ada", DEFAULT_PLAN, True),
        ("training", DEFAULT_PLAN, True),
        ("research/vision", ("local", "research", "vision"), True),
        ("/local/research/", ("local", "research"), True),
        ("/local/research/chemistry", ("local", "research"), False),
        ("/wml-accelerator-ns/project/training", DEFAULT_PLAN, False),
        ("/local", DEFAULT_PLAN, True),
        ("//", DEFAULT_PLAN, True),
    ],
)
def test_a_consumer_resolves_to_its_plan_or_to_the_nearest_plan(consumer, path, understood):
    assert plans.resolve(plans.parse(WRITTEN), consumer, "ada") == (path, understood)


def test_without_a_default_plan_jobs_use_the_root_plan():
    root = plans.parse({"plans": [{"name": "a"}]})
    assert plans.resolve(root, "", "ada") == (("local",), True)


def test_plans_are_found_changed_and_removed_by_path_or_name():
    root = plans.parse(WRITTEN)
    assert plans.locate(root, "vision")[0] == plans.locate(root, "/local/research/vision")[0]
    path, plan = plans.locate(root, "research/vision")
    assert plan.user_most == 2
    changed = plans.put(root, path, {"user_max": 3})
    assert plans.locate(changed, "vision")[1].user_most == 3
    added = plans.put(root, ("local", "training", "night"), {"name": "night", "weight": 0.5})
    assert plans.locate(added, "night")[1].weight == 0.5
    without = plans.remove(added, ("local", "research"))
    assert [path for path, _ in plans.walk(without)] == [
        ("local",), ("local", "training"), ("local", "training", "night"),
    ]
    with pytest.raises(PlanError, match="'vision'"):
        plans.locate(without, "vision")
    with pytest.raises(PlanError, match="'x': /local/a/x, /local/b/x"):
        plans.locate(plans.parse({"plans": [{"name": n, "plans": [{"name": "x"}]} for n in "ab"]}), "x")
    with pytest.raises(PlanError, match="/local/nowhere"):
        plans.put(root, ("local", "nowhere", "x"), {})
    with pytest.raises(PlanError, match="outermost"):
        plans.remove(root, ("local",))


@pytest.mark.parametrize(
    ("written", "named"),
    [
        ([], '"plans"'),
        ({"plans": 3}, "plan local: .*'plans'"),
        ({"plans": [{}]}, "local: .*name"),
        ({"plans": [{"name": "a/b"}]}, "'a/b'"),
        ({"plans": [{"name": "a"}, {"name": "a"}]}, "'a'"),
        ({"plans": [{"name": "a", "wieght": 1}]}, "local/a: unknown key 'wieght'; the keys are weight"),
        ({"plans": [{"name": "a", "weight": 0}]}, "weight .* 0.001 to 1000, not 0"),
        ({"plans": [{"name": "a", "weight": float("nan")}]}, "weight .* 0.001 to 1000, not nan"),
        ({"plans": [{"name": "a", "weight": True}]}, "weight .* 0.001 to 1000, not True"),
        ({"plans": [{"name": "a", "reserved": 1.5}]}, "reserved .* 0 to 1000000, not 1.5"),
        ({"plans": [{"name": "a", "reserved": 3, "max": 2}]}, r"reserved \(3\) .* max \(2\)"),
        ({"plans": [{"name": "a", "policy": "random"}]}, "policy .* fairshare or priority, not 'random'"),
        ({"plans": [{"name": "a", "reclaim_grace": -1}]}, r"reclaim_grace .* 0 to 1e\+09, not -1"),
    ],
)
def test_an_invalid_document_is_rejected_with_the_reason(written, named):
    with pytest.raises(PlanError, match=named):
        plans.parse(written)


def test_the_depth_of_plans_is_limited():
    written: dict = {"name": "p"}
    for _ in range(10):
        written = {"name": "p", "plans": [written]}
    with pytest.raises(PlanError, match="7 levels"):
        plans.parse({"plans": [written]})


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["plans", "name", "weight", "max", "policy", "x"]), inner, max_size=4),
    max_leaves=12,
)


@given(junk)
def test_any_document_is_parsed_or_rejected_in_one_line(document):
    try:
        root = plans.parse(document)
    except PlanError as problem:
        assert "\n" not in str(problem)
    else:
        assert plans.parse(plans.dump(root)) == root


def test_the_initial_tree_can_be_dumped_and_parsed():
    assert plans.parse(plans.dump(ROOT)) == ROOT
