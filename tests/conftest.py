"""What holds for all tests."""

from __future__ import annotations

from hypothesis import settings

# A test must not fail because the machine is busy: hypothesis' limit on the time of one example is lifted.
settings.register_profile("torchserve-py", deadline=None)
settings.load_profile("torchserve-py")
