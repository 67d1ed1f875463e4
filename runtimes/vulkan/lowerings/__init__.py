"""How operators become dispatches, by families."""
