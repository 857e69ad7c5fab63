"""Models in MLflow's format."""
