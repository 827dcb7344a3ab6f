"""Kinds of other packages: the registry finds them by entry points, and a broken kind harms no other kind."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from data_source_calls import START
from kind_package import put_package
from live_server import Live

from local_backend.data import registry
from local_backend.data.errors import DataError, KindUnusable
from local_backend.data.kind import Kind
from local_backend.serving import doctor

ROOT = Path(__file__).parent.parent.parent
MODULE = """
from local_backend.data.kind import Kind, Mounted

ONE = Kind("{name}", "{title}", Mounted, aliases={aliases})
"""
Put = Callable[..., None]


def module(name: str, title: str = "One", aliases: tuple[str, ...] = ()) -> str:
    return MODULE.format(name=name, title=title, aliases=aliases)


@pytest.fixture
def put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Put]:
    """Returns a function that installs a package into a folder of the module path."""
    folder = tmp_path / "packages"
    monkeypatch.syspath_prepend(str(folder))

    def package(name: str, kinds: Mapping[str, str], modules: Mapping[str, str]) -> None:
        put_package(folder, name, kinds, modules)
        registry.clear()

    registry.clear()
    yield package
    registry.clear()


def test_a_kind_of_another_package_is_found_by_every_name(put: Put) -> None:
    put("kinds-of-one", {"one-kind": "kind_a:ONE"}, {"kind_a.py": module("one-kind", "The One", ("first",))})
    assert registry.find("one-kind") is registry.find("THE ONE") is registry.find("first")
    assert registry.every()["one-kind"].title == "The One" and registry.unusable() == {}


@pytest.mark.parametrize(("value", "text", "why"), [
    ("kind_b:ONE", "import library_that_is_absent\n", "ModuleNotFoundError"),
    ("kind_c:ONE", "raise SystemError('broken')\n", "SystemError: broken"),
    ("kind_d:ABSENT", "", "AttributeError"),
    ("kind_e:ONE", "ONE = 'text'\n", "'odd'"), ("kind_f:ONE", module("other"), "'odd'"),
    ("kind_g:ONE", module("odd", aliases=("minio",)), "'minio' already means the kind 's3'"),
    ("kind_h:ONE", module("odd", "Amazon S3"), "'amazon-s3' already means the kind 's3'"),
])
def test_a_broken_kind_is_refused_and_harms_no_other(put: Put, value: str, text: str, why: str) -> None:
    put("kinds-of-odd", {"odd": value}, {f"{value.partition(':')[0]}.py": text})
    put("kinds-of-one", {"one": "kind_i:ONE"}, {"kind_i.py": module("one")})
    with pytest.raises(KindUnusable) as caught:
        registry.find("odd")
    assert why in str(caught.value) and "kinds-of-odd" in str(caught.value)
    [(name, reason)] = registry.unusable().items()
    assert name == "odd" and str(caught.value) == f"{reason}; {registry.CURE}"
    assert registry.find("one").name == "one" and registry.find("minio").name == "s3"


def test_two_packages_with_one_kind_are_both_refused(put: Put) -> None:
    for package in ("kinds-x", "kinds-y"):
        put(package, {"twin": "kind_j:ONE"}, {"kind_j.py": module("twin")})
    with pytest.raises(KindUnusable, match="kinds-x and kinds-y"):
        registry.find("twin")
    assert "twin" not in registry.every()


def test_a_package_cannot_replace_a_built_in_kind(put: Put) -> None:
    ours = registry.find("s3")
    put("kinds-of-s3", {"s3": "kind_k:ONE"}, {"kind_k.py": module("s3", "My S3")})
    assert registry.find("s3").family is ours.family is registry.every()["s3"].family
    assert "'s3'" in registry.unusable()["s3"]


def test_an_installation_without_kinds_reports_how_to_repair_it(put: Put) -> None:
    put("dlicmd", {}, {})
    with pytest.raises(DataError, match="install"):
        registry.find("s3")


def test_only_the_module_of_the_named_kind_is_imported() -> None:
    probe = ("import sys, local_backend.api.app, local_backend.runtime.supervisor\n"
             "def kinds(): return [name for name in sys.modules if name.startswith('local_backend.data.kinds.')]\n"
             "assert kinds() == [], kinds()\n"
             "from local_backend.data import registry\n"
             "registry.find('http')\n"
             "assert kinds() == ['local_backend.data.kinds.http'], kinds()\n")
    subprocess.run([sys.executable, "-c", probe], check=True, timeout=90)


def test_built_in_kinds_are_reached_only_through_entry_points() -> None:
    package = ROOT / "local_backend" / "data" / "kinds"
    for path in {*(ROOT / "local_backend").rglob("*.py"), *(ROOT / "dlicmd").rglob("*.py")} - {*package.glob("*.py")}:
        assert "local_backend.data.kinds" not in path.read_text(encoding="utf-8"), path


def test_every_built_in_kind_has_an_entry_point() -> None:
    defined = {kind.name for path in (ROOT / "local_backend" / "data" / "kinds").glob("*.py")
               for kind in vars(importlib.import_module(f"local_backend.data.kinds.{path.stem}")).values()
               if isinstance(kind, Kind)}
    assert defined == {name for name, point in registry._built_in().items() if point.load().name == name}


def test_doctor_names_a_broken_kind(put: Put) -> None:
    [fine] = doctor._kinds(None)  # type: ignore[arg-type]
    assert fine.level == doctor.OK
    put("kinds-of-odd", {"odd": "kind_l:ONE"}, {"kind_l.py": "1 / 0\n"})
    [found] = doctor._kinds(None)  # type: ignore[arg-type]
    assert found.level == doctor.PROBLEM and "ZeroDivisionError" in found.what


def test_calls_with_a_broken_kind_are_refused_with_its_code(put: Put, start: Callable[..., Live]) -> None:
    put("kinds-of-odd", {"odd": "kind_m:ONE"}, {"kind_m.py": "1 / 0\n"})
    live = start()
    headers = {"Content-Type": "application/json"}
    added = live.call("POST", "/connections", json.dumps({"name": "x", "type": "odd", "values": {}}).encode(), headers)
    source = {"type": "connection", "connection": {"type": "odd"}, "location": {"path": "a"}}
    body = json.dumps({"dataSource": [source]})
    seen = live.call("POST", "/data/preview", body.encode(), headers)
    submitted = live.submit(START, {"main.py": b""}, body)
    for answer in (added, seen, submitted):
        assert answer.error == (400, "data.kind_unusable")
