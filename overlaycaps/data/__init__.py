"""The bridge from data files to tensors: the one package, beside the command line, that knows ``data_gen``."""
