"""What endpoints derive from all models: an index, made again when the default model changes, not per request."""

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from torchserve_py.core.serving.serving import ServedModel, Serving

T = TypeVar("T")


class ModelIndex(Generic[T]):
    """What ``make`` derives from the default versions of all models, without what may change while they are these."""

    def __init__(self, serving: Serving, make: Callable[[Sequence[ServedModel]], T]) -> None:
        self._serving = serving
        self._make = make
        self._models = serving.models()
        self._made = make(self._models)

    def get(self) -> T:
        """Return it for the present models."""
        models = self._serving.models()
        if models is not self._models:
            self._models, self._made = models, self._make(models)
        return self._made
