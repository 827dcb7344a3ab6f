"""BentoML: `bentoml serve bentoml_side:Noop --port PORT`; its route is /echo."""

from __future__ import annotations

from typing import Any

import bentoml


@bentoml.service(workers=1, traffic={"timeout": 60})
class Noop:
    """Answers with its input."""

    @bentoml.api
    async def echo(self, data: list[float], seq: int) -> dict[str, Any]:
        return {"data": data, "seq": seq}
