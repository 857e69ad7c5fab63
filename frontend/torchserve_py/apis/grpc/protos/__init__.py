"""The protocol definitions, and the Python stubs that `scripts/generate-stubs` makes of them."""
