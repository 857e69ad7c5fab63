"""Request envelopes: what wraps and unwraps the bodies of a protocol around a handler; see `base`."""
