"""What users write: flags, environment, config.properties and the files of models; read, checked and explained."""
