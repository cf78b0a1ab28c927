"""Other ways to run the routed pass, kept to be compared with the one the package uses."""
