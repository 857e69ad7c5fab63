"""How worker processes begin: forked, confined."""
