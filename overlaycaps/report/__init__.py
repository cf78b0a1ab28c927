"""From finished runs to a comparison: results are read, one neutral report is made, renderers show it."""
