"""The model behind LitServe: a dictionary in its worker. Run it as ``python litserve_counter.py PORT``."""

import sys
from typing import Any

import litserve

FACTOR, MODULUS = 31, 2**31 - 1


class Counter(litserve.LitAPI):
    """Counts the steps of each session, with a checksum."""

    def setup(self, device: str) -> None:
        """Start with no session."""
        self.states: dict[str, tuple[int, int]] = {}

    def decode_request(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the request: a JSON object with ``session``, ``number``, ``start`` and ``end``."""
        return request

    def predict(self, step: dict[str, Any]) -> str:
        """Return the state after a step."""
        count, checksum = (0, 0) if step["start"] else self.states.get(step["session"], (0, 0))
        state = count + 1, (checksum * FACTOR + step["number"]) % MODULUS
        self.states[step["session"]] = state
        if step["end"]:
            del self.states[step["session"]]
        return f"{state[0]} {state[1]}"

    def encode_response(self, output: str) -> str:
        """Return the answer."""
        return output


if __name__ == "__main__":
    server = litserve.LitServer(Counter(), accelerator="cpu", workers_per_device=1)
    server.run(host="127.0.0.1", port=int(sys.argv[1]), generate_client_file=False, log_level="error")
