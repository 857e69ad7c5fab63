"""Archives of models are made here; `core.archive` fetches and unpacks them."""
