"""Pages of other sites, forged changes, and texts of programs: nothing gets through to the session of a browser."""

from __future__ import annotations

from urllib.parse import urljoin, urlsplit

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from live_server import Live, quoted
from visitor import FROM_ANOTHER_SITE, Page, Visitor, entered, link, page_routes

from dlicmd.contract.states import PENDING
from local_backend.console import places
from local_backend.console.session_pages import onward

FOREIGN = (
    {"Origin": "http://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"}, {"Origin": "http://localhost:1"},
)
HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(1)>{{7*7}}\'`'


def changing(live: Live) -> list[tuple[str, str]]:
    return [(method, path) for method, path in page_routes(live) if method != "GET"]


@pytest.mark.parametrize("foreign", FOREIGN, ids=str)
def test_a_page_of_another_origin_can_call_no_page(live: Live, visitor: Visitor, foreign: dict[str, str]) -> None:
    token = {"X-CSRF-Token": visitor.csrf}
    for method, path in page_routes(live):
        answer = visitor.call(method, path, headers=foreign | token)
        assert answer.error == (403, "http.origin"), (method, path)
    assert visitor.get(places.HOME).status == 200


def test_another_host_name_is_refused(live: Live, visitor: Visitor) -> None:
    assert visitor.get(places.HOME, Host="evil.example").error == (403, "http.host")


def test_a_link_on_another_site_opens_the_page_of_arrival(live: Live, visitor: Visitor) -> None:
    for method, path in page_routes(live):
        if method == "GET":
            answer = visitor.call("GET", f"{path}?a=1&b=%22", headers=FROM_ANOTHER_SITE)
            page = Page(answer.text)
            assert answer.status == 200 and "set-cookie" not in answer.headers, path
            refresh = next(one["content"] for one in page.all("meta") if one.get("http-equiv") == "refresh")
            assert refresh == f"0;url={path}?a=1&b=%22", path
            assert visitor.live.settings.user not in answer.text, "the page of arrival must know no session"


def test_a_link_on_another_site_uses_up_no_code(live: Live) -> None:
    address, visitor = link(live), Visitor(live)
    assert visitor.call("GET", address, headers=FROM_ANOTHER_SITE).status == 200 and not visitor.session
    assert visitor.get(address).status == 200 and visitor.session


@pytest.mark.parametrize("more", [{"Origin": "http://evil.example"}, {"Sec-Fetch-Dest": "iframe"},
                                  {"Sec-Fetch-Mode": "no-cors"}], ids=str)
def test_only_a_whole_page_arrives_from_another_site(live: Live, visitor: Visitor, more: dict[str, str]) -> None:
    assert visitor.call("GET", places.HOME, headers=FROM_ANOTHER_SITE | more).error == (403, "http.origin")
    assert visitor.call("POST", places.LOGOFF, headers=FROM_ANOTHER_SITE).error == (403, "http.origin")


def test_every_change_needs_the_csrf_token_of_its_session(team: Live) -> None:
    visitor, other = entered(team), entered(team, team.add_user("bob"))
    again = entered(team)  # of the same user
    tried = 0
    for method, path in changing(team):
        if path == places.LOGON:
            continue
        for token in (None, "", "x", visitor.csrf[:-1], visitor.csrf + "0", other.csrf, again.csrf, "ü"):
            in_header = {} if token is None else {"X-CSRF-Token": quoted(token) if token == "ü" else token}
            assert visitor.call(method, path, headers=in_header).error == (403, "console.csrf"), (method, path, token)
            if method == "POST":
                form = {} if token is None else {"csrf": token}
                assert visitor.post(path, form).error == (403, "console.csrf"), (path, token)
            tried += 1
    assert tried >= 8 and visitor.get(places.HOME).status == 200


def test_a_logon_from_another_site_is_refused(live: Live) -> None:
    visitor = Visitor(live)
    for foreign in FOREIGN:
        assert visitor.post(places.LOGON, {"user": "alice", "password": "x"}, foreign).error == (403, "http.origin")


def test_a_change_in_a_page_and_one_with_a_token_have_the_same_rights(live: Live, visitor: Visitor) -> None:
    """The cookie of a page counts for the API, too, but a page of another site cannot send it there."""
    answer = visitor.call("DELETE", "/platform/rest/deeplearning/v1/execs", headers={"Origin": "http://evil.example"})
    assert answer.error == (403, "http.origin")


SEGMENTS = st.sampled_from([
    "console", "..", ".", "%2e%2e", "%2E.", "%2f", "\\", "//", "/", "", "@evil.example", "evil.example", ":80", "?",
    "#", "a", "runs", "\t", "\n", "\x00", "javascript:alert(1)", "http:", "ü", "%5c", ";", "enter", "logon", "static",
    " ",
])


@given(st.one_of(st.text(), st.lists(SEGMENTS).map("".join),
                 st.lists(SEGMENTS).map(lambda found: "/console/" + "/".join(found))))
@example("/console/../auth/v1/logoff")
@example("/console/%2e%2e/auth/v1/logoff")
@example("/console/..;/x")
@example("/consolex")
@example("//evil.example/console")
def test_a_logon_leads_to_no_place_outside_of_the_console(target: str) -> None:
    found = onward(target)
    base = "http://server.example:1/console/logon"
    met = urlsplit(urljoin(base, found))
    assert (met.scheme, met.netloc) == ("http", "server.example:1")
    assert places.is_page(met.path) and found.isprintable() and "\\" not in found
    assert ".." not in met.path.lower().replace("%2e", ".").split("/")


@pytest.mark.parametrize("target", ["https://evil.example/", "//evil.example", "/\\evil.example", "/console/../docs",
                                    "/console/enter?code=x", "/console/logon", "/execs", ""])
def test_the_logon_page_keeps_no_foreign_target(shared: Live, target: str) -> None:
    page = Page(Visitor(shared).get(f"{places.LOGON}?next={quoted(target)}").text)
    assert page.field("next") == places.HOME


def test_texts_of_programs_are_no_html(live: Live, visitor: Visitor) -> None:
    """A name and a message with HTML are shown as they are, on all pages."""
    run = live.submitted(f"--exec-start PyTorch --model-main main.py --appName {quoted_word(HOSTILE)}")
    live.move(run, PENDING, message=HOSTILE)
    shown = 0
    for method, path in page_routes(live, run):
        if method == "GET" and not places.is_open(path) and path != places.LIVE:
            for headers in ({}, {"HX-Request": "true"}):
                answer = visitor.call("GET", path, headers=headers)
                if not answer.headers.get("content-type", "").startswith("text/html"):
                    continue
                elements = Page(answer.text).elements
                assert not [one for one in elements if "onerror" in one[1]], path
                assert not [one for one in elements if one[0] == "script" and "src" not in one[1]], path
                shown += "onerror" in answer.text
    assert shown >= 1, "no page shows the name"


def quoted_word(text: str) -> str:
    """Quote a word of a command line."""
    import shlex

    return shlex.quote(text)
