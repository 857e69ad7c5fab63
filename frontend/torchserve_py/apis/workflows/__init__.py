"""Workflows: several models answer one request together, along the edges of a graph without cycles."""
