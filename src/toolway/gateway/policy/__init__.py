"""Authorization by Cedar policies: reading, compiling and asking them."""
