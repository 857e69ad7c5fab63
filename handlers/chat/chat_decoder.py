"""`Decoder`: one step of a causal transformer for many conversations, with the keys and values of each in its place.

Each row of a step reads the tokens that its conversation has more than keys and values of: one if it is being
answered, a piece of its prompt if it has just come. Rows of both kinds take part in every step, so that a long prompt
delays the answers of others by no more than its piece takes (chunked prefill: Agrawal et al., Sarathi-Serve, 2024).

While a conversation runs, its keys and values stay in its place (`chat_places`), and a step writes only the new ones.
When it rests they are kept by their tokens (`chat_prefixes`). Both share one budget, and what runs comes first.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from chat_attention import NAME, NotPacked, PackedStep, Part, place_cache, run
from chat_layout import Layout
from chat_places import Place, Places, Plan, capacity_for, most_tokens_in
from chat_prefixes import KeptPrefixes
from chat_threads import StepThreads
from transformers import DynamicCache

from ts.jobs.device_copies import to_device

logger = logging.getLogger(__name__)


class Reading:
    """A conversation that the model reads: its tokens, and the keys and values of the first of them.

    Attributes:
        tokens: All tokens so far; the caller appends what was chosen.
        kept: How many of them had keys and values when the conversation was first seen.
        read: How many tokens have keys and values.
    """

    __slots__ = ("_place", "kept", "read", "tokens")

    def __init__(self, tokens: list[int]) -> None:
        self.tokens = tokens
        self.kept: int | None = None
        self.read = 0
        self._place: Place | None = None


class Decoder:
    """Runs a model step by step.

    Args:
        model: A causal language model of transformers, on its device.
        most_bytes: The bytes that keys and values may have on the device.
        most_host_bytes: The bytes that those of conversations which rest may have in the host's memory.
        most_prompt: The tokens of prompts that one step reads.

    Raises ValueError: the model keeps something else than keys and values, or ``most_bytes`` is too small.
    """

    def __init__(self, model: Any, *, most_bytes: int, most_host_bytes: int, most_prompt: int) -> None:
        self.model = model
        self.most_bytes = most_bytes
        self._takes = set(inspect.signature(model.forward).parameters)
        self._most_prompt = most_prompt
        self._threads = StepThreads(is_on_cpu=model.device.type == "cpu")
        cache = DynamicCache()
        self._run(cache, [0], [0], [0])
        self.layout = Layout(cache.layers, model.config.model_type)
        self._places = Places(self.layout, most_bytes)
        self.prefixes = KeptPrefixes(self.layout, most_bytes, most_host_bytes)
        if not self.most_tokens:
            size = self.layout.token_bytes
            raise ValueError(f"{most_bytes} bytes are too few for keys and values: a token of this model has {size}")
        #: Whether one run of the model has tokens of many conversations.
        self.is_packed = self._can_be_packed()

    @property
    def most_tokens(self) -> int:
        """The most tokens that one conversation can have here."""
        return most_tokens_in(self.most_bytes // self.layout.token_bytes)

    @property
    def words(self) -> int:
        """The tokens that the model knows are those below this number."""
        return int(self.model.get_input_embeddings().weight.shape[0])

    @property
    def used_bytes(self) -> int:
        """The bytes on the device that keys and values have."""
        return self._places.used_bytes + self.prefixes.device_bytes

    # One step

    def step(self, readings: Sequence[Reading]) -> dict[Reading, torch.Tensor]:
        """Read some of the tokens that were not read yet; return the logits after the last one, where that was read.

        Args:
            readings: All conversations that run, the oldest first. If there is no room for all, the youngest wait.

        Raises ValueError: the oldest one alone has more than `most_tokens`.
        """
        counts = self._choose(readings)
        if max(counts.values(), default=0) > 1:  # parts of prompts gain by all threads
            return self._read(counts)
        with self._threads.of_step(len(counts), sum(each.read for each in counts)):
            return self._read(counts)

    def _read(self, counts: Mapping[Reading, int]) -> dict[Reading, torch.Tensor]:
        if self.is_packed:
            return self._read_packed(counts)
        return {each: logits for each, count in counts.items() if (logits := self._read_alone(each, count)) is not None}

    def keep(self, reading: Reading) -> None:
        """Keep what was read of a conversation that rests, for the next one that begins with the same tokens."""
        if reading._place is not None:
            if reading.read:
                self.prefixes.put(reading.tokens[: reading.read], reading._place.key_values)
            self._leave(reading)

    def forget(self, reading: Reading) -> None:
        """Forget what was read of a conversation, also what was kept of it before."""
        self.prefixes.forget(reading.tokens)
        if reading._place is not None:
            self._leave(reading)

    def _leave(self, reading: Reading) -> None:
        assert reading._place is not None, "the caller has checked"
        self._places.give_back(reading._place)
        reading._place, reading.read = None, 0

    def _choose(self, readings: Sequence[Reading]) -> Mapping[Reading, int]:
        """Give the conversations of this step their places; return how many tokens each reads. The others rest."""
        plan, prompts = Plan(self._places, self.most_bytes), self._most_prompt
        capacities: dict[Reading, int] = {}
        for reading in readings:
            length, has = len(reading.tokens), 0 if reading._place is None else reading._place.capacity
            needed = has if has >= length else capacity_for(length)
            if (not has and prompts <= 0) or not plan.add(needed, has if has < needed else 0):
                break
            capacities[reading] = needed
            unread = length - (reading.read if has else self.prefixes.matching(reading.tokens[:-1]))
            prompts -= unread if unread > 1 else 0
        if not capacities:
            raise ValueError(
                f"the keys and values of {len(readings[0].tokens)} tokens do not fit into {self.most_bytes} bytes,"
                f" where there is room for {self.most_tokens}"
            )
        for reading in readings[len(capacities) :]:
            self.keep(reading)
        self.prefixes.limit(self.most_bytes - plan.used_bytes)
        for reading, capacity in capacities.items():
            self._settle(reading, capacity)
        return self._shares(capacities)

    def _settle(self, reading: Reading, capacity: int) -> None:
        """Give a conversation a place of this capacity, with all that is there of its keys and values."""
        if reading._place is None:
            reading._place = self._places.take(capacity)
            # The last token is always read, for its logits.
            reading.read = self.prefixes.copy_longest(reading.tokens[:-1], reading._place.key_values)
            reading._place.clear(reading.read)
            reading.kept = reading.read if reading.kept is None else reading.kept
        elif reading._place.capacity < capacity:
            reading._place = self._places.move(reading._place, capacity, reading.read)

    def _shares(self, readings: Iterable[Reading]) -> dict[Reading, int]:
        """Return how many tokens each conversation reads; prompts share what a step reads of them, the oldest first."""
        shares, left = {}, self._most_prompt
        for reading in readings:
            count = len(reading.tokens) - reading.read
            if count > 1:
                count = min(count, left)
                left -= count
            if count:
                shares[reading] = count
        return shares

    # The model

    def _read_packed(self, counts: Mapping[Reading, int]) -> dict[Reading, torch.Tensor]:
        """Read tokens of many conversations in one run."""
        parts, ids, positions, ends = [], list[int](), list[int](), list[int]()
        for reading, count in counts.items():
            assert reading._place is not None, "it was chosen"
            parts.append(Part(reading._place, reading.read, count, self._places.live(reading._place)))
            ids += reading.tokens[reading.read : reading.read + count]
            positions += range(reading.read, reading.read + count)
            ends.append(len(ids) - 1)
        logits = self._run(PackedStep(parts, self.model.device), ids, positions, ends)
        found = {}
        for row, (reading, count) in enumerate(counts.items()):
            reading.read += count
            if reading.read == len(reading.tokens):
                found[reading] = logits[row]
        return found

    def _read_alone(self, reading: Reading, count: int) -> torch.Tensor | None:
        """Read tokens of one conversation; return the logits after its last one, None if that is not read yet."""
        assert reading._place is not None, "it was chosen"
        start, end = reading.read, reading.read + count
        cache = place_cache(reading._place, start)
        logits = self._run(cache, reading.tokens[start:end], range(start, end), [count - 1])
        reading.read = end
        return logits[0] if end == len(reading.tokens) else None

    def _run(
        self, cache: DynamicCache, ids: Sequence[int], positions: Sequence[int], ends: Sequence[int]
    ) -> torch.Tensor:
        """Run the model with a row of tokens at these positions; return the logits after those with these indices."""
        device = self.model.device
        tokens, where = to_device(torch.tensor([list(ids), list(positions)]), device).split(1)
        last = to_device(torch.tensor(ends), device)
        given = {"position_ids": where, "logits_to_keep": last}
        given = {name: value for name, value in given.items() if name in self._takes}
        with torch.inference_mode():
            logits = run(self.model, cache, input_ids=tokens, **given).logits[0]
        return logits if "logits_to_keep" in self._takes else logits[last]

    def _can_be_packed(self) -> bool:
        """Have the model use our attention; return False, and leave it its own, if it needs more than that has."""
        model, own = self.model, self.model.config._attn_implementation
        why = "it has no positions of tokens, or chunks" if not self._takes_packed_tokens() else ""
        if not why:
            model.set_attn_implementation(NAME)
            place = self._places.take(capacity_for(1))
            place.clear(0)
            step = PackedStep([Part(place, 0, 1, 1)], model.device)
            try:
                self._run(step, [0], [0], [0])
                why = "" if step.updated == step.attended == self.layout.count else "its layers attend in another way"
            except NotPacked as error:
                why = str(error)
            self._places.give_back(place)
        if why:
            logger.warning("Each conversation is run by itself, because of the model's attention: %s.", why)
            model.set_attn_implementation(own)
        return not why

    def _takes_packed_tokens(self) -> bool:
        config = self.model.config.get_text_config(decoder=True)
        return "position_ids" in self._takes and getattr(config, "attention_chunk_size", None) is None
