"""Archives of models: ZIP (``.mar``) and tar, unpacked with limits."""
