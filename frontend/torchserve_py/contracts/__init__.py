"""Kinds of model code, and ways to run them."""
