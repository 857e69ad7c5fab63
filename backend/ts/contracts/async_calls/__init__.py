"""Asynchronous code of models: an event loop in which each request is a call of its own."""
