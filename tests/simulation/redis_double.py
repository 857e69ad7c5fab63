"""fakeredis with what the stores need besides: ``cmsgpack`` in scripts, and a hook for what is published."""

import functools
from collections.abc import Callable
from typing import Any, Final

import fakeredis
import msgpack
from fakeredis.commands_mixins import pubsub_mixin, scripting_mixin

FakeRedis = fakeredis.FakeRedis


class Server(fakeredis.FakeServer):
    """A server that tells when something is published."""

    on_publish: Callable[[], None] = staticmethod(lambda: None)
    runtime: "_Runtime"


#: One for all worlds, since it takes long to make Lua; a world clears it.
SERVER: Final = Server()
_new_runtime = scripting_mixin.ScriptingCommandsMixin._get_server_runtime
_publish = pubsub_mixin.PubSubCommandsMixin.publish


class _Runtime:
    """What fakeredis uses of Lua while a script runs. It compiles each script once, as Redis does."""

    def __init__(self, lua: Any) -> None:
        self.table_from = lua.table_from
        self._compiled = functools.cache(lua.compile)

    def execute(self, script: bytes) -> Any:
        return self._compiled(script)()


def _runtime_with_msgpack(self: Any, server: Any) -> _Runtime:
    is_new = not hasattr(server, "_lua_runtime")
    runtime = _new_runtime(self, server)
    if is_new:

        def to_lua(value: Any) -> Any:
            return runtime.table_from([to_lua(each) for each in value]) if isinstance(value, list) else value

        names = {
            b"unpack": lambda packed: to_lua(msgpack.unpackb(packed, raw=True)),
            b"pack": msgpack.packb,
        }
        runtime.globals()[b"cmsgpack"] = runtime.table_from(names)
        runtime.globals()[b"collectgarbage"] = lambda *_: None  # after each script, which takes longer than the script
        server.runtime = _Runtime(runtime)
    return server.runtime


def _publish_and_tell(self: Any, channel: bytes, message: bytes) -> int:
    receivers: int = _publish(self, channel, message)
    SERVER.on_publish()
    return receivers


scripting_mixin.ScriptingCommandsMixin._get_server_runtime = _runtime_with_msgpack
scripting_mixin._check_for_lua_globals = lambda *_: None  # it would find cmsgpack
pubsub_mixin.PubSubCommandsMixin.publish = _publish_and_tell
