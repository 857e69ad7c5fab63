"""When jobs run: the asyncio shell around the pure scheduler of a model version."""
