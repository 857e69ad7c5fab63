"""The keys of `model-config.yaml` that say how `BaseHandler` computes; `ts.torch_handler.computing` obeys them."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal

from torchserve_py.base.settings.schemas.plugin_keys import ModelConfigKeys
from torchserve_py.base.settings.schemas.schema import key
from torchserve_py.base.settings.schemas.values import Flag, choice

_COMPILED_AHEAD = "the model was compiled ahead of time and computes in the types that it was compiled with"
_HalfType = Annotated[Literal["bfloat16", "float16"] | None, choice("bfloat16", "float16")]


class ComputingKeys(ModelConfigKeys):
    """`model-config.yaml`, of which this plugin has these keys. None = not set."""

    handlers_only: ClassVar[str] = "only BaseHandler reads it"

    autocast: _HalfType = key(
        "autocast", "type in which `BaseHandler` has the model [compute](gpu.md)", "that of the weights"
    )
    dtype: _HalfType = key(
        "dtype",
        "type to which `BaseHandler` converts weights and inputs",
        "that of the weights",
    )
    channels_last: Flag = key(
        "channelsLast",
        "let `BaseHandler` lay out weights and images channels last",
        "`false`",
    )

    def contradictions(self, given: Mapping[Any, Any]) -> Iterable[tuple[tuple[str, ...], str]]:
        """Yield the settings that cannot be obeyed."""
        for name, value in (("autocast", self.autocast), ("dtype", self.dtype)):
            if value and _is_compiled_ahead(given):
                yield (name,), f"{name} is {value} but pt2.export.aot_compile is true: {_COMPILED_AHEAD}"
        if self.autocast and self.dtype:
            problem = "each says in which type the model computes, so keep one"
            yield ("autocast", "dtype"), f"autocast is {self.autocast} but dtype is {self.dtype}; {problem}"


def _is_compiled_ahead(given: Mapping[Any, Any]) -> bool:
    pt2 = given.get("pt2")
    export = pt2.get("export") if isinstance(pt2, Mapping) else None
    return isinstance(export, Mapping) and export.get("aot_compile") is True
