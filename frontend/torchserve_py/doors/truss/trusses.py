"""The registered Trusses, and the Truss that a request means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from torchserve_py.bounded_json import UnreadableJson, read_member
from torchserve_py.core.errors import ModelNotFound

if TYPE_CHECKING:
    from torchserve_py.core.serving import ServedModel, Serving

#: What a Truss's own server calls its one model.
ONLY_NAME: Final = "model"


class Trusses:
    """The registered models that are Trusses, in their default versions."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    @property
    def all(self) -> Sequence[ServedModel]:
        """All Trusses, sorted by name."""
        return [model for model in self._serving.models() if model.contract.truss_api]

    @property
    def only(self) -> ServedModel | None:
        """The only Truss; None if the server has no Truss or several. Models of other contracts do not count."""
        trusses = self.all
        return trusses[0] if len(trusses) == 1 else None

    @property
    def serve_alone(self) -> bool:
        """Whether every registered model is a Truss, and there is at least one."""
        models = self._serving.models()
        return bool(models) and all(model.contract.truss_api for model in models)

    def named(self, name: str) -> ServedModel | None:
        """Return the Truss of that name, or None; the name ``model`` also means the only Truss."""
        try:
            model = self._serving.get(name)
        except ModelNotFound:
            return self.only if name == ONLY_NAME else None
        return model if model.contract.truss_api else None

    def is_other(self, name: str) -> bool:
        """Return whether a model of that name is served and is not a Truss."""
        return any(model.name == name and not model.contract.truss_api for model in self._serving.models())


def name_in(body: bytes) -> str | None:
    """Return the member ``model`` of a JSON object, as OpenAI's clients send it, or None."""
    try:
        name = read_member(body, "model")
    except UnreadableJson:
        return None
    return name if isinstance(name, str) else None
