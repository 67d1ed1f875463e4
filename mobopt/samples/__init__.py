"""What is known of calls of a model before it is converted: inputs to run it on, and how well two results agree."""
