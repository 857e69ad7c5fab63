"""A version takes the places of another one's workers, one after the other."""
