"""The envelope ``body``: the handler gets what each request holds, without the dictionary around it."""

from typing import Any

from ts.torch_handler.request_envelope.base import BaseEnvelope, body_of


class BodyEnvelope(BaseEnvelope):
    """Each row becomes its ``data`` or ``body`` value; answers are left as they are."""

    needs_whole_batches = False

    def parse_input(self, data: list[dict[str, Any]]) -> list[Any]:
        return [body_of(row) for row in data]

    def format_output(self, data: list[Any]) -> list[Any]:
        return data
