"""Changes of models that pages make, and trials of models."""

from __future__ import annotations

import base64
import json
from functools import partial
from typing import Any

from fastapi import Request
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData, UploadFile
from starlette.responses import Response

from local_backend.api.depends import TheCaller, TheServices
from local_backend.api.inference_forward import TrialAnswer, tried
from local_backend.console import places
from local_backend.console.changes import done, field
from local_backend.console.rendering import page
from local_backend.console.route import router as pages
from local_backend.console.service_profile import changes_of, profile_fields
from local_backend.console.services import ONE, TABS, about, service_path
from local_backend.errors import Conflict, Invalid
from local_backend.services.access import Caller
from local_backend.services.services import Services

router = pages()

#: Media types that a trial may send as text, and of answers that are shown as pictures.
_TEXTS = ("application/json", "text/plain")
_PICTURES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})


@router.post(ONE + "/start")
def start(request: Request, services: TheServices, caller: TheCaller, m: str) -> Response:
    """Start a model."""
    services.models.start(caller, m)
    return done(request, service_path(m))


@router.post(ONE + "/stop")
def stop(request: Request, services: TheServices, caller: TheCaller, m: str) -> Response:
    """Stop a model."""
    services.models.stop(caller, m)
    return done(request, service_path(m))


@router.post(ONE + "/undeploy")
def undeploy(request: Request, services: TheServices, caller: TheCaller, m: str) -> Response:
    """Remove a stopped model."""
    services.models.undeploy(caller, m)
    return done(request, places.SERVICES)


@router.post(ONE + "/rollback")
def rollback(request: Request, services: TheServices, caller: TheCaller, m: str) -> Response:
    """Give all requests to the revision before."""
    services.models.rollback(caller, m)
    return done(request, service_path(m))


@router.post(ONE + "/promote")
async def promote(request: Request, services: TheServices, caller: TheCaller, m: str) -> Response:
    """Give all requests to a revision."""
    number = whole(field(await request.form(), "revision"), "revision")
    await run_in_threadpool(services.models.promote, caller, m, number)
    return done(request, service_path(m))


@router.post(ONE + "/traffic")
async def traffic(request: Request, services: TheServices, caller: TheCaller, m: str) -> Response:
    """Split the requests among the revisions."""
    form = await request.form()
    weights: dict[str, Any] = {}
    for name in form:
        if name.startswith("weight-"):
            text = field(form, name)
            weights[name.removeprefix("weight-")] = int(text) if text.isdecimal() and len(text) < 10 else text
    await run_in_threadpool(services.models.set_traffic, caller, m, weights)
    return done(request, service_path(m))


@router.post(ONE + "/share")
async def share(request: Request, services: TheServices, caller: TheCaller, m: str) -> Response:
    """Share a model with users, or with all."""
    form = await request.form()
    users = [one.strip() for one in field(form, "users").split(",") if one.strip()]
    await run_in_threadpool(services.models.share, caller, m, field(form, "everyone") == "yes" or users)
    return done(request, service_path(m))


@router.post(ONE + "/readme")
async def readme(request: Request, services: TheServices, caller: TheCaller, m: str) -> Response:
    """Replace the README of a model."""
    text = (await request.form()).get("readme")
    await run_in_threadpool(services.models.change_readme, caller, m, text)
    return done(request, f"{service_path(m)}?tab=readme")


@router.post(ONE + "/profile")
async def profile(request: Request, services: TheServices, caller: TheCaller, m: str) -> Response:
    """Change the profile of a model. A refused value stays in the form, with the reason beside it."""
    form = await request.form()
    before = await run_in_threadpool(services.models.profile, caller, m)
    try:
        given = _whole_profile(form) if "profile" in form else changes_of(form, before)
        await run_in_threadpool(services.models.change_profile, caller, m, given)
    except (Invalid, Conflict) as problem:
        return await run_in_threadpool(partial(_refused, request, services, caller, m, form, problem))
    return done(request, f"{service_path(m)}?tab=profile")


def _whole_profile(form: FormData) -> Any:
    try:
        return json.loads(field(form, "profile"))
    except ValueError as problem:
        raise Invalid("model.profile", f"the profile is not valid JSON: {problem}") from None


def _refused(  # noqa: PLR0917
    request: Request, services: Services, caller: Caller, name: str, form: FormData, problem: Invalid | Conflict
) -> Response:
    """Return the page with a refused profile."""
    view = services.models.view(caller, name)
    stored = json.loads(view.row.profile)
    is_whole = "profile" in form
    values = about(request, services, caller, view) | {
        "fields": profile_fields(stored, None if is_whole else form, str(problem)),
        "profile": field(form, "profile") if is_whole else json.dumps(stored, indent=2)}
    return page(request, "service.html", 409 if isinstance(problem, Conflict) else 400, tab="profile", tabs=TABS,
                problem=str(problem), is_whole=is_whole, **values)


@router.post(ONE + "/try")
async def trial(request: Request, services: TheServices, caller: TheCaller, m: str) -> Response:
    """Send a request to a model as the user, and show its answer."""
    body, media = await _trial_body(await request.form())
    answer = await tried(services, caller, m, body, media)
    return page(request, "service_answer.html", answer=answer, **_shown(answer))


async def _trial_body(form: FormData) -> tuple[bytes, str]:
    """Return the body of a trial and its media type: the file, or else the text. Raises Invalid (`body.json`,
    `body.value`)."""
    file = form.get("file")
    if isinstance(file, UploadFile) and file.filename:
        kind = file.content_type or "application/octet-stream"
        return await file.read(), kind if kind.isascii() and kind.isprintable() else "application/octet-stream"
    text, media = form.get("text"), field(form, "type")
    if not isinstance(text, str) or media not in _TEXTS:
        raise Invalid("body.value", f"type must be one of {', '.join(_TEXTS)}, and text must be a text")
    if media == _TEXTS[0]:
        try:
            json.loads(text)
        except (ValueError, RecursionError) as problem:
            raise Invalid("body.json", f"The input is not valid JSON: {problem}. To send a text, choose text") from None
    return text.encode(), media


def _shown(answer: TrialAnswer) -> dict[str, Any]:
    """Return an answer as the page shows it: a refusal, a picture, or a text; nothing for other bytes."""
    media = answer.media.partition(";")[0].strip().lower()
    if refusal := _refusal(answer):
        return {"picture": "", "text": "", "refusal": refusal}
    if media in _PICTURES and not answer.is_cut:
        return {"picture": f"data:{media};base64,{base64.b64encode(answer.body).decode()}", "text": "", "refusal": None}
    try:
        text = answer.body.decode("utf-8", "ignore" if answer.is_cut else "strict")
    except UnicodeDecodeError:
        return {"picture": "", "text": "", "refusal": None}
    if media.endswith("json") and not answer.is_cut:
        try:
            text = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
        except (ValueError, RecursionError):
            pass
    return {"picture": "", "text": text, "refusal": None}


def _refusal(answer: TrialAnswer) -> tuple[str, str] | None:
    """Return sentence and code of an answer of the gateway that the kernel did not answer; None for an answer of the
    kernel."""
    if answer.status < 400:
        return None
    try:
        error = json.loads(answer.body)["error"]
        return str(error["message"]), str(error["code"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def whole(text: str, name: str) -> int:
    """Return a whole number of a form. Raises Invalid (`query.number`)."""
    if not text.isdecimal() or not 0 < len(text) < 10:
        raise Invalid("query.number", f"{name} must be a whole number, but it is {text[:40]!r}")
    return int(text)
