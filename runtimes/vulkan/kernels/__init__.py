"""The host's side of the shaders: what is bound, in which variant, in how many workgroups."""
