"""More models than memory: a budget, for which models load on demand, sleep, and make room for each other."""
