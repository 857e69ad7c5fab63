"""OpenAI's HTTP API: completions and embeddings."""
