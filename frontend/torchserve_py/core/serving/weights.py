"""What becomes of the weights of versions when some go."""

from collections.abc import Container, Mapping
from itertools import accumulate


def shared_out(weights: Mapping[str, int]) -> dict[str, int]:
    """Return weights that add up to 100, in proportion to these as far as whole numbers can be."""
    versions = sorted(weights)  # every server of a fleet rounds the same
    total = sum(weights.values())
    ends = [100 * end // total for end in accumulate(weights[version] for version in versions)]
    return {version: end - start for version, start, end in zip(versions, [0, *ends], ends, strict=False)}


def weights_without(weights: Mapping[str, int], gone: Container[str], staying: int) -> Mapping[str, int]:
    """Return the weights of the versions that stay when some go: they share the requests of those.

    ``staying`` is how many versions stay, with a weight or without; one that is alone needs none.
    """
    if not any(version in gone for version in weights):
        return weights
    return shared_out({version: each for version, each in weights.items() if version not in gone and staying > 1})
