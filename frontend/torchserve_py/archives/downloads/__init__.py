"""Archives are downloaded, from the URLs and the networks that the operator allows."""
