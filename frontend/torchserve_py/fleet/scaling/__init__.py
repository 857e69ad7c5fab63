"""The number of workers follows the load."""
