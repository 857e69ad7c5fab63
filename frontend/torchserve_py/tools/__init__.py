"""Programs and pages for people: the console, journals and their replay, the first minute, reports."""
