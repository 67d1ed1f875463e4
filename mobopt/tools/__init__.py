"""What the commands do, as functions that return data."""
