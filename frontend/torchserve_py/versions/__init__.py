"""Several versions of a model: weights, canaries, shadows and rollouts."""
