"""What a handler's file says, apart from what it does."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class ModelSource:
    """What a handler's file says about how it is to be served: its name, and keys of `model-config.yaml`.

    ``unread``: further keys of that file that have no effect, and what else reads them. ``fixed``: keys that can have
    one value only, with that value, and why another one is of no use. ``is_one_of_several``: whether the file has
    further models, which it may call.
    """

    name: str
    config: Mapping[str, Any]
    unread: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, tuple[Any, str]] = field(default_factory=dict)
    is_one_of_several: bool = False
