"""Bodies that are forms, cut into their fields."""
