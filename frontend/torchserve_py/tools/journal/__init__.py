"""The journal: requests and answers of a model as files that other tools read."""
