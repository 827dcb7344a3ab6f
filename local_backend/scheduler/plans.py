"""Resource plans as users write them, as they are stored, and as clients of the contract read them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from local_backend.scheduler.model import DEFAULT_PLAN, ROOT, SERVICE_PLAN, ResourcePlan

#: Key of a document → field of Plan.
KEYS = {
    "weight": "weight", "reserved": "reserved", "max": "most", "user_max": "user_most", "policy": "by_priority",
    "reclaim_grace": "reclaim_grace",
}
POLICIES = ("fairshare", "priority")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_DEEPEST, _MOST = 8, 1000
_WEIGHTS, _SECONDS = (0.001, 1000.0), (0.0, 1e9)

Path = tuple[str, ...]


class PlanError(ValueError):
    """A plan is invalid. The message is a sentence without its full stop; it says where and why."""


def parse(document: Any) -> ResourcePlan:
    """Parse a document {"plans": [{"name": ..., "weight": ..., "plans": [...]}, ...]}. Raises PlanError."""
    if not isinstance(document, Mapping) or set(document) != {"plans"}:
        raise PlanError('the document must have one key, "plans", with a list of plans')
    root = replace(ROOT, children=_children(document["plans"], ROOT.name, 1))
    if sum(1 for _ in walk(root)) > _MOST:
        raise PlanError(f"too many plans: at most {_MOST} are allowed")
    return root


def dump(root: ResourcePlan) -> dict[str, Any]:
    """Return the document that `parse` reads."""
    return {"plans": [describe(child) for child in root.children]}


def describe(plan: ResourcePlan) -> dict[str, Any]:
    """Return one plan with those below it, as written; fields with their default value are left out."""
    default = ResourcePlan(plan.name)
    found: dict[str, Any] = {"name": plan.name}
    for key, field in KEYS.items():
        value = getattr(plan, field)
        if value != getattr(default, field):
            found[key] = "priority" if key == "policy" else value
    if plan.children:
        found["plans"] = [describe(child) for child in plan.children]
    return found


def tree_object(plan: ResourcePlan, parent: str = "") -> dict[str, Any]:
    """Return a node of the contract's tree: `id`, `pid`, `childTreeDto`, and the limits of the plan."""
    found = {"id": plan.name, "pid": parent, **{k: v for k, v in describe(plan).items() if k not in ("name", "plans")}}
    if plan.children:
        found["childTreeDto"] = [tree_object(child, plan.name) for child in plan.children]
    return found


def walk(plan: ResourcePlan, above: Path = ()) -> Iterator[tuple[Path, ResourcePlan]]:
    """Yield a plan and all plans below it, with their paths."""
    path = (*above, plan.name)
    yield path, plan
    for child in plan.children:
        yield from walk(child, path)


def locate(root: ResourcePlan, name: str) -> tuple[Path, ResourcePlan]:
    """Return the plan with this path, absolute or from the root, or the only one of this name. Raises PlanError."""
    words = tuple(filter(None, name.split("/")))
    found = [(path, plan) for path, plan in walk(root) if path == words or path[1:] == words]
    found = found or [(path, plan) for path, plan in walk(root) if path[-1:] == words]
    if len(found) == 1:
        return found[0]
    if found:
        paths = ", ".join("/" + "/".join(path) for path, _ in found)
        raise PlanError(f"several plans have the name {name[:80]!r}: {paths}; use the path")
    raise PlanError(f"there is no plan {name[:80]!r}")


def put(root: ResourcePlan, path: Sequence[str], document: Any) -> ResourcePlan:
    """Return the tree with this plan as written, at a path from the root. Raises PlanError if it has no parent."""
    parent = tuple(path[:-1])
    if not parent or not any(found == parent for found, _ in walk(root)):
        raise PlanError(f"the parent plan {'/' + '/'.join(parent)} does not exist; create it first")
    if not isinstance(document, Mapping):
        raise PlanError("a plan must be a JSON object")
    if document.get("name", path[-1]) != path[-1]:
        raise PlanError(f"the names differ: {path[-1]!r} in the path, {document['name']!r} in the plan")
    made = _plan({**document, "name": path[-1]}, "/".join(["", *parent]), len(path) - 1)
    changed = _changed(root, tuple(path[1:]), made)
    parse(dump(changed))
    return changed


def remove(root: ResourcePlan, path: Sequence[str]) -> ResourcePlan:
    """Return the tree without this plan and those below it. Raises PlanError for the root."""
    if len(path) < 2:
        raise PlanError("the outermost plan cannot be removed")
    return _changed(root, tuple(path[1:]), None)


def resolve(root: ResourcePlan, consumer: str, user: str, *, serves: bool = False) -> tuple[Path, bool]:
    """Return the path of the plan that `--consumer` names, and whether it is the plan that was asked for.

    As in WMLA, the path may end with the user's name. An unknown path, for example of another cluster, stands for
    the nearest plan above it, or for the default plan if there is none: of services if it `serves`.
    """
    words = [word for word in consumer.split("/") if word]
    if words and words[0] == root.name and (len(words) > 1 or consumer.startswith("/")):
        words = words[1:]
    path, node = [root.name], root
    for i, word in enumerate(words):
        child = next((child for child in node.children if child.name == word), None)
        if child is None:
            understood = i > 0 and words[i:] == [user]
            return (tuple(path), understood) if i else (default(root, serves=serves), False)
        path.append(word)
        node = child
    return (tuple(path), True) if words else (default(root, serves=serves), True)


def default(root: ResourcePlan, *, serves: bool = False) -> Path:
    """Return the path of the plan for jobs, or for services, that name none."""
    there = {child.name for child in root.children}
    found = (path for path in ((SERVICE_PLAN, DEFAULT_PLAN) if serves else (DEFAULT_PLAN,)) if path[-1] in there)
    return next(found, (root.name,))


def _changed(plan: ResourcePlan, path: Path, made: ResourcePlan | None) -> ResourcePlan:
    """Return the tree with `made` at a path below `plan`, or with no plan there if `made` is None."""
    name, rest = path[0], path[1:]
    children = list(plan.children)
    at = next((i for i, child in enumerate(children) if child.name == name), len(children))
    new = _changed(children[at], rest, made) if rest else made
    children[at : at + 1] = [] if new is None else [new]
    return replace(plan, children=tuple(children))


def _children(written: Any, where: str, depth: int) -> tuple[ResourcePlan, ...]:
    if not isinstance(written, Sequence) or isinstance(written, str):
        raise PlanError(f"plan {where}: the value of 'plans' must be a list of plans")
    if depth > _DEEPEST:
        raise PlanError(f"plan {where}: at most {_DEEPEST - 1} levels of plans are allowed below {ROOT.name}")
    children = tuple(_plan(one, where, depth) for one in written)
    names = [child.name for child in children]
    for name in names:
        if names.count(name) > 1:
            raise PlanError(f"plan {where}: two plans have the name {name!r}")
    return children


def _plan(written: Any, where: str, depth: int) -> ResourcePlan:
    if not isinstance(written, Mapping) or not isinstance(name := written.get("name"), str):
        raise PlanError(f"plan {where}: each plan must have a name")
    if not _NAME.fullmatch(name):
        raise PlanError(f"plan {where}: invalid plan name {name[:80]!r}; use letters, digits, '.', '_' and '-'")
    where = f"{where}/{name}"
    unknown = [str(key) for key in written if key not in (*KEYS, "name", "plans")]
    if unknown:
        raise PlanError(f"plan {where}: unknown key {unknown[0][:80]!r}; the keys are {', '.join([*KEYS, 'plans'])}")
    policy = written.get("policy", "fairshare")
    if policy not in POLICIES:
        raise PlanError(f"plan {where}: policy must be {' or '.join(POLICIES)}, not {str(policy)[:80]!r}")
    plan = ResourcePlan(
        name,
        weight=_number(written, "weight", where, _WEIGHTS, 1.0) or 1.0,
        reserved=_slots(written, "reserved", where, 0) or 0,
        most=_slots(written, "max", where, None),
        user_most=_slots(written, "user_max", where, None),
        by_priority=policy == "priority",
        reclaim_grace=_number(written, "reclaim_grace", where, _SECONDS, None),
        children=_children(written.get("plans", ()), where, depth + 1),
    )
    if plan.most is not None and plan.reserved > plan.most:
        raise PlanError(f"plan {where}: reserved ({plan.reserved}) is more than max ({plan.most})")
    return plan


def _number(
    written: Mapping[str, Any], key: str, where: str, bounds: tuple[float, float], default: float | None
) -> float | None:
    value = written.get(key, default)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not bounds[0] <= value <= bounds[1]:
        raise PlanError(f"plan {where}: {key} must be a number from {bounds[0]:g} to {bounds[1]:g}, not {value!r}")
    return float(value)


def _slots(written: Mapping[str, Any], key: str, where: str, default: int | None) -> int | None:
    value = written.get(key, default)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 10**6:
        raise PlanError(f"plan {where}: {key} must be a whole number of slots from 0 to 1000000, not {value!r}")
    return value
