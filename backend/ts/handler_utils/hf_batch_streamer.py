"""Streams the text that a Hugging Face model generates for the rows of a batch."""

from typing import Any, Self

from ts.utils.optional_packages import missing_package

try:
    from transformers.generation.streamers import BaseStreamer, TextIteratorStreamer
except ModuleNotFoundError as error:
    raise missing_package(error, "Streamers of Hugging Face models", "huggingface") from error


class TextIteratorStreamerBatch(BaseStreamer):  # type: ignore[misc,unused-ignore]
    """What ``TextIteratorStreamer`` is for one text, for a batch: pass it to ``generate`` as ``streamer`` and iterate.

    Each element is a list with ``{"text": …}`` for every row; iteration stops when generation ends. ``timeout`` is how
    long to wait for the next text before ``queue.Empty`` is raised (seconds; None: without end). ``decode_kwargs`` are
    arguments for the tokenizer's ``decode``, such as ``skip_special_tokens=True``.
    """

    def __init__(
        self,
        tokenizer: Any,
        batch_size: int,
        skip_prompt: bool = False,
        timeout: float | None = None,
        **decode_kwargs: Any,
    ) -> None:
        self.batch_size = batch_size
        self.streamers: list[Any] = [
            TextIteratorStreamer(tokenizer, skip_prompt, timeout, **decode_kwargs) for _ in range(batch_size)
        ]

    def put(self, value: Any) -> None:
        """Take tokens, [batch_size] or [batch_size, tokens]. Raises ValueError: the first dimension is another."""
        if value.shape[0] != self.batch_size:
            raise ValueError(f"the batch size is {self.batch_size} but the tokens have the shape {list(value.shape)}")
        for streamer, tokens in zip(self.streamers, value.split(1), strict=True):
            streamer.put(tokens)

    def end(self) -> None:
        """Let the iteration stop after the text that is still to come."""
        for streamer in self.streamers:
            streamer.end()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> list[dict[str, str]]:
        # Every streamer must be asked, even if one has ended: each holds its own end, which would end the next text.
        texts = [{"text": text} for streamer in self.streamers if (text := next(streamer, None)) is not None]
        if len(texts) < self.batch_size:
            raise StopIteration
        return texts
