"""OpenAI's realtime API for transcription, and vLLM's variant of it (``docs/speech.md``)."""
