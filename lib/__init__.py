"""The study's thin library; one concept per file, imports flow one way (see its README)."""
