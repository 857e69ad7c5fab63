"""Asynchronous code of models; all of it is in the workers."""
