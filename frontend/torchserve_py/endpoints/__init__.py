"""The doors: one module per protocol that a client can speak. They translate and never decide."""
