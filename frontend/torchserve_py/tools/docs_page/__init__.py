"""A page that shows what each model takes and gives, and sends it requests."""
