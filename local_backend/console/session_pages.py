"""Log on with a password or a one-time link, and log off."""

from __future__ import annotations

from urllib.parse import unquote

from fastapi import Request
from starlette.datastructures import FormData
from starlette.responses import RedirectResponse, Response

from local_backend.api.depends import TheCaller, TheServices
from local_backend.api.guard import SESSION, address_of, session
from local_backend.console import places
from local_backend.console.rendering import HEADERS, page
from local_backend.console.route import router as pages
from local_backend.console.sessions import attributes, keep
from local_backend.errors import AccessDenied, Busy, Invalid, Unauthorized

router = pages()


def texts(form: FormData, *names: str) -> dict[str, str]:
    """Return fields of a form as texts; empty for a field that is missing or a file."""
    return {name: value if isinstance(value := form.get(name, ""), str) else "" for name in names}


def onward(path: str) -> str:
    """Return a path of the console to go to; the overview for anything else, such as the address of another server."""
    plain, _, _ = path.partition("?")
    parts = [unquote(part) for part in plain.split("/")]
    sound = (places.is_page(plain) and path.isprintable() and "\\" not in path and "//" not in plain
             and not any(part in (".", "..") or "/" in part or "\\" in part for part in parts))
    return path if sound and not places.is_open(plain) else places.HOME


@router.get(places.ROOT)
async def root() -> Response:
    """Lead a browser that has the address of the server alone to the overview."""
    return RedirectResponse(places.HOME, 303, HEADERS)


@router.get(places.LOGON)
async def logon_page(request: Request, next: str = places.HOME) -> Response:
    """Ask for user and password."""
    return page(request, "logon.html", next=onward(next), user="", problem="")


@router.post(places.LOGON)
async def logon(request: Request, services: TheServices) -> Response:
    """Log on with user and password. The guard has checked the origin: another site cannot log a browser on."""
    values = texts(await request.form(), "user", "password", "next")
    try:
        made = await services.logons.logon(values["user"], values["password"], address_of(request.scope))
    except (Unauthorized, Busy) as problem:
        status = 429 if isinstance(problem, Busy) else 401
        return page(request, "logon.html", status, next=onward(values["next"]), user=values["user"],
                    problem=str(problem))
    answer = RedirectResponse(onward(values["next"]), 303, HEADERS)
    keep(request, answer, made.token)
    return answer


@router.get(places.ENTER)
def enter(request: Request, services: TheServices, code: str = "", next: str = places.HOME) -> Response:
    """Log on with the code of a one-time link. The page then continues by itself: after a redirect, a browser that
    comes from another site would not send the new cookie. A link never changes the user of a session: a link of another
    user could make people work under the name of that user."""
    try:
        made = services.links.take(code)
    except Invalid as problem:
        return page(request, "logon.html", 401, next=onward(next), user="", problem=str(problem))
    for token in session(request.headers):
        present = services.logons.of_token(token)
        if present is not None and present.name != made.caller.name:
            services.logons.logoff(made.caller, [made.token])
            sentence = f"You are logged on as {present.name}, and the link is for {made.caller.name}; log off first"
            raise AccessDenied("auth.link_of_another_user", sentence)
    answer = page(request, "onward.html", next=onward(next))
    keep(request, answer, made.token)
    return answer


@router.post(places.LOGOFF)
def logoff(request: Request, services: TheServices, caller: TheCaller) -> Response:
    """End the session."""
    services.logons.logoff(caller, session(request.headers))
    answer = RedirectResponse(places.LOGON, 303, HEADERS)
    answer.delete_cookie(SESSION, **attributes(request))
    return answer
