"""Processes that models leave behind."""
