"""MNIST, bundled as four xz-compressed IDX files; see SOURCE.md for attribution and licence."""
