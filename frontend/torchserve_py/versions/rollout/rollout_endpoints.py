"""The endpoint that lets a version take the places of another one's workers, or its own ones anew."""

from collections.abc import Iterator
from typing import Final

from torchserve_py.endpoints.openapi import OBJECT, Operation
from torchserve_py.endpoints.responses import Answer, json_answer
from torchserve_py.endpoints.routing import EndpointContext, Endpoints, PathValues, Route
from torchserve_py.endpoints.token_authorization import TokenType
from torchserve_py.net.http1.request import Request
from torchserve_py.versions.rollout.rollouts import Rollouts
from ts.protocol.media_types import JSON

_ROLL_OUT: Final = Operation(
    "rollOut",
    "Let a version take the places of another one's workers, one after the other, and become the default version",
    (200, 400, 404, 409, 500, 507),
    gives={JSON: OBJECT},
)
_RESTART: Final = Operation(
    "restartWorkers",
    "Replace the workers of a version by new processes, one after the other",
    (200, 400, 404, 409, 500, 507),
    gives={JSON: OBJECT},
)
_SHOW: Final = Operation(
    "rollout", "Show how the latest rollout or restart of a model goes", (200, 404), gives={JSON: OBJECT}
)


class RolloutDoor(Endpoints):
    """Begins and shows rollouts."""

    def __init__(self, context: EndpointContext) -> None:
        super().__init__(context)
        self._rollouts = context.shared(Rollouts.of)

    def routes(self) -> Iterator[Route]:
        token = TokenType.management
        path = "/models/{model_name}/{model_version}"
        yield Route(f"{path}/rollout", self._roll_out, ("PUT",), token, operations=(_ROLL_OUT,))
        yield Route(f"{path}/restart", self._restart, ("PUT",), token, operations=(_RESTART,))
        yield Route("/models/{model_name}/rollout", self._show, ("GET",), token, operations=(_SHOW,))

    async def _roll_out(self, request: Request, values: PathValues) -> Answer:
        name = values["model_name"]
        await self._rollouts.roll_out(name, values["model_version"])
        return json_answer(self._rollouts.about(name))

    async def _restart(self, request: Request, values: PathValues) -> Answer:
        name = values["model_name"]
        await self._rollouts.restart(name, values["model_version"])
        return json_answer(self._rollouts.about(name))

    def _show(self, request: Request, values: PathValues) -> Answer:
        return json_answer(self._rollouts.about(values["model_name"]))
