"""Writes the weights that this folder's model is served with: random, but the same every time.

python handlers/gru_session/make_weights.py [FILE]      FILE: default weights.pt beside this script
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from model import SessionGRU  # type: ignore[import-not-found]  # model.py beside this script

SEED = 0


def write_weights(path: Path) -> None:
    """Save the state dict (plain tensors, so it loads with ``weights_only=True``)."""
    generator_state = torch.get_rng_state()
    try:
        torch.manual_seed(SEED)
        torch.save(SessionGRU().state_dict(), path)
    finally:
        torch.set_rng_state(generator_state)


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("weights.pt")
    write_weights(target)
    print(f"Wrote {target}")
