"""Training: one visible loop (``loop.py``), and what it stands on."""
