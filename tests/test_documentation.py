"""The documentation is consistent: generated parts are current, and links have targets."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from dlicmd.contract import wire
from dlicmd.contract.error_codes import BACKUP, CLIENT, INFERENCE, SERVER, START

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "samples").rglob("*.md")])


def test_generated_parts_are_current() -> None:
    documents = runpy.run_path(str(ROOT / "docs" / "generate.py"))["documents"]()
    for path, content in documents.items():
        assert path.read_text(encoding="utf-8") == content, f"run `python docs/generate.py`: {path.name} is stale"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_have_targets(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    anchors = {re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-")
               for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith("#"):
            assert target[1:] in anchors, f"{page.name}: no heading for {target}"
        elif "://" not in target:
            assert (page.parent / target.partition("#")[0]).exists(), f"{page.name}: {target}"


def test_every_error_code_has_an_action() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    actions = dict(re.findall(r"^\| `([a-z_.]+)` \| .* \| (.*) \|$", page, re.MULTILINE))
    assert set(actions) == {*SERVER, *INFERENCE, *CLIENT, *BACKUP, *START}
    assert not [code for code, action in actions.items() if not action]


def test_each_extension_has_a_row() -> None:
    page = (ROOT / "docs" / "rest-extensions.md").read_text(encoding="utf-8")
    rows = set(re.findall(r"^\| `([a-z-]+)` \|", page.partition("## Searches")[0], re.MULTILINE))
    assert rows == {value for name, value in vars(wire).items() if name.startswith("EXT_")}


def test_each_decision_has_one_topic() -> None:
    topics, _, records = (ROOT / "docs" / "decisions.md").read_text(encoding="utf-8").partition("## Quirks")
    numbers = [int(number) for number in re.findall(r"^## (\d+)\. ", records, re.MULTILINE)]
    listed: list[int] = []
    for first, last in re.findall(r"\[(\d+)\]\(#[^)]*\)(?: to \[(\d+)\])?", topics):
        listed += [number for number in numbers if int(first) <= number <= int(last or first)]
    assert sorted(listed) == numbers


def test_ci_runs_the_test_command_of_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    command = next(line for line in readme.splitlines() if line.startswith("python3 -m venv") and "pytest" in line)
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    for part in command.split(" && "):
        words = part.replace(".venv/bin/pip", ".venv/bin/python -m pip")
        assert words in script, f"{part} is not in .ci/run"
