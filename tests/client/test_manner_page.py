"""The page for users of WMLA names every command and option of the original client."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from manner_rules import COMMANDS, OPTIONS

from dlicmd.contract.options import BY_NAME, OWN_OPTIONS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "coming-from-wmla.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("title", "names"), [("Commands", COMMANDS | {"-h"}), ("Options", OPTIONS)])
def test_each_name_has_one_row_with_a_verdict(title: str, names: frozenset[str]) -> None:
    part = PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`-.*?) \| (.*?) \| .*\|$", part, re.MULTILINE)
    assert {verdict for _, verdict in rows} <= {"✓", "~", "–"}
    listed = [name for first, _ in rows for name in re.findall(r"`(-[^`]*)`", first)]
    assert sorted(listed) == sorted(names)


def test_the_client_knows_all_of_them() -> None:
    own = {option.name for options in OWN_OPTIONS.values() for option in options}
    assert BY_NAME.keys() | own | {"-h"} >= COMMANDS | OPTIONS


@pytest.mark.parametrize("other", ["README.md", "docs/site/mkdocs.yml"])
def test_other_pages_link_to_it(other: str) -> None:
    assert "docs/coming-from-wmla.md" in (ROOT / other).read_text(encoding="utf-8")
