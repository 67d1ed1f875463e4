"""Where models come in: one module for each form that a model may have."""
