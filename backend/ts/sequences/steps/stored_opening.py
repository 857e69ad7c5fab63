"""Opens the store of a model's sequences, and what keeps their steps in it; see `opening`."""

import importlib

from ts.context import Context
from ts.jobs.errors import LoadError
from ts.protocol.messages import Cache, Load
from ts.sequence import SequenceCache
from ts.sequences.steps.rules import Rules
from ts.sequences.steps.stored_steps import StoredSteps
from ts.sequences.steps.stores.store import Store, StoreError, StoreSettings


def open_stored_steps(context: Context, load: Load, cache: Cache, states: SequenceCache, rules: Rules) -> StoredSteps:
    """Return the steps of a model whose sequences a store keeps. Raises LoadError: the store cannot be opened."""
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
        raise LoadError(str(error)) from None  # it says all
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
