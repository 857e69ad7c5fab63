"""How one model contract is run: each runtime turns wire rows into calls of a model's code, and results into rows."""
