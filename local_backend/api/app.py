"""Builds the application."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable

from fastapi import APIRouter, FastAPI

from dlicmd import __version__
from local_backend.api import (
    administration,
    algorithms,
    auth,
    conductor,
    conf,
    connections,
    curves,
    definitions,
    description,
    edimodels,
    errors,
    exec_metrics,
    execs,
    experiment_plans,
    files,
    follow,
    hardware,
    health,
    holdings,
    inference_auth,
    inference_deploy,
    inference_forward,
    inference_models,
    labels,
    lines,
    logs,
    model_searches,
    previews,
    repeating,
    resplans,
    results,
    saved_views,
    scheduler,
    searches,
    slots,
    slots_view,
    submitted_code,
    tokens,
    users,
    verifying,
)
from local_backend.api.archives import Archives
from local_backend.api.guard import Guard, host_name
from local_backend.api.pages import Pages
from local_backend.api.showing import Endings
from local_backend.services.services import Services
from local_backend.settings import Settings

#: `conf`, `labels` and `saved_views` come before `execs`, because /execs/frameworks is not an exec; `algorithms` before
#: `searches`.
ROUTERS = (
    auth.router, conf.router, labels.router, saved_views.router, execs.router, slots.router, follow.router, logs.router,
    results.router, files.router, lines.router, scheduler.router, conductor.router, slots_view.router, holdings.router,
    resplans.router, users.router, connections.router, health.router, previews.router, exec_metrics.router,
    curves.router, submitted_code.router, verifying.router, repeating.router, algorithms.router, searches.router,
    model_searches.router, tokens.router, inference_auth.router, inference_models.router, inference_deploy.router,
    inference_forward.router, edimodels.router, administration.router, definitions.router, hardware.router,
    experiment_plans.router,
)


def application() -> FastAPI:
    """Return the application with all routes, without its services."""
    app = FastAPI(
        title="dlicmd local backend",
        version=__version__,
        redirect_slashes=False,  # a redirect would turn a POST into a GET; the guard drops trailing slashes
        docs_url=None,  # its page loads scripts from another host; the documentation contains the same reference
        redoc_url=None,
    )
    _add_routes(app, ROUTERS)
    errors.install(app)
    description.install(app, ROUTERS)
    return app


def create_app(services: Services, pages: Pages | None = None) -> Guard:
    """Return the ASGI application of one server with its pages, behind its guard."""
    app = application()
    if pages is not None:
        _add_routes(app, pages.routers)
    app.state.services = services
    app.state.archives = Archives()
    app.state.endings = Endings()
    app.state.exposition = health.Exposition()
    hosts, addresses = _own_names(services.base.settings)
    return Guard(app, services, hosts, addresses, pages)


def _add_routes(app: FastAPI, routers: Iterable[APIRouter]) -> None:
    """Add the routes of routers without a prefix. `include_router` would derive each of them again for the application,
    and would look at each router in each call."""
    for router in routers:
        app.router.routes.extend(router.routes)


def _own_names(settings: Settings) -> tuple[frozenset[str], bool]:
    """Return the host names that the server answers to besides the loopback names, and whether it answers to any
    literal address."""
    names = set(settings.allowed_hosts)
    if settings.embedded:
        return _host_names(names), False
    names.add(f"[{settings.host}]" if ":" in settings.host else settings.host)
    everywhere = _is_unspecified(settings.host)
    if everywhere:
        names |= {socket.gethostname(), socket.getfqdn()}
    return _host_names(names), everywhere


def _host_names(names: set[str]) -> frozenset[str]:
    return frozenset(found for name in names if (found := host_name(name)))


def _is_unspecified(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
