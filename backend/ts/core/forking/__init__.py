"""The process that workers are forked from."""
