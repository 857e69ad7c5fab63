"""How a model in MLflow's format is run: `load_mlflow` is where it begins, `mlflow_handler` answers requests."""
