"""What a registration, the files of a model and the settings come to: the plan of a model version. Starts nothing."""
