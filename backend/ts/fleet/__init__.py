"""Workers on other machines, and models that sleep."""
