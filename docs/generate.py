"""Write the parts of the documentation that come from tables in the code: `python docs/generate.py`.

A test compares what stands in the files with what this makes, so they cannot drift apart.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from dlicmd import errors  # noqa: E402
from dlicmd.contract import error_codes as error_code_tables  # noqa: E402
from dlicmd.contract.data_sources import SCHEMA  # noqa: E402
from dlicmd.contract.exits import MEANING  # noqa: E402
from dlicmd.contract.options import Group, Local, help_sections  # noqa: E402
from local_backend.data import kinds  # noqa: E402
from local_backend.data.kinds.base import FileFamily, Mounted  # noqa: E402
from local_backend.setting_source import TABLE  # noqa: E402

_DELIVERED = {FileFamily: "files", Mounted: "a mount"}


def exit_codes() -> str:
    """The exit code table of the README."""
    rows = [f"| {int(code)} | {text} |" for code, text in MEANING.items()]
    return "\n".join(["| code | meaning |", "|---|---|", *rows])


def options() -> str:
    """docs/options.md: every command and option."""
    lines = [
        "# Commands and options",
        "",
        "Made by `python docs/generate.py` from the option table. Options are matched exactly; whatever is not listed",
        "here, and everything after `--`, goes to your program. *Hidden* ones are not in `--help`. In the place of an",
        "exec's or application's ID, `last` means the newest of yours.",
    ]
    for group, members in help_sections(hidden=True).items():
        lines += ["", f"## {group.value}", ""]
        submission = group in (Group.SUBMIT, Group.RESOURCES, Group.SCHEDULING)
        lines += ["| option | meaning |" + (" on the local backend |" if submission else "")]
        lines += ["|---|---|" + ("---|" if submission else "")]
        for option in members:
            names = ", ".join(f"`{name}`" for name in (option.name, *option.aliases))
            value = "\\|".join(option.choices) or option.metavar
            text = option.help + (" *(hidden)*" if option.hidden else "")
            row = f"| {names}{f' {value}' if value else ''} | {text} |"
            lines.append(row + (f" {option.local.value if option.local is not Local.CLIENT else ''} |"
                                if submission else ""))
    return "\n".join(lines) + "\n"


def settings() -> str:
    """The table of settings in docs/operations.md."""
    rows = []
    for one in TABLE:
        key = f"`{one.key}`" if one.in_file else ""
        rows.append(f"| `{one.variable}` | {key} | {one.what} | {one.default} |")
    return "\n".join(["| variable | in the file | meaning | default |", "|---|---|---|---|", *rows])


def error_tree() -> str:
    """The tree of errors, as the client's module draws it."""
    drawn = (errors.__doc__ or "").split("\n\n")[1]
    return f"```\n{drawn}\n```"


def error_codes() -> str:
    """The codes of the server and of the client."""
    rows = []
    for title, codes in (("local backend", error_code_tables.SERVER), ("client", error_code_tables.CLIENT)):
        rows += ["", f"| code of the {title} | meaning |", "|---|---|"]
        rows += [f"| `{code}` | {meaning} |" for code, meaning in codes.items()]
    return "\n".join(rows[1:])


def data_kinds() -> str:
    """docs/data-kinds.md: every kind of connection."""
    lines = [
        "# Kinds of connections",
        "",
        "Made by `python docs/generate.py` from the registry in `local_backend/data/kinds/`. Case, spaces, underscores",
        "and the maker (IBM, Amazon, Apache, Google, Microsoft) in the name of a kind do not matter. A kind whose",
        "extra is not installed on the server says so: `pip install 'dlicmd[s3]'`.",
        "",
        "| kind | what | as | extra | libraries | tested against |",
        "|---|---|---|---|---|---|",
    ]
    for kind in kinds.every().values():
        what = next((word for family, word in _DELIVERED.items() if issubclass(kind.family, family)), "tables")
        names = ", ".join(f"`{name}`" for name in (kind.name, *kind.aliases))
        lines.append(f"| {names} | {kind.title} | {what} | {f'`{kind.extra}`' if kind.extra else ''} | "
                     f"{', '.join(kind.modules)} | {kind.tested or 'not tested against a real server'} |")
    lines += ["", "## Values", "", "Other spellings are in parentheses; *secret* ones are never shown."]
    for kind in kinds.every().values():
        lines += ["", f"### {kind.name}", "", "| value | what |", "|---|---|"]
        for one in kind.fields:
            other = f" ({', '.join(f'`{alias}`' for alias in one.aliases)})" if one.aliases else ""
            marks = "".join(f" *({word})*" for word, on in (("required", one.required), ("secret", one.secret)) if on)
            lines.append(f"| `{one.name}`{other} | {one.help}{marks} |")
    return "\n".join(lines) + "\n"


def fill(text: str, name: str, content: str) -> str:
    """`text` with what stands between the two markers of `name` replaced."""
    pattern = rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)"
    return re.sub(pattern, lambda found: found[1] + content + "\n" + found[2], text, flags=re.DOTALL)


def documents() -> dict[Path, str]:
    """Every generated file with its content."""
    readme, operations, client = ROOT / "README.md", ROOT / "docs" / "operations.md", ROOT / "docs" / "client.md"
    return {
        operations: fill(operations.read_text(encoding="utf-8"), "settings", settings()),
        client: fill(
            fill(client.read_text(encoding="utf-8"), "errors", error_tree()), "error codes", error_codes()
        ),
        readme: fill(readme.read_text(encoding="utf-8"), "exit codes", exit_codes()),
        ROOT / "docs" / "options.md": options(),
        ROOT / "docs" / "data-kinds.md": data_kinds(),
        ROOT / "docs" / "data-source.schema.json": json.dumps(SCHEMA, indent=2) + "\n",
    }


if __name__ == "__main__":
    for path, content in documents().items():
        path.write_text(content, encoding="utf-8")
