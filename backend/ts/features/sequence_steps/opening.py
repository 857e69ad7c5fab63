"""Opens what keeps the steps of a model's sequences, as `model-config.yaml` configures it."""

import importlib

from ts.context import Context
from ts.features.sequence_steps.rules import Rules
from ts.features.sequence_steps.steps import Steps
from ts.features.sequence_steps.stored_steps import StoredSteps
from ts.features.sequence_steps.stores.store import Store, StoreError, StoreSettings
from ts.jobs.errors import LoadError
from ts.protocol.messages import Cache, Load
from ts.sequence import SequenceCache


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
    if not cache["durable"]:
        return Steps(context, states, rules, most_kept=cache["kept"], most_ids=cache["most_ids"], forms=load["forms"])
    settings = StoreSettings(
        model=load["model_name"],
        version=load["model_version"],
        state_version=cache["state_version"],
        owner=cache["owner"],
        lease=cache["lease"],
        lifetime=cache["lifetime"],
        kept=cache["kept"],
        remembered=cache["remembered"],
        most_ids=cache["most_ids"],
        checkpoint_steps=cache["checkpoint_steps"],
        kept_states=cache["kept_states"],
        rebuilt_at_once=cache["rebuilt_at_once"],
        migrates=states.migrate is not None,
    )
    try:
        store = open_store(settings, cache)
    except StoreError as error:
        raise LoadError(str(error)) from error
    return StoredSteps(
        *(context, states, store, settings, rules),
        max_answer=load["max_response_size"],
        max_state=cache["most_state"],
        forms=load["forms"],
    )


def open_store(settings: StoreSettings, cache: Cache) -> Store:
    """Return the durable store that a model's configuration names. Raises StoreError: the store cannot be opened."""
    store: Store = importlib.import_module(cache["module"]).open_store(settings, cache)
    return store
