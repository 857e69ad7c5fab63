"""OpenAI's Responses and Conversations, for every handler that answers chat completions."""
