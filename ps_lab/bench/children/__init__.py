"""Programs of a bench's processes: each does a round when it is told to."""
