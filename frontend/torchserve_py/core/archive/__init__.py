"""Model folders and archives as a registration reads them: where they come from, what they hold, what is wrong."""
