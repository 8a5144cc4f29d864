"""The trainers of the playground: one in PyTorch, and one that needs nothing."""
