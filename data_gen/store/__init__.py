"""The HDF5 file of a dataset: `write` it, `read` it. FORMAT.md says what is in it."""
