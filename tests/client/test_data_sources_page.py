"""docs/data-sources.md: the schema accepts its sources, its commands parse, and it names every key."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from dlicmd.cli.commands.submissions import data_sources
from dlicmd.contract.argv import parse_argv
from dlicmd.contract.data_sources import ACCESS, SCHEMA, TARGET, TYPES, beyond_schema
from dlicmd.sdk.data import one_or_more

PAGE = (Path(__file__).parent.parent.parent / "docs" / "data-sources.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_the_page_has_examples() -> None:
    """Without examples, the next test would have no cases, and would be skipped."""
    assert len(blocks("json")) >= 3


@pytest.mark.parametrize("text", blocks("json"))
def test_every_example_is_accepted(text: str) -> None:
    sources = json.loads(text)
    assert beyond_schema(sources) is None and not list(Draft202012Validator(SCHEMA).iter_errors(sources))


def test_every_command_can_be_parsed() -> None:
    lines = [line for block in blocks("sh") for line in block.replace("\\\n", "").splitlines()]
    commands = [shlex.split(line)[1:] for line in lines if line.startswith("dlicmd --")]
    assert len(commands) >= 4
    for words in commands:
        line = parse_argv(words)
        if line.command == "--data-preview" and (line.operand or "").startswith("["):
            assert one_or_more(line.operand or "", "--data-preview")
        elif line.command == "--exec-start":
            assert data_sources(line) or line.text("--cs-datastore-meta")


def test_the_page_names_every_key_and_type() -> None:
    for name in (*SCHEMA["items"]["properties"], *TYPES, ACCESS, TARGET):
        assert f"`{name}`" in PAGE
