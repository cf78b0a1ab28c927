"""``python -m overlaycaps``, the same as ``overlaycaps``."""

from overlaycaps.cli import main

if __name__ == "__main__":
    main()
