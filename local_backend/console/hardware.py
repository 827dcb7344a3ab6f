"""Hardware specifications: the list, and a form for new ones."""

from __future__ import annotations

from fastapi import Request
from starlette.responses import Response

from local_backend.api.depends import TheCaller, TheServices
from local_backend.console import places
from local_backend.console.builder_form import shared_of, spec_of
from local_backend.console.changes import TheForm, done, field
from local_backend.console.rendering import page
from local_backend.console.route import router as pages
from local_backend.services.hardware import HardwareDraft, with_slice

router = pages()


@router.get(places.HARDWARE)
def hardware_page(request: Request, services: TheServices, caller: TheCaller) -> Response:
    """Show the hardware specifications."""
    return page(request, "hardware.html", found=services.hardware.all(caller),
                embedded=services.base.settings.embedded)


@router.post(places.HARDWARE)
def save(request: Request, services: TheServices, caller: TheCaller, form: TheForm) -> Response:
    """Save a hardware specification."""
    spec, profile = spec_of(field(form, "gpus"), field(form, "memory")), field(form, "mig")
    services.hardware.save(caller, HardwareDraft(
        field(form, "name"), with_slice(spec, profile) if profile else spec, field(form, "description"),
        shared_of(field(form, "share"), field(form, "users")) if field(form, "share") else None))
    return done(request, places.HARDWARE)


@router.post(places.HARDWARE + "/{owner}/{name}/delete")
def delete(request: Request, services: TheServices, caller: TheCaller, owner: str, name: str) -> Response:
    """Delete a hardware specification."""
    services.hardware.remove(caller, f"{owner}/{name}")
    return done(request, places.HARDWARE)
