"""Plays the server for handlers/chat."""

from pathlib import Path
from typing import Any

from tests.unit.handlers.conftest import FakeContext

from ts.metrics.metrics_cache import MetricsCache
from ts.sequence import SequenceCache

SEQUENCE_ID = "ts_request_sequence_id"
#: The header of a chat completion.
CHAT = {"url_path": "v1/chat/completions"}


class Server:
    """Plays the server's part for one handler: requests join and leave between its steps."""

    def __init__(self, handler: Any, folder: Path, config: dict[str, Any]) -> None:
        whole = {"continuousBatching": True, "sequenceBatching": True, "batchSize": 16, "maxNumSequence": 99}
        self.context = FakeContext(whole | {"handler": config}, folder)
        self.context.metrics = MetricsCache("model")
        self.context.metrics.request_ids = {}
        handler.initialize(self.context)
        self.context.rebuild = handler.rebuild
        SequenceCache(self.context)
        self.handler = handler
        self.live: dict[str, tuple[dict[str, str], dict[str, Any]]] = {}  # headers, and values until they are read
        self.parts: dict[str, list[Any]] = {}
        self.errors: dict[str, tuple[int, str]] = {}
        self.heads: dict[str, dict[str, str]] = {}

    def send(
        self, name: str, body: Any, sequence: str = "", values: dict[str, Any] | None = None, **headers: str
    ) -> None:
        self.live[name] = ({SEQUENCE_ID: sequence or f"made-up-{name}"} | headers, {"body": body} | (values or {}))
        self.parts[name] = []

    def leave(self, name: str) -> None:
        del self.live[name]

    def step(self) -> None:
        context, names = self.context, list(self.live)
        context.next_batch([(name, self.live[name][0]) for name in names])
        context.sequence_cache.run({headers[SEQUENCE_ID] for headers, _ in self.live.values()})
        context.row_values = [values for _, values in self.live.values()]
        for idx, result in enumerate(self.handler.handle(list(context.row_values), context)):
            name = names[idx]
            self.live[name] = (self.live[name][0], {})
            error = context.request_processor[idx].error
            if error is not None:
                self.errors[name] = (error.status, error.message)
                del self.live[name]
                continue
            stop = context.stopping_criteria[idx](result)
            if result is not None or stop is not False:
                self.parts[name].append(result)
                self.heads.setdefault(name, {}).update(context.get_response_headers(idx))
            if context.get_response_status(idx)[0] != 200:
                self.errors[name] = (context.get_response_status(idx)[0], result)
            if stop is not False:
                del self.live[name]

    def run(self) -> None:
        while self.live:
            self.step()

    def ask(self, body: Any, sequence: str = "", **headers: str) -> Any:
        """Return the whole answer to a request that runs alone; its error's status and text if it has one."""
        self.send("alone", body, sequence, **headers)
        self.errors.pop("alone", None)
        self.run()
        if "alone" in self.errors:
            return self.errors["alone"]
        (answer,) = self.parts["alone"]
        return answer

    def logs(self) -> dict[str, Any]:
        return dict(self.context.sequence_cache.items())
