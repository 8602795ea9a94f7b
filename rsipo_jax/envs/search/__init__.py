"""Multi-hop question answering with a retriever as the environment."""
