"""Servers in the background: started, found again by a pid file, and stopped."""
