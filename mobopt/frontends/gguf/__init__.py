"""GGUF files, in which llama.cpp and others keep weights of language models, for nn.Modules that compute with them."""
