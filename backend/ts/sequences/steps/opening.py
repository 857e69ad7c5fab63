"""Opens what keeps the steps of a model's sequences, as `model-config.yaml` configures it."""

from ts.context import Context
from ts.protocol.messages import Load
from ts.sequence import SequenceCache
from ts.sequences.steps.rules import Rules
from ts.sequences.steps.steps import Steps


def open_steps(context: Context, load: Load) -> Steps | None:
    """Return the `Steps` of a model that keeps sequences, None for another one.

    Raises:
        LoadError: The store that the configuration names cannot be opened.
    """
    cache = load.get("cache")
    if not load["sequences"] or cache is None:
        return None  # the server schedules no sequences for this model, or has no cache settings for it
    states: SequenceCache = SequenceCache(context) if context.sequence_cache is None else context.sequence_cache
    rules = Rules(cache["require_start"], cache["restart_expired"])
    if cache["durable"]:
        # Sequences in memory do without all that this imports.
        from ts.sequences.steps.stored_opening import open_stored_steps

        return open_stored_steps(context, load, cache, states, rules)
    return Steps(context, states, rules, most_kept=cache["kept"], most_ids=cache["most_ids"], forms=load["forms"])
