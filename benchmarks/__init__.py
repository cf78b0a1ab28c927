"""What is timed and searched; never part of the tests."""
