"""`GET /guide/NAME` answers with the guide of a model."""

from typing import Annotated

from torchserve_py.endpoints.responses import Answer
from torchserve_py.endpoints.routing import Endpoints, Route
from torchserve_py.base.metrics.families import Family
from torchserve_py.base.metrics.instruments import Counter
from torchserve_py.base.settings.schemas.plugin_keys import ModelConfigKeys
from torchserve_py.base.settings.schemas.schema import key
from torchserve_py.base.settings.schemas.values import TEXT


class GuideKeys(ModelConfigKeys):
    guide: Annotated[str | None, TEXT] = key("guide", "what clients of the model are told", "none")


class GuideEndpoints(Endpoints):
    def routes(self):
        self._asked = self.context.metrics.add(Family("guide_asked", Counter, "Count", "Guides that were asked for"))
        return [Route("/guide/{model_name}", self._guide, ("GET",))]

    def _guide(self, request, values):
        model = self.serving.get(values["model_name"])
        self._asked.child({"model_name": model.name}).inc()
        keys = model.config.plugin_keys.of(GuideKeys)
        return Answer(200, (keys.guide or "There is none.").encode(), (("Content-Type", "text/plain"),))
