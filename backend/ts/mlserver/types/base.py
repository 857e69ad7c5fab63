"""The base of all messages: what is not set is not said."""

from __future__ import annotations

from typing import Any

import pydantic


class BaseModel(pydantic.BaseModel):
    """A message whose dumps leave out what was never set and what is None."""

    model_config = pydantic.ConfigDict(protected_namespaces=(), use_enum_values=True)

    def model_dump(self, *, exclude_unset: bool = True, exclude_none: bool = True, **kwargs: Any) -> dict[str, Any]:
        """Return the message as a dict."""
        return super().model_dump(exclude_unset=exclude_unset, exclude_none=exclude_none, **kwargs)

    def model_dump_json(self, *, exclude_unset: bool = True, exclude_none: bool = True, **kwargs: Any) -> str:
        """Return the message as JSON."""
        return super().model_dump_json(exclude_unset=exclude_unset, exclude_none=exclude_none, **kwargs)
