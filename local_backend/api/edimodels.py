"""Models by the paths of WMLA's console: the same calls as below /dlim/v1, with errors as in other console calls."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Request

from dlicmd.contract import dlim, wire
from local_backend.api import inference_deploy, inference_forward, inference_models
from local_backend.api.as_json import JsonAnswer
from local_backend.api.depends import TheCaller, TheServices
from local_backend.api.description import EVERY_USER, about
from local_backend.api.inference_deploy import ADDED, assembled
from local_backend.api.inference_models import object_of, shown
from local_backend.api.models.inference import EdiModel, ModelObject
from local_backend.api.route import Route
from local_backend.services.model_sources import EdiWords

router = APIRouter(tags=["inference"], route_class=Route)

_ONE = wire.EDI_MODELS + "/{m}"


@router.post(wire.EDI_MODELS + "/new", status_code=201)
@about(EVERY_USER, body=EdiModel, errors={
    **ADDED, 400: f"{ADDED[400]} data.invalid", 404: "runtime.not_found", 409: "model.exists",
    500: "volume.unreadable"})
async def new(request: Request, services: TheServices, caller: TheCaller) -> JsonAnswer[ModelObject]:
    """Deploy a model from a folder that the server reads: `modelPath` is a folder of the user's data, `edi_py` the file
    of the kernel in it, `weightPath` that of the weights."""
    body = await object_of(request)
    texts = {key: inference_deploy.text_of(body, key) for key in (
        "name", "edi_py", "modelPath", "weightPath", "runtime", "attribute", "mcenv", "type")}
    words = EdiWords(texts["name"], texts["edi_py"], texts["modelPath"], texts["weightPath"], texts["runtime"],
                     texts["attribute"], texts["mcenv"], texts["type"])
    view = await assembled(services, caller, partial(services.model_sources.deploy_folder, caller, words))
    return JsonAnswer(shown(request, services, view), 201)


router.get(wire.EDI_MODELS)(inference_models.list_models)
router.get(_ONE)(inference_models.get)
router.post(_ONE, status_code=201)(inference_deploy.publish)
router.put(_ONE)(inference_models.change)
router.delete(_ONE)(inference_models.undeploy)
router.get(f"{_ONE}/{dlim.PROFILE}")(inference_models.profile)
router.put(f"{_ONE}/{dlim.PROFILE}")(inference_models.change_profile)
router.post(f"{_ONE}/inference")(inference_forward.infer)
router.get(f"{_ONE}/{dlim.INSTANCE}")(inference_models.instance)
router.put(f"{_ONE}/{dlim.START}")(inference_models.start)
router.put(f"{_ONE}/{dlim.STOP}")(inference_models.stop)
router.get(f"{_ONE}/{dlim.README}")(inference_models.readme)
router.get(f"{_ONE}/{dlim.STREAMING}")(inference_models.streaming)
