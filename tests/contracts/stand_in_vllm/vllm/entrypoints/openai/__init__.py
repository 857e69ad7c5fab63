"""The modules of vLLM's OpenAI server."""
