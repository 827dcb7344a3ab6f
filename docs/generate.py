"""Write the parts of the documentation that come from tables in the code: `python docs/generate.py`.

A test compares the files with the output of this program, so they cannot differ.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]

from generate_async import async_client  # noqa: E402

from dlicmd.contract import dlim_commands as dlim  # noqa: E402
from dlicmd.contract import error_codes as error_code_tables  # noqa: E402
from dlicmd.contract import wire  # noqa: E402
from dlicmd.contract.data_sources import SCHEMA  # noqa: E402
from dlicmd.contract.exits import MEANING  # noqa: E402
from dlicmd.contract.options import Local, Option, Section, help_sections  # noqa: E402
from dlicmd.contract.verbs import VERBS  # noqa: E402
from dlicmd.sdk import errors  # noqa: E402
from dlicmd.sdk.objects import RECORDS  # noqa: E402
from dlicmd.sdk.records import Key  # noqa: E402
from local_backend.api.app import application  # noqa: E402
from local_backend.data import registry  # noqa: E402
from local_backend.data.kind import FileFamily, Mounted  # noqa: E402
from local_backend.settings import TABLE  # noqa: E402

_DELIVERED = {FileFamily: "files", Mounted: "a mount"}


def exit_codes() -> str:
    """Return the table of exit codes for docs/pipelines.md."""
    rows = [f"| {int(code)} | {text} |" for code, text in MEANING.items()]
    return "\n".join(["| code | meaning |", "|---|---|", *rows])


def options() -> str:
    """Return docs/options.md, with every command and option."""
    lines = [
        "# Commands and options",
        "",
        "This page describes the verbs, commands and options of `dlicmd`. `dlicmd VERB --help` describes one verb:",
        "",
        "<!-- run -->",
        "```sh",
        "dlicmd run --help",
        "```",
        "",
        "- The help does not list options that are marked *hidden*.",
        "- Options must match exactly. With `--exec-start` and `--demo`, `dlicmd` passes unknown words, and all words",
        "  after `--`, to your program. With verbs and other commands, an unknown word is an error.",
        "- `last` stands for the id of your newest job.",
        "- `dlicmd` and this page use the same table. To change the page, run `python docs/generate.py`.",
    ]
    lines += ["", "## Verbs", "", "| verb | meaning | long option |", "|---|---|---|"]
    for verb in VERBS:
        usage = f"{verb.name} {verb.operands}".strip().replace("|", "\\|")
        lines.append(f"| `{usage}` | {verb.help} | `{verb.command}` |")
    lines += ["", "Options that only a verb has:", "", "| verb | option | meaning |", "|---|---|---|"]
    lines += [f"| `{verb.name}` | {_spelling(option)} | {option.help} |" for verb in VERBS for option in verb.own]
    for group, members in help_sections(hidden=True).items():
        lines += ["", f"## {group.value}", ""]
        submission = group in (Section.SUBMIT, Section.RESOURCES, Section.SCHEDULING)
        lines += ["| option | meaning |" + (" on the local backend |" if submission else "")]
        lines += ["|---|---|" + ("---|" if submission else "")]
        for option in members:
            text = option.help + (" *(hidden)*" if option.hidden else "")
            row = f"| {_spelling(option)} | {text} |"
            lines.append(row + (f" {option.local.value if option.local is not Local.CLIENT else ''} |"
                                if submission else ""))
    return "\n".join(lines) + "\n"


def _spelling(option: Option) -> str:
    """Return the names of an option and its value as the cell of a table."""
    names = ", ".join(f"`{name}`" for name in (option.name, *option.aliases))
    value = "\\|".join(option.choices) or option.metavar
    return f"{names} {value}".rstrip()


def dlim_commands() -> str:
    """Return the table of the commands of dlim, for docs/dlim.md."""
    rows = []
    for one in dlim.COMMANDS:
        usage = f"{one.name} {one.operands}".strip().replace("|", "\\|")
        taken = "; ".join(f"{_spelling(option)}: {option.help}" for option in one.options)
        rows.append(f"| `{usage}`{' *' if one.recorded else ''} | {one.help} | {taken} |")
    return "\n".join(["| command | effect | options |", "|---|---|---|", *rows])


def dlim_common() -> str:
    """Return the table of the options of every command of dlim, for docs/dlim.md."""
    rows = [f"| {_spelling(option)} | {option.help} |" for option in dlim.COMMON if not option.hidden]
    return "\n".join(["| option | meaning |", "|---|---|", *rows])


def settings() -> str:
    """Return the table of settings for docs/operations.md."""
    rows = []
    for one in TABLE:
        key = f"`{one.key}`" if one.in_file else ""
        rows.append(f"| `{one.variable}` | {key} | {one.meaning} | {one.default} |")
    return "\n".join(["| variable | in the file | meaning | default |", "|---|---|---|---|", *rows])


def error_tree() -> str:
    """Return the tree of errors from the docstring of the client's module."""
    drawn = (errors.__doc__ or "").split("\n\n")[1]
    return f"```\n{drawn}\n```"


def client_objects() -> str:
    """Return the table of the client's objects and their attributes."""
    rows = []
    for kind in RECORDS:
        keys = [f"`{name}`" for name, one in vars(kind).items() if isinstance(one, Key | property)]
        said = " ".join((kind.__doc__ or "").split())
        rows.append(f"| `{kind.__name__}` | {said} | {', '.join(keys)} |")
    return "\n".join(["| class | meaning | attributes |", "|---|---|---|", *rows])


def error_codes(page: str) -> str:
    """Return the table of all codes for docs/troubleshooting.md. `page` has what to do for each code."""
    actions = dict(re.findall(r"^\| `([a-z_.]+)` \| .* \| (.*) \|$", page, re.MULTILINE))
    tables = error_code_tables
    meanings = tables.CLIENT | tables.SERVER | tables.INFERENCE | tables.START | tables.BACKUP
    rows = [f"| `{code}` | {meanings[code]} | {actions.get(code, '')} |" for code in sorted(meanings)]
    return "\n".join(["| code | cause | what to do |", "|---|---|---|", *rows])


def data_kinds() -> str:
    """Return docs/data-kinds.md, with every kind of connection."""
    lines = [
        "# Kinds of connections",
        "",
        "This page describes every kind of [connection](connections.md) and its values. These commands list the kinds,",
        "and the values of a kind:",
        "",
        "```sh",
        "local-backend connection kinds",
        "local-backend connection kinds s3",
        "```",
        "",
        "- In the name of a kind, case and the maker (IBM, Amazon, Apache, Google, Microsoft) do not matter. Spaces",
        "  and underscores count as `-`.",
        "- If the extra of a kind is not installed on the server, the error contains the command to install it:",
        "  `pip install 'dlicmd[s3]'`.",
        "- The server refuses the kinds `cognos-analytics` and `data-engine`, which have no values. The error names an",
        "  alternative.",
        "- Other packages can add kinds: see [Write a data kind](write-a-data-kind.md).",
        "- The texts come from the modules in `local_backend/data/kinds/`. To change the page, run",
        "  `python docs/generate.py`.",
        "",
        "| kind | system | delivered as | extra | libraries | tested against |",
        "|---|---|---|---|---|---|",
    ]
    for kind in registry.every().values():
        what = next((word for family, word in _DELIVERED.items() if issubclass(kind.family, family)), "tables")
        names = ", ".join(f"`{name}`" for name in (kind.name, *kind.aliases))
        lines.append(f"| {names} | {kind.title} | {what} | {f'`{kind.extra}`' if kind.extra else ''} | "
                     f"{', '.join(kind.modules)} | {kind.tested or 'not tested against a real server'} |")
    lines += ["", "## Values", "", "Other names of a value are in parentheses. The server never shows *secret* values."]
    for kind in registry.every().values():
        lines += ["", f"### {kind.name}", "", "| value | meaning |", "|---|---|"]
        for one in kind.fields:
            other = f" ({', '.join(f'`{alias}`' for alias in one.aliases)})" if one.aliases else ""
            marks = "".join(f" *({word})*" for word, on in (("required", one.required), ("secret", one.secret)) if on)
            lines.append(f"| `{one.name}`{other} | {one.help}{marks} |")
    return "\n".join(lines) + "\n"


def rest_reference() -> str:
    """Return docs/rest-reference.md, with every call and every object of the REST API."""
    document = application().openapi()
    common = document["components"]["responses"]
    lines = [
        "# REST reference",
        "",
        "This page describes every call of the server: its parameters, its body, its answers and its errors. A server",
        "returns the same description as OpenAPI:",
        "",
        "```sh",
        "curl -sS --fail --cacert ca.pem -u USER:PASSWORD https://HOST:PORT/openapi.json",
        "```",
        "",
        f"- `…` stands for `{wire.BASE}`.",
        "- A call needs a token, as `Authorization: Bearer TOKEN` or `X-Auth-Token: TOKEN`. HTTP Basic and the cookie",
        "  of a logon are also possible.",
        "- *contract* marks a call of WMLA's REST contract. The other calls are",
        "  [extensions of the local backend](rest-extensions.md).",
        f"- An error is text, `Error 400: <sentence>.`, with its code in the header `{wire.ERROR_CODE}`. A",
        "  client that accepts `application/json` but no text gets an [ErrorObject](#errorobject). With",
        "  `Accept: application/problem+json` it is a [ProblemObject](#problemobject).",
        "- A call below `/dlim/v1` has its errors as a [DlimError](#dlimerror), whatever the client accepts.",
        "- The page comes from the routes in `local_backend/api/`. To change it, run `python docs/generate.py`.",
        "",
        "Every call may have these errors. [Error codes](troubleshooting.md#codes) has the meaning of each code.",
        "",
        "| status | codes | meaning |",
        "|---|---|---|",
    ]
    lines += [f"| {status} | {_codes(answer)} | {_meaning(answer)} |" for status, answer in common.items()]
    tags: dict[str, list[str]] = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            tags.setdefault(operation["tags"][0], []).extend(_call(method, path, operation, common))
    for tag, calls in tags.items():
        lines += ["", f"## Calls: {tag}", *calls]
    lines += ["", "## Objects", "", "Keys that are not marked *always* are absent if they have no value."]
    for name, schema in document["components"]["schemas"].items():
        lines += _object(name, schema)
    return re.sub("\n{3,}", "\n\n", "\n".join(lines)) + "\n"


def _call(method: str, path: str, operation: dict[str, Any], common: dict[str, Any]) -> Iterator[str]:
    """Yield the lines about one call."""
    extension = operation.get("x-extension")
    part = {None: "*contract*", "": "extension"}.get(extension, f"extension `{extension}`")
    yield from ["", f"### {method.upper()} {path.replace(wire.BASE, '…')}", "", operation["description"], "",
                f"{part}; callers: {operation['x-callers']}", ""]
    if "parameters" in operation:
        yield from ["| parameter | in | type | meaning |", "|---|---|---|---|"]
        for one in operation["parameters"]:
            yield f"| `{one['name']}` | {one['in']} | {_type(one['schema'])} | {one.get('description', '')} |"
        yield ""
    yield from ["| body or status | content or codes |", "|---|---|"]
    for media, content in operation.get("requestBody", {"content": {}})["content"].items():
        yield f"| body | {_type(content['schema'])} (`{media}`) |"
    for status, answer in operation["responses"].items():
        if "$ref" in answer:
            continue
        if status < "400":
            shown = ", ".join(f"{_type(content['schema'])} (`{media}`)" for media, content in
                              answer.get("content", {}).items())
            yield f"| {status} | {shown or answer['description']} |"
        else:
            own = set(_enum(answer)) - set(_enum(common.get(status, {})))
            yield f"| {status} | {', '.join(f'`{code}`' for code in sorted(own))} |"


def _object(name: str, schema: dict[str, Any]) -> Iterator[str]:
    """Yield the lines about one object."""
    yield from ["", f"### {name}", "", " ".join(schema.get("description", "").split()), ""]
    yield from ["| key | type | meaning |", "|---|---|---|"]
    for key, value in schema["properties"].items():
        always = " *always*" if key in schema.get("required", ()) else ""
        yield f"| `{key}`{always} | {_type(value)} | {value.get('description', '')} |"


def _enum(answer: dict[str, Any]) -> list[str]:
    found: list[str] = answer.get("headers", {}).get(wire.ERROR_CODE, {}).get("schema", {}).get("enum", [])
    return found


def _codes(answer: dict[str, Any]) -> str:
    return ", ".join(f"`{code}`" for code in _enum(answer))


def _meaning(answer: dict[str, Any]) -> str:
    return str(answer["description"]).partition(": `")[0]


def _type(schema: dict[str, Any]) -> str:
    """Return the type of a value in words, with a link to its object."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(map(_type, schema["anyOf"])))
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]) if value)
    if schema.get("type") == "array":
        return f"list of {_type(schema['items'])}"
    return {"date-time": "time", "binary": "file"}.get(schema.get("format", ""), str(schema.get("type", "any")))


def fill(text: str, name: str, content: str) -> str:
    """Return `text` with the part between the two markers of `name` replaced by `content`."""
    pattern = rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)"
    return re.sub(pattern, lambda found: found[1] + content + "\n" + found[2], text, flags=re.DOTALL)


def _filled(page: Path, parts: dict[str, str]) -> str:
    """Return a page with several such parts replaced."""
    text = page.read_text(encoding="utf-8")
    for name, content in parts.items():
        text = fill(text, name, content)
    return text


def documents() -> dict[Path, str]:
    """Return every generated file with its content."""
    pipelines, operations, client = (ROOT / "docs" / f"{name}.md" for name in ("pipelines", "operations", "client"))
    troubles, of_dlim = ROOT / "docs" / "troubleshooting.md", ROOT / "docs" / "dlim.md"
    known = troubles.read_text(encoding="utf-8")
    return {
        operations: fill(operations.read_text(encoding="utf-8"), "settings", settings()),
        client: _filled(client, {"errors": error_tree(), "objects": client_objects()}),
        of_dlim: _filled(of_dlim, {"commands": dlim_commands(), "common": dlim_common()}),
        troubles: fill(known, "codes", error_codes(known)),
        pipelines: fill(pipelines.read_text(encoding="utf-8"), "exit codes", exit_codes()),
        ROOT / "docs" / "options.md": options(),
        ROOT / "docs" / "data-kinds.md": data_kinds(),
        ROOT / "docs" / "rest-reference.md": rest_reference(),
        ROOT / "dlicmd" / "sdk" / "async_client.py": async_client(),
        ROOT / "docs" / "data-source.schema.json": json.dumps(SCHEMA, indent=2) + "\n",
    }


if __name__ == "__main__":
    for path, content in documents().items():
        path.write_text(content, encoding="utf-8")
