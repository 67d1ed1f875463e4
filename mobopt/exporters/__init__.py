"""Where models go out in other formats: one module for each."""
