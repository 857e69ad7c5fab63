"""OpenAI's HTTP API: completions and embeddings, responses and conversations."""
