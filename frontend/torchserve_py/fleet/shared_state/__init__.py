"""Servers of a fleet serve the same models: what is changed on one reaches all."""
