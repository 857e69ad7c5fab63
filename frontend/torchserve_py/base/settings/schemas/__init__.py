"""What users write in files, as schemas: reading, messages and JSON Schemas follow from one pydantic model per file."""
