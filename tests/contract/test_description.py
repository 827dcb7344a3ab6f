"""/openapi.json describes the server: its responses, the authorization of calls, and the headers that count."""

from __future__ import annotations

from typing import Any

import pytest
from contract_world import World
from described import Described

from dlicmd.contract import error_codes

EXECS = "/platform/rest/deeplearning/v1/execs"
BOTH = "--exec-start%20PyTorch%20--user-cmd%20--%20"


@pytest.fixture(scope="module")
def document(world: World) -> dict[str, Any]:
    found = world.wire.ask("GET", "/openapi.json").json()
    assert isinstance(found, dict)
    return found


def operations(document: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    paths = document["paths"].items()
    return [(path, method, operation) for path, found in paths for method, operation in found.items()]


def test_every_call_lists_its_failures_as_text_with_exact_codes(document: dict[str, Any]) -> None:
    assert len(operations(document)) > 40
    known = Described(document)
    for path, method, operation in operations(document):
        answers = operation["responses"]
        failures = {code: known.resolved(answer) for code, answer in answers.items() if code >= "400"}
        assert {"400", "401", "413", "429", "507"} <= set(failures), (path, method)
        assert all(code.isdecimal() for code in answers), "a range of codes would match any response"
        kinds = {tuple(answer["content"]) for answer in failures.values()}
        # Clients of models read JSON alone.
        other = ("text/plain", "application/json", "application/problem+json")
        assert kinds == {("application/json",) if path.startswith("/dlim/v1/") else other}, (path, method)


def test_every_call_is_described_completely(document: dict[str, Any]) -> None:
    kinds = document["components"]["schemas"]
    for path, method, operation in operations(document):
        about = (path, method)
        assert operation["summary"] and operation["x-callers"], about
        assert all(one["description"] for one in operation.get("parameters", [])), about
        for code, answer in operation["responses"].items():
            for kind, content in answer.get("content", {}).items():
                assert content["schema"], (*about, code, kind)
        for kind, content in operation.get("requestBody", {"content": {}})["content"].items():
            assert content["schema"], (*about, kind)
    for name, schema in kinds.items():
        assert schema.get("properties"), f"{name} has no fields"


def test_every_error_code_is_described(document: dict[str, Any]) -> None:
    known = Described(document)
    described = {
        code for _, _, operation in operations(document)
        for answer in operation["responses"].values()
        for header in [known.resolved(answer).get("headers", {}).get("X-DLI-Error-Code")] if header
        for code in header["schema"].get("enum", [])
    }
    # Volumes have commands and no calls. The calls for searches and the pages of the console are not described.
    elsewhere = {code for code in error_codes.SERVER if code.startswith(("volume.", "search.", "console."))}
    elsewhere |= {"auth.link", "auth.link_of_another_user", "query.compare"}
    of_gateway = {code for code in described if code.startswith("inference.")}
    assert described - elsewhere - of_gateway == set(error_codes.SERVER) - elsewhere


def test_the_described_extensions_are_those_of_the_server(document: dict[str, Any], world: World) -> None:
    named = {operation["x-extension"] for _, _, operation in operations(document) if "x-extension" in operation} - {""}
    told = set(world.wire.ask("GET", "/conf").json()["DLICMD_EXTENSIONS"].split(","))
    # These extend the submission, which is a call of the contract.
    assert named == told - {
        "allow-cpu", "argv", "create-data-path", "idempotency-key", "local-paths", "staged-folder"}


def test_only_open_calls_need_no_token(document: dict[str, Any]) -> None:
    assert set(document["components"]["securitySchemes"]) == {"bearer", "token", "basic", "session"}
    open_ones = {path for path, _, operation in operations(document) if not operation["security"]}
    assert open_ones == {"/auth/v1/logon", "/auth/v1/oidc", "/platform/rest/conductor/v1/auth/logon",
                         "/icp4d-api/v1/authorize", "/v1/authorize", "/ui/tools/dlicmd.py", "/healthz", "/readyz",
                         "/dlim/v1/auth/token", "/dlim/v1/auth/token/inference"}


def test_every_call_has_its_own_operation_id(document: dict[str, Any]) -> None:
    ids = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(set(ids)) == len(ids)
    logons = [document["paths"][path]["post"] for path in ("/icp4d-api/v1/authorize", "/v1/authorize")]
    for operation in logons:
        assert operation["x-callers"] and "requestBody" in operation and "x-extension" not in operation


def test_the_tokens_of_the_platform_are_described(document: dict[str, Any]) -> None:
    operations = document["paths"]["/v1/preauth/validateAuth"]
    assert list(operations) == ["get"] and {"session": []} in operations["get"]["security"]
    logon = document["paths"]["/platform/rest/conductor/v1/auth/logon"]["get"]
    assert "Set-Cookie" in logon["responses"]["200"]["headers"]


def test_a_submission_with_an_idempotency_key_is_answered_as_described(world: World, document: dict[str, Any]) -> None:
    operation = document["paths"][EXECS]["post"]
    assert "Idempotency-Key" in {found["name"] for found in operation["parameters"] if found["in"] == "header"}
    assert "Retry-After" in operation["responses"]["409"]["headers"]
    key = {"Idempotency-Key": '"k"'}
    first, again = (world.wire.ask("POST", f"/execs?args={BOTH}true", key) for _ in range(2))
    assert first.status == 200 and first.json()["id"] == again.json()["id"]
    other = world.wire.ask("POST", f"/execs?args={BOTH}false", key)
    assert other.status == 422 and other.is_plain_error and "422" in operation["responses"]


def test_a_range_of_a_result_is_answered_as_described(world: World, document: dict[str, Any]) -> None:
    operation = document["paths"][EXECS + "/{exec_id}/result"]["get"]
    assert {"Range", "If-Range"} <= {found["name"] for found in operation["parameters"]}
    for text, status in (("bytes=1-", 206), ("bytes=999999-", 416)):
        answer = world.wire.ask("GET", f"/execs/{world.finished}/result", {"Range": text})
        assert answer.status == status and str(status) in operation["responses"]
