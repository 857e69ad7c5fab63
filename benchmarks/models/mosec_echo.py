"""An echo for mosec: a worker that returns its input, in batches of a size.

python mosec_echo.py --batch-size 8 --path /predictions/echo (mosec's own flags besides)
"""

from __future__ import annotations

import argparse
import sys

from mosec import Server, Worker


class Echo(Worker):
    """Returns its input, as it came."""

    def deserialize(self, data: bytes) -> bytes:
        """Return the body."""
        return data

    def serialize(self, data: bytes) -> bytes:
        """Return the answer."""
        return data

    def forward(self, data: bytes | list[bytes]) -> bytes | list[bytes]:
        """Return one body, or those of a batch."""
        return data


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--path", required=True)
    own, sys.argv[1:] = parser.parse_known_args()
    server = Server()
    server.append_worker(Echo, num=1, max_batch_size=own.batch_size, max_wait_time=5, route=own.path)
    server.run()
