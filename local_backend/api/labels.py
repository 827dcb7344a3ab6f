"""Labels of execs: notes, tags and favorites."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from dlicmd.contract import wire
from local_backend.api.as_json import JsonAnswer
from local_backend.api.depends import TheCaller, TheServices
from local_backend.api.description import OWN_EXECS, about
from local_backend.api.models.labels import LabelObject, NewLabels, UsedTag
from local_backend.api.route import Route
from local_backend.services.labels import LabelChange

router = APIRouter(tags=["execs"], route_class=Route)


@router.get(wire.LABELS)
@about(OWN_EXECS, extension=wire.EXT_LABELS)
def list_tags(
    services: TheServices, caller: TheCaller, everyone: Annotated[bool, Query(alias=wire.ALL)] = False
) -> JsonAnswer[list[UsedTag]]:
    """List the 200 most frequent tags of the caller's execs, the most frequent first. Administrators get those of the
    execs of all users with `all`."""
    found: list[UsedTag] = [{"tag": tag, "count": count}
                            for tag, count in services.labels.tags(caller, everyone).items()]
    return JsonAnswer(found)


@router.post(wire.LABELS)
@about(OWN_EXECS, extension=wire.EXT_LABELS,
       errors={400: "body.json body.value exec.not_found labels.ids labels.note labels.tag"})
def change_labels(services: TheServices, caller: TheCaller, body: NewLabels) -> JsonAnswer[list[LabelObject]]:
    """Change the labels of all these execs, or of none, and return their labels. `remove` acts before `add`. Notes and
    tags belong to the exec, and favorites to the caller."""
    change = LabelChange(body.add, body.remove, body.note, body.favorite)
    found = services.labels.change(caller, body.ids, change)
    shown: list[LabelObject] = [
        {"id": name, "tags": list(one.tags), "note": one.note, "favorite": one.favorite} for name, one in found.items()]
    return JsonAnswer(shown)
