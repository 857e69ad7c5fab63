"""One run of h2load against one gRPC method: how many calls, or streams, a server answers per second.

h2load (of nghttp2) knows nothing of gRPC: it posts one ready-made message over and over and counts what comes back. So
each run begins with one call by a real gRPC client, whose answer must be right, and ends with a look at the number of
bytes that came: a call that failed has fewer.
"""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass

import grpc

from benchmarks.loads import LoadFailed, LoadResult, Target

PREFIX = struct.Struct(">BI")  # before each message: compressed or not, and its length
CALL_LIMIT = 30.0  # seconds for the call that proves that the server answers rightly


@dataclass(frozen=True)
class GrpcLoad:
    """The same message, sent in so many calls at a time, all over one connection."""

    in_flight: int
    method: str  # with its service: /package.Service/Method
    message: bytes
    is_right: Callable[[list[bytes]], bool]  # gets the messages of the answer

    def run(self, target: Target, seconds: int) -> LoadResult:
        """Run h2load for `seconds`. Raises LoadFailed unless every call was answered, and rightly."""
        metadata = [(name.lower(), value) for name, value in target.authorization.items()]
        size = self._prove(target.grpc_target, metadata)
        h2load = shutil.which("h2load")
        if h2load is None:
            raise LoadFailed("There is no 'h2load' on the PATH; on Debian it is in the package nghttp2-client.")
        with tempfile.NamedTemporaryFile() as body:
            body.write(PREFIX.pack(0, len(self.message)) + self.message)
            body.flush()
            command = [h2load, "-c1", f"-m{self.in_flight}", f"-D{seconds}", "-d", body.name]
            command += ["-H", "content-type: application/grpc", "-H", "te: trailers"]
            command += [text for name, value in metadata for text in ("-H", f"{name}: {value}")]
            command.append(f"http://{target.grpc_target}{self.method}")
            done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 60, check=False)
        return LoadResult(self._rate(done, size))

    def _prove(self, target: str, metadata: list[tuple[str, str]]) -> int:
        """Make one call. Returns how many bytes its answer has on the wire, without the trailers."""
        with grpc.insecure_channel(target) as channel:
            call: grpc.UnaryStreamMultiCallable[bytes, bytes]
            call = channel.unary_stream(self.method)  # reads the one message of a unary method as well
            try:
                answer = list(call(self.message, metadata=metadata, timeout=CALL_LIMIT, wait_for_ready=True))
            except grpc.RpcError as error:
                raise LoadFailed(f"{self.method} of {target} failed: {error}") from error
        if not self.is_right(answer):
            raise LoadFailed(f"{self.method} of {target} answered {answer!r:.200}.")
        return sum(PREFIX.size + len(message) for message in answer)

    def _rate(self, done: subprocess.CompletedProcess[str], size: int) -> float:
        rate = re.search(r"^finished in .*?, ([\d.]+) req/s", done.stdout, re.MULTILINE)
        counts = re.search(
            r"^requests: \d+ total, (\d+) started, (\d+) done, (\d+) succeeded, .*?^traffic: .*\((\d+)\) data",
            done.stdout,
            re.MULTILINE | re.DOTALL,
        )
        if done.returncode != 0 or rate is None or counts is None:
            raise LoadFailed(f"h2load ended with {done.returncode}: {done.stdout}{done.stderr}")
        started, answered, succeeded, data = map(int, counts.groups())
        if not succeeded or succeeded != answered or not answered * size <= data <= started * size:
            raise LoadFailed(
                f"Of {answered} calls of {self.method} {succeeded} succeeded, with {data:,} bytes; {size} bytes each "
                "would be right."
            )
        return float(rate[1])
