"""Opens the store beneath a model's `SequenceCache` that `model-config.yaml` configures."""

from ts.context import Context
from ts.protocol.messages import Cache, Load
from ts.runtimes.errors import LoadError
from ts.sequence.steps import Steps
from ts.sequence.stored_steps import StoredSteps
from ts.sequence.stores.store import Store, StoreError, StoreSettings


def open_steps(context: Context, load: Load) -> Steps | None:
    """Return the `Steps` of a model whose handler has created a `SequenceCache`, or None.

    Raises:
        LoadError: The configuration names a store, but the handler has created no cache, or the store cannot be opened.
    """
    cache, cached = load.get("cache"), context.sequence_cache
    if cached is None:
        if cache is not None and cache["durable"]:
            raise LoadError(
                f"handler.cache.store is {cache['store']}, but the handler makes no SequenceCache: its state would be"
                " lost. Have initialize do 'self.cache = SequenceCache(context)' (from ts.sequence import"
                " SequenceCache)."
            )
        return None
    if not load["sequences"] or cache is None:
        return None  # the server schedules no sequences for this model, or has no cache settings for it
    if not cache["durable"]:
        return Steps(context, cached)
    settings = StoreSettings(
        model=f"{load['model_name']}/{load['model_version']}",
        owner=cache["owner"],
        lease=cache["lease"],
        lifetime=cache["lifetime"],
        kept=cache["kept"],
    )
    try:
        store = open_store(settings, cache)
    except StoreError as error:
        raise LoadError(str(error)) from error
    return StoredSteps(
        context,
        cached,
        store,
        settings,
        restart_expired=cache["restart_expired"],
        max_answer=load["max_response_size"],
    )


def open_store(settings: StoreSettings, cache: Cache) -> Store:
    """Return the durable store that a model's configuration names. Raises StoreError: the store cannot be opened."""
    if cache["store"] == "file":
        from ts.sequence.stores.file import FileStore

        return FileStore(settings, cache["path"], fsync=cache["fsync"])
    from ts.sequence.stores.redis import RedisStore

    return RedisStore(settings, cache["url"], replicas=cache["replicas"])
