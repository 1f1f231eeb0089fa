"""Golden vectors: hashes of what the numpy target gave for seeded inputs, the same on every machine."""
