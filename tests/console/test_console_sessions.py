"""Sessions of browsers: one-time links, the logon page, the cookie, and pages without a session."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
import trustme
from live_server import PASSWORD, TOKEN, Live, basic, quoted
from visitor import Page, Visitor, entered, link, page_routes

from dlicmd.contract import wire
from local_backend import password_hash
from local_backend.console import places
from local_backend.services.links import MOST, VALID
from local_backend.store import users


def add_user(live: Live, name: str, password: str) -> None:
    """Add a user with a password."""
    live.database.write(lambda c: users.add(c, name, password_hash.hashed(password), "user"))


def test_a_link_logs_a_browser_on_once(live: Live) -> None:
    address, first, second = link(live), Visitor(live), Visitor(live)
    answer = first.get(address)
    assert answer.status == 200 and "Continue to the console" in answer.text
    assert first.get(places.HOME).status == 200
    again = second.get(address)
    assert again.status == 401 and "already used" in again.text and "set-cookie" not in again.headers
    assert second.get(places.HOME).status == 303


def test_a_link_is_valid_for_a_minute(team: Live, clock: list[float]) -> None:
    late, timely = link(team), link(team)
    clock[0] += VALID - 0.1
    assert Visitor(team).get(timely).status == 200
    clock[0] += 0.2
    assert Visitor(team).get(late).status == 401


@pytest.mark.parametrize("code", ["", "x", "%00", "ü", "x" * 3000])
def test_a_wrong_code_leads_to_the_logon_page(shared: Live, code: str) -> None:
    visitor = Visitor(shared)
    answer = visitor.get(f"{places.ENTER}?code={quoted(code)}")
    assert answer.status == 401 and Page(answer.text).field("next") == places.HOME and not visitor.session


def test_a_link_is_of_its_user(team: Live) -> None:
    bob = team.add_user("bob")
    page = entered(team, bob).get(places.HOME).text
    assert "bob" in page and "administrator" not in page
    assert "alice" in entered(team).get(places.HOME).text


def test_a_link_never_changes_the_user_of_a_session(team: Live) -> None:
    alice, address = entered(team), link(team, team.add_user("bob"))
    answer = alice.get(address)
    assert answer.status == 403 and answer.headers[wire.ERROR_CODE.lower()] == "auth.link_of_another_user"
    assert "set-cookie" not in answer.headers and "alice" in alice.get(places.HOME).text
    assert Visitor(team).get(address).status == 401, "the link is used"
    assert alice.get(link(team)).status == 200, "a link of the same user renews the session"


def test_a_token_for_a_program_gets_no_link(team: Live) -> None:
    bob = team.add_user("bob")
    made = team.call("POST", wire.TOKENS, b'{"name": "nightly", "scope": "submit", "expiresIn": 86400}',
                     {"Content-Type": "application/json"}, token=bob, base="")
    assert made.status in (200, 201), made.text
    token = made.json()["token"]
    assert team.call("POST", wire.LINK, token=token, base="").error == (403, "auth.scope")


def test_unused_links_are_limited_for_each_user(team: Live, clock: list[float]) -> None:
    bob = team.add_user("bob")
    for _ in range(MOST):
        link(team, bob)
    refused = team.call("POST", wire.LINK, token=bob, base="")
    assert refused.error == (429, "auth.too_many_links") and int(refused.headers["retry-after"]) >= 1
    link(team)
    clock[0] += VALID
    link(team, bob)


def test_the_logon_page_takes_user_and_password(team: Live) -> None:
    add_user(team, "bob", "a long password")
    visitor = Visitor(team)
    answer = visitor.post(places.LOGON, {"user": "bob", "password": "a long password", "next": places.DESIGN})
    assert (answer.status, answer.headers["location"]) == (303, places.DESIGN)
    assert "bob" in visitor.get(places.HOME).text
    entries = (team.settings.home / "audit.log").read_text()
    assert '"auth.logon"' in entries and "a long password" not in entries


def test_wrong_passwords_are_slowed_down_as_in_the_api(team: Live) -> None:
    add_user(team, "bob", "a long password")
    visitor = Visitor(team)
    for _ in range(6):
        answer = visitor.post(places.LOGON, {"user": "bob", "password": "wrong"})
        if answer.status == 429:
            break
        assert answer.status == 401 and Page(answer.text).field("user") == "bob"
    refused = visitor.post(places.LOGON, {"user": "bob", "password": "a long password"})
    assert refused.status == 429 and not visitor.session
    # The page and the API count together.
    assert team.call("GET", wire.LOGON, headers=basic("bob", "a long password"), token=None, base="").status == 429


def test_names_and_passwords_that_are_no_texts_are_refused(live: Live) -> None:
    visitor = Visitor(live)
    form = b'--b\r\nContent-Disposition: form-data; name="user"; filename="x"\r\n\r\nbob\r\n--b--\r\n'
    kind = {"Content-Type": "multipart/form-data; boundary=b"}
    assert visitor.call("POST", places.LOGON, form, kind).status == 401
    assert visitor.post(places.LOGON, {}).status == 401
    broken = "\ud800".encode("utf-8", "surrogatepass")
    assert visitor.post(places.LOGON, {"user": "\x00", "password": broken}).status == 401
    assert not visitor.session


def attributes(header: str) -> set[str]:
    return {part.strip().lower() for part in header.split(";")[1:]}


def test_the_cookie_is_hidden_from_scripts_and_from_other_sites(live: Live) -> None:
    said = Visitor(live).get(link(live)).headers["set-cookie"]
    assert attributes(said) == {"httponly", "path=/", "samesite=strict"}


def test_the_cookie_of_a_server_with_tls_needs_tls(start: Callable[..., Live], tmp_path: Path) -> None:
    authority, file = trustme.CA(), tmp_path / "server.pem"
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(str(file))
    live = start(embedded=False, tls_cert=file, tls_key=file)
    context = ssl.create_default_context()
    authority.configure_trust(context)
    add_user(live, "bob", "a long password")
    visitor = Visitor(live, trust=context)
    answer = visitor.post(places.LOGON, {"user": "bob", "password": "a long password"})
    assert answer.status == 303, answer.text
    assert attributes(answer.headers["set-cookie"]) == {"httponly", "path=/", "samesite=strict", "secure"}
    assert visitor.get(places.HOME).headers["strict-transport-security"].startswith("max-age=")


def test_a_browser_that_logs_off_has_no_session(live: Live, visitor: Visitor) -> None:
    kept = visitor.session
    answer = visitor.post(places.LOGOFF, {"csrf": visitor.csrf})
    assert (answer.status, answer.headers["location"]) == (303, places.LOGON)
    assert visitor.session == "" and "max-age=0" in attributes(answer.headers["set-cookie"])
    assert Visitor(live, kept).get(places.HOME).status == 303, "the token must be revoked, not only forgotten"


def test_the_session_of_a_removed_user_ends(team: Live) -> None:
    visitor = entered(team, team.add_user("bob"))
    assert visitor.get(places.HOME).status == 200
    team.database.write(lambda c: users.remove(c, "bob", "alice"))
    assert visitor.get(places.HOME).status == 303


@pytest.mark.parametrize("session", ["", "wrong", TOKEN + "x", "a.b.c"])
def test_every_page_without_a_session_asks_for_a_logon(shared: Live, session: str) -> None:
    visitor = Visitor(shared, session)
    for method, path in [*page_routes(shared), ("GET", f"{places.HOME}/none"), ("DELETE", places.HOME)]:
        if places.is_open(path):
            continue
        shown = visitor.call(method, path)
        assert shown.status == 303, (method, path)
        target = path if method == "GET" else places.HOME
        assert shown.headers["location"] == f"{places.LOGON}?next={target}", (method, path)
        part = visitor.call(method, path, headers={"HX-Request": "true"})
        assert part.status == 401 and part.headers["hx-redirect"].startswith(f"{places.LOGON}?next=")
        assert "www-authenticate" not in part.headers, "a browser would ask for a password in a window of its own"


def test_the_logon_page_needs_no_session(shared: Live) -> None:
    assert Visitor(shared).get(places.LOGON).status == 200
    visitor = Visitor(shared)
    answer = visitor.post(places.LOGON, {"user": "alice", "password": PASSWORD + "x"})
    assert answer.status == 401 and "console.csrf" not in answer.text
